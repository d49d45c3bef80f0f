"""The command's first lines. Nothing is imported before they are guarded: Ctrl-C while the rest loads is no traceback."""

GARBAGE_EVERY = 50_000
"""New objects between two searches for garbage. Facts and verdicts live until the end: with Python's 700 the searches were a
tenth of the time of a report on 2,000 nodes (benchmarks/fleet.py)."""


def main() -> None:
    """Entry point: every way out is an exit status and a sentence, never a traceback. Does not return."""
    try:
        import gc

        from ddp_doctor import process

        process.begin()
        gc.set_threshold(GARBAGE_EVERY)
        from ddp_doctor import cli

        process.leave(*cli.outcome())
    except KeyboardInterrupt:  # while something is loaded, or in the last moment
        from ddp_doctor import process

        process.leave_interrupted()

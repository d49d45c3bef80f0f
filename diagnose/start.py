"""The command's first lines. Nothing is imported before they are guarded: Ctrl-C while the rest loads is no traceback."""


def main() -> None:
    """Entry point: every way out is an exit status and a sentence, never a traceback. Does not return."""
    try:
        from ddp_doctor import process

        process.begin()
        from ddp_doctor import cli

        process.leave(*cli.outcome())
    except KeyboardInterrupt:  # while something is loaded, or in the last moment
        from ddp_doctor import process

        process.leave_interrupted()

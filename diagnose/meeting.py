"""Meeting: a rendezvous in torch's own TCPStore, served on one node and visited by the others."""

from typing import Any, Dict

Plain = Dict[str, Any]


def serve_store(request: Plain, state: Plain) -> Plain:
    """Not there yet."""
    return {"error": "not built"}


def join_store(request: Plain, state: Plain) -> Plain:
    """Not there yet."""
    return {"error": "not built"}


def leave(state: Plain) -> None:
    """End what serves a meeting."""

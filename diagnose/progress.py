"""Progress: one line on standard error that says what is waited for, on a terminal alone."""

import sys
from typing import Any, List

_CLEAR = "\r\x1b[K"
"""Back to the first column, and erase to the end of the line (ECMA-48 EL)."""


class Progress:
    """Called with the names of what is still out; leaving the context takes the line away."""

    def __enter__(self) -> "Progress":
        self._shown = False
        return self

    def __call__(self, names: List[str]) -> None:
        """Say what is waited for, instead of what was said before."""
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"{_CLEAR}waiting for {', '.join(names)}"[:100])
            sys.stderr.flush()
            self._shown = True

    def __exit__(self, *_error: Any) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

"""Reading logs piece by piece: files, folders, compressed ones and standard input, in bounded memory."""

import bz2
import contextlib
import gzip
import lzma
import os
import sys
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List

PIECE_BYTES = 1 << 20
LINE_BYTES = 1 << 16
"""A longer line is cut there: no message is as long, and a file without line ends must not fill the memory."""
FILES_MAX = 20_000

_UNPACKERS: Dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"\xfd7zXZ\0": lzma.LZMAFile,
    **{b"BZh%d" % level: bz2.BZ2File for level in range(1, 10)},
}
"""First bytes -> what unpacks them (RFC 1952; the .xz file format; bzip2)."""


class BadLog(Exception):
    """A log that cannot be read; the text names it and says why."""


def files(paths: Iterable[str]) -> List[str]:
    """The files that are meant: those named, and all in folders that are named. Raises BadLog."""
    found = [file for path in paths for file in _files(path)]
    if len(found) > FILES_MAX:
        raise BadLog(f"more than {FILES_MAX} files")
    return found


def _files(path: str) -> List[str]:
    if path == "-" or not os.path.isdir(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        found += [os.path.join(folder, name) for name in sorted(names) if not name.startswith(".")]
    if not found:
        raise BadLog(f"{path}: no file in this folder")
    return [file for file in found if os.path.isfile(file)]


def pieces(path: str) -> Iterator[bytes]:
    """The content as pieces of whole lines; of a line that is too long, its beginning. Raises BadLog."""
    try:
        with _opened(path) as file:
            yield from _whole_lines(file)
    except (OSError, EOFError, lzma.LZMAError) as error:
        words = getattr(error, "strerror", None) or str(error) or "damaged"
        raise BadLog(f"{'standard input' if path == '-' else path}: {words}") from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The content, unpacked; told by its first bytes, which stay to be read: it may be a pipe."""
    with contextlib.ExitStack() as stack:
        file: Any = sys.stdin.buffer if path == "-" else stack.enter_context(_file(path))
        head = file.peek(len(max(_UNPACKERS, key=len)))
        unpack = next((unpacker for magic, unpacker in _UNPACKERS.items() if head.startswith(magic)), None)
        yield file if unpack is None else stack.enter_context(unpack(file))


def _file(path: str) -> BinaryIO:
    """Opened without waiting: a named pipe to which nobody writes is empty."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb")


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    held = b""
    while True:
        piece = file.read(PIECE_BYTES)
        if not piece:
            break
        held += piece
        end = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        if end:
            yield held[:end]
            held = held[end:]
        elif len(held) > PIECE_BYTES:
            yield held[:LINE_BYTES] + b"\n"
            held = _skipped(file)
    if held:
        yield held[:PIECE_BYTES]


def _skipped(file: BinaryIO) -> bytes:
    """Go to the end of a line that never seems to end; what follows it in that piece."""
    while True:
        piece = file.read(PIECE_BYTES)
        ends = [place for place in (piece.find(b"\n"), piece.find(b"\r")) if place >= 0]
        if not piece or ends:
            return piece[min(ends) + 1 :] if piece else b""

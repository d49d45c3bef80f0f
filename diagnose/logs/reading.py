"""Reading logs piece by piece: files, folders, compressed ones and standard input, in bounded memory."""

import bz2
import gzip
import lzma
import os
import sys
from typing import BinaryIO, Iterable, Iterator, List

PIECE_BYTES = 1 << 20
LINE_BYTES = 1 << 16
"""A longer line is cut there: no message is as long, and a file without line ends must not fill the memory."""
FILES_MAX = 20_000

_OPENERS = {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open, b"BZ": bz2.open}


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


def _opened(path: str) -> BinaryIO:
    if path == "-":
        return sys.stdin.buffer
    with open(path, "rb") as file:
        head = file.read(2)
    opener = _OPENERS.get(head, open)
    return opener(path, "rb")  # type: ignore[no-any-return, operator]


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
        place = piece.find(b"\n")
        if not piece or place >= 0:
            return piece[place + 1 :] if piece else b""

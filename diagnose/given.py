"""Files that a person names: ordinary ones of a bounded size, never a pipe that nobody writes into."""

import errno
import os
import stat


def content(path: str, limit_bytes: int, cut: bool = False) -> bytes:
    """What is in the file. Raises OSError, also for what is no regular file or is longer than ``limit_bytes``.

    cut: of a longer file the beginning, one byte beyond the limit, so that the caller can tell.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(fd, "rb", closefd=True) as file:
        kind = os.fstat(fd).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes and not cut:
        raise OSError(errno.EFBIG, f"longer than {limit_bytes >> 20} MiB", path)
    return data

"""The system calls that evidence is written with, one method each.

They are kept in one object so that a test can end the process, or make the volume fail, before, inside and
after every single one of them. Nothing here retries or hides anything.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_parity.errors import StorageFailed

__all__ = ["DISK", "Disk", "storage", "storage_failed", "sync_folder", "write_all"]

_MENDS = {
    errno.ENOSPC: "Free some space on that volume and run again; what was published before is untouched.",
    errno.EDQUOT: "Free some of this user's quota and run again; what was published before is untouched.",
    errno.EROFS: "Mount the volume writable, or choose another folder with --receipts.",
    errno.EACCES: "Give this user write access to the folder, or choose another with --receipts.",
    errno.EPERM: "Give this user write access to the folder, or choose another with --receipts.",
    errno.ENOENT: "Create the folder, or choose another with --receipts.",
    errno.ENOTDIR: "Create the folder, or choose another with --receipts.",
    errno.EIO: "Look for faults of that volume in the kernel's log before anything more is measured.",
    errno.EFBIG: "Raise this process's limit on file sizes (ulimit -f) and run again.",
}
_ANY_OTHER = "Choose a folder on a local volume with --receipts, or mend this one."


class Disk:
    """The real thing: every method is the system call of its name. Raises ``OSError``, as the kernel says."""

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def link(self, existing: Path, new: Path) -> None:
        os.link(existing, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def close(self, fd: int) -> None:
        os.close(fd)


DISK = Disk()


def write_all(disk: Disk, fd: int, data: bytes) -> None:
    """Write every byte. Raises ``OSError``, with a part possibly written."""
    rest = data
    while rest:
        written = disk.write(fd, rest)
        if written <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest = rest[written:]


def sync_folder(disk: Disk, folder: Path) -> None:
    """Make the names in ``folder`` durable; a file's own fsync doesn't cover its name. Raises ``OSError``."""
    fd = disk.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


@contextmanager
def storage(thing: str, folder: Path, *, aftermath: str = "", mend: str | None = None) -> Iterator[None]:
    """Say every ``OSError`` of the block as ``StorageFailed``; see ``storage_failed``."""
    try:
        yield
    except OSError as error:
        raise storage_failed(error, thing, folder, aftermath=aftermath, mend=mend) from error


def storage_failed(
    error: OSError, thing: str, folder: Path, *, aftermath: str = "", mend: str | None = None
) -> StorageFailed:
    """The words for a refused write: the errno's text, and the mend for it.

    ``aftermath`` says what is on disk when that is not obvious; ``mend`` replaces the errno's usual one.
    """
    number = error.errno or 0
    name = errno.errorcode.get(number, f"errno {number}")
    advice = mend if mend is not None else _MENDS.get(number, _ANY_OTHER)
    return StorageFailed(
        thing,
        expected=f"a durable write in {folder}",
        found=f"{os.strerror(number)} ({name})",
        mend=f"{aftermath} {advice}".strip(),
    )

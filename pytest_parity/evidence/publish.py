"""Put a file under its final name whole or not at all, and never over another one.

The bytes go to a temporary file beside it and are fsynced before a hard link gives them their name: a rename
would replace what is there, and a name given first could be found half written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from pytest_parity.evidence.disk import Disk, storage, storage_failed, sync_folder, write_all

__all__ = ["publish_file", "sweep"]

_TEMPORARY = re.compile(r"\.tmp-(\d{1,9})-[0-9a-f]{16}")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def publish_file(disk: Disk, folder: Path, filename: str, body: bytes, *, thing: str) -> Path:
    """Write ``body`` durably as ``folder/filename`` and return that path.

    Raises ``FileExistsError`` when the name is taken, and ``StorageFailed`` when the volume refuses. A
    process that dies in here leaves the whole file or none, and at most a temporary that ``sweep`` knows.
    """
    final = folder / filename
    temporary = folder / f".tmp-{os.getpid()}-{os.urandom(8).hex()}"
    with storage(thing, folder):
        # Nobody writes to evidence twice, so not even its owner may.
        fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    try:
        with storage(thing, folder):
            # The lock tells a sweeper of another PID namespace that this writer lives.
            disk.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(disk, fd, body)
            disk.fsync(fd)
        _name(disk, temporary, final, thing)
        with storage(thing, folder, aftermath="It is whole, but may not outlive a power cut."):
            sync_folder(disk, folder)
    finally:
        # By now the outcome is decided. A temporary that won't go is harmless, and swept later.
        with suppress(OSError):
            disk.unlink(temporary)
        with suppress(OSError):
            disk.close(fd)
    return final


def _name(disk: Disk, temporary: Path, final: Path, thing: str) -> None:
    try:
        disk.link(temporary, final)
    except FileExistsError:
        raise
    except OSError as error:
        mend = None
        if error.errno in _NO_LINKS:
            mend = "Receipts need hard links: choose a folder on a file system that has them with --receipts."
        raise storage_failed(error, thing, final.parent, mend=mend) from error


def sweep(disk: Disk, folder: Path) -> tuple[str, ...]:
    """Remove the temporaries of writers that died, and return their file names.

    A temporary whose process lives, here or in another container, is left alone. Raises ``StorageFailed``.
    """
    swept = []
    with storage("left-over temporary files", folder):
        for filename in sorted(os.listdir(folder)):
            match = _TEMPORARY.fullmatch(filename)
            if match and not _alive(int(match[1])) and _remove_unlocked(disk, folder / filename):
                swept.append(filename)
    return tuple(swept)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove_unlocked(disk: Disk, path: Path) -> bool:
    try:
        fd = disk.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False  # another sweeper was faster
    try:
        disk.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        disk.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        disk.close(fd)
    return True

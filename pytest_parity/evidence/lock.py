"""The lock under which the log is written, held by one process at a time on this machine.

It is a file of its own, ``log.lock``: the kernel frees it when its holder dies, and the log itself stays
free to be read, copied and truncated.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_parity.errors import StorageFailed
from pytest_parity.evidence.disk import Disk, storage, storage_failed
from pytest_parity.evidence.names import LOCK

__all__ = ["locked"]


@contextmanager
def locked(root: Path, disk: Disk, *, patience_s: float, shared: bool = False) -> Iterator[None]:
    """Hold the lock of the log in ``root`` for the block.

    Raises ``StorageFailed`` when it can't be had within ``patience_s`` seconds, naming the holder.
    """
    path = root / LOCK
    with storage(LOCK, root):
        fd = disk.open(path, os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT)
    try:
        _take(disk, fd, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, patience_s)
        yield
    finally:
        # Unlocked and not only closed: a child that another thread forked meanwhile would keep it.
        try:
            disk.flock(fd, fcntl.LOCK_UN)
        finally:
            disk.close(fd)


def _take(disk: Disk, fd: int, path: Path, operation: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    pause = 0.0005
    while True:
        try:
            disk.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise StorageFailed(
                    LOCK,
                    expected=f"the lock within {patience_s:g} s at {path}",
                    found=f"it held by {_holder(fd)}",
                    mend="Let that process finish, or end it: the lock goes with its holder.",
                ) from error
        except OSError as error:
            raise storage_failed(error, LOCK, path.parent) from error
        else:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def _holder(fd: int) -> str:
    """The process that holds the lock, as the kernel's own list tells it."""
    inode = os.fstat(fd).st_ino
    try:
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        held = []
    for line in held:
        # 1: FLOCK  ADVISORY  WRITE 4242 fd:01:131090 0 EOF
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
            return f"process {words[4]}"
    return "another process"

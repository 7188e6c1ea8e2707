"""The lease: exclusive use of an accelerator on one machine, by a flock that an engine inherits.

The kernel frees a flock when the last copy of its descriptor is closed. The holder gives the descriptor
to the engine and **only ever closes** its own copy: unlocking (``LOCK_UN``) would free the device under
an engine that still runs. So a free lease means a free device, also after pytest was killed.

A lock taken by another tool (``flock`` of util-linux on the same file) counts like our own.
Blind spots: a process forked from pytest without exec shares the lease until it ends; network file
systems may not carry a flock to other machines, and the lease is meant for one machine anyway.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_parity.errors import ConfigurationError, LeaseError, LeaseUnavailable

from . import procfs
from .holders import RECORD_LIMIT, HolderRecord, describe_holders, locked_here, parse_record
from .lockfile import default_path, open_lock_file, still_there

__all__ = ["Lease", "LeaseSet", "acquire_all", "session_lock"]

_ATTEMPTS = 20
"""How often a lock file that was replaced between opening and locking is opened anew."""
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


class Lease:
    """One held lease. Made by :meth:`acquire`; ended by :meth:`close` or as a context manager.

    A lease that is dropped without ``close`` stays held until the process ends: forgetting it must never
    free a device that an engine may still use.
    """

    def __init__(self, device: str, path: Path, fd: int, number: int | None, unrecorded: str | None) -> None:
        seen = os.fstat(fd)
        self._fd: int | None = fd
        self.device = device
        self.path = path
        self.number = number
        """One more than the lease before it on this file; ``None`` where ``unrecorded`` says why."""
        self.unrecorded = unrecorded
        self.device_id = (seen.st_dev, seen.st_ino)
        self.taken_at = procfs.iso(datetime.now(UTC))

    @classmethod
    def acquire(cls, device: str, path: Path | None, purpose: str, *, session: str | None = None) -> Self:
        """Take the lease of ``device`` without waiting, on ``path`` or the machine's default file.

        ``purpose`` and ``session`` are told to whoever finds the lease taken.
        Raises LeaseUnavailable naming the holder, LeaseError for an unsafe or unusable file and
        ConfigurationError for a device name that is no plain word.
        """
        default = default_path(device)
        path = default if path is None else path
        for _ in range(_ATTEMPTS):
            fd, writable = open_lock_file(path)
            try:
                locked = _try_lock(fd, path)
                # A file that was replaced between opening and locking guards nothing, and who holds the
                # replaced one does not matter: look at what stands there now.
                if not still_there(path, fd):
                    os.close(fd)
                    continue
                if not locked:
                    raise _unavailable(device, path, fd)
                number, unrecorded = _write_record(fd, writable, purpose, session)
                return cls(device, path, fd, number, unrecorded)
            except BaseException:
                os.close(fd)
                raise
        raise LeaseError(
            f"lease file {path}",
            expected="a file that stays in place while it is locked",
            found=f"it replaced {_ATTEMPTS} times in a row",
            mend="Find what removes lock files in this folder and stop it.",
        )

    @property
    def fd(self) -> int:
        """The descriptor that holds the lock, for an engine to inherit. Raises LeaseError once closed."""
        if self._fd is None:
            raise LeaseError(
                f"lease of {self.device}",
                expected="a lease that is held",
                found="it closed",
                mend="Acquire it again before starting an engine.",
            )
        return self._fd

    def verify(self) -> None:
        """Prove that our own open file still holds the lock on the file at ``path``, else raise LeaseError.

        Proof: the kernel lists the lock under our descriptor, a second opening of the path cannot lock, and
        ours can again. The last alone would silently take a lease that was lost.
        """
        fd = self.fd
        if not still_there(self.path, fd):
            raise self._lost("the file removed or replaced: others may have taken the device since")
        if locked_here(f"/proc/self/fdinfo/{fd}") is False:
            raise self._lost("no lock on our descriptor: somebody unlocked it")
        probe, _ = open_lock_file(self.path)
        try:
            if _try_lock(probe, self.path):
                raise self._lost("the file free for anybody to lock")
        finally:
            os.close(probe)
        if not _try_lock(fd, self.path):
            raise self._lost("the lock in other hands")

    def close(self) -> None:
        """Close our descriptor, once. The lease is free when no engine holds a copy; never unlocks."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lost(self, found: str) -> LeaseError:
        return LeaseError(
            f"lease of {self.device} ({self.path})",
            expected=f"it still held since {self.taken_at}",
            found=found,
            mend="Void what was measured since, find who touches the lock file, and start again.",
        )


class LeaseSet:
    """Several leases held together, in the sorted order of their devices."""

    def __init__(self, leases: tuple[Lease, ...]) -> None:
        self.leases = leases

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors for an engine to inherit."""
        return tuple(lease.fd for lease in self.leases)

    def verify(self) -> None:
        """Prove each lease; raises LeaseError for the first that is lost."""
        for lease in self.leases:
            lease.verify()

    def close(self) -> None:
        """Close every descriptor, last taken first."""
        for lease in reversed(self.leases):
            lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def acquire_all(devices: Mapping[str, Path | None], purpose: str, *, session: str | None = None) -> LeaseSet:
    """Take the leases of all ``devices`` (name to lock file or ``None`` for the default), or none of them.

    Raises like :meth:`Lease.acquire`; ConfigurationError for no device at all or two with one file.
    """
    paths = {device: path or default_path(device) for device, path in devices.items()}
    if not paths or len({os.path.realpath(path) for path in paths.values()}) < len(paths):
        raise ConfigurationError(
            "leases of several devices",
            expected="one device or more, each with a lock file of its own",
            found="two devices with one lock file" if paths else "no device",
            mend="Correct device = and lease = in parity.toml.",
        )
    held: list[Lease] = []
    try:
        for device in sorted(paths):
            held.append(Lease.acquire(device, paths[device], purpose, session=session))
    except BaseException:
        LeaseSet(tuple(held)).close()
        raise
    return LeaseSet(tuple(held))


@contextmanager
def session_lock(path: Path, timeout_s: float = -1.0) -> Iterator[None]:
    """Let the workers of one session queue: waits for ``path``, for ever or ``timeout_s`` seconds.

    Not the lease: no engine inherits it, and waiting is meant. Raises LeaseError when the wait is over or
    the file is unusable.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=timeout_s)
    try:
        lock.acquire()
    except (OSError, Timeout) as error:
        over = isinstance(error, Timeout)
        raise LeaseError(
            f"session lock {path}",
            expected=f"its turn within {timeout_s:g} s" if over else "a file that can be locked",
            found="another worker of this session still measuring" if over else str(error),
            mend="Wait for that worker, or end it." if over else "Make the session's folder writable.",
        ) from error
    try:
        yield
    finally:
        lock.release()


def _try_lock(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise LeaseError(
            f"lease file {path}",
            expected="a file system that can lock",
            found=error.strerror or str(error),
            mend="Set lease = in parity.toml to a file on a local file system.",
        ) from error
    return True


def _unavailable(device: str, path: Path, fd: int) -> LeaseUnavailable:
    seen = os.fstat(fd)
    record = parse_record(os.pread(fd, RECORD_LIMIT, 0))
    return LeaseUnavailable(
        f"lease of {device} ({path})",
        expected="nobody to hold it",
        found=describe_holders((seen.st_dev, seen.st_ino), record),
        mend="Wait until it is free or end that process, then run again. Removing the file frees nothing.",
    )


def _write_record(
    fd: int, writable: bool, purpose: str, session: str | None
) -> tuple[int | None, str | None]:
    """Say in the file who we are; returns (number, None) or (None, why the file was left as it was).

    Somebody else's content is never overwritten, and a lease without a record is still a lease.
    """
    raw = os.pread(fd, RECORD_LIMIT, 0)
    last = parse_record(raw)
    if raw and last is None:
        return None, "the lock file holds content of another tool"
    if not writable:
        return None, "the lock file is not ours to write"
    mine = procfs.stat_of(os.getpid())
    record = HolderRecord(
        pid=os.getpid(),
        start_ticks=mine.start_ticks if mine else None,
        command=procfs.command_of(os.getpid()) or "command unknown",
        since=procfs.iso(datetime.now(UTC)),
        session=session[:200] if session else None,
        purpose=purpose[:200],
        number=last.number + 1 if last else 1,
    )
    line = record.to_bytes()
    try:
        # Written before it is cut: a reader, or a kill, between the two finds a whole first line.
        if os.pwrite(fd, line, 0) != len(line):
            return None, "the lock file took only a part of the record"
        os.ftruncate(fd, len(line))
    except OSError as error:
        return None, f"the lock file could not be written: {error.strerror}"
    return record.number, None

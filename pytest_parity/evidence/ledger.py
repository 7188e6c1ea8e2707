"""The append-only log that chains what happened to the evidence: ``log.jsonl`` in the receipts folder.

Each line names the digest of the line before (see ``entries``), so that a line can't be changed, dropped,
moved or slipped in without every later line telling. Any number of processes may append.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_parity.core.canonical import digest
from pytest_parity.errors import EvidenceError
from pytest_parity.evidence.disk import DISK, Disk, storage, storage_failed, sync_folder, write_all
from pytest_parity.evidence.entries import GENESIS, RECOVERY, Entry
from pytest_parity.evidence.lock import locked
from pytest_parity.evidence.names import LOG, TORN
from pytest_parity.evidence.publish import publish_file
from pytest_parity.evidence.reading import Tail, read_tail, unreadable_log

__all__ = ["Appender", "Ledger", "head"]


class Ledger:
    """The log of one folder. ``patience_s``: how long to wait for another process that is appending."""

    def __init__(self, root: Path, *, disk: Disk = DISK, patience_s: float = 30.0) -> None:
        self.root = root
        self._disk = disk
        self._patience_s = patience_s

    def append(self, kind: str, subject: Mapping[str, object], at: str) -> Entry:
        """Append one entry durably and return it.

        ``at`` is a time in ISO form with its zone. What an earlier crash left of a line is recovered first.
        Raises ``StorageFailed`` when the volume refuses, with the log as it was before; ``LedgerBroken`` when
        the last line is no entry; ``EvidenceError`` for a kind, a time or a subject that no line may hold.
        """
        if kind == RECOVERY:
            raise EvidenceError(
                "entry for the log",
                expected="any other kind",
                found=repr(RECOVERY),
                mend="The ledger writes recovery entries itself, after a write that was cut short.",
            )
        with self.exclusive() as appender:
            return appender.append(kind, subject, at)

    @contextmanager
    def exclusive(self) -> Iterator[Appender]:
        """Hold the lock for several appends in a row. Raises ``StorageFailed``."""
        with locked(self.root, self._disk, patience_s=self._patience_s):
            with storage(LOG, self.root):
                fd = self._disk.open(self.root / LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                yield Appender(self.root, self._disk, fd)
            finally:
                self._disk.close(fd)

    def head(self) -> str:
        """The digest of the last whole line; see ``head`` of this module."""
        return head(self.root)


class Appender:
    """Appends to a log whose lock is held. ``fd`` is the open log."""

    def __init__(self, root: Path, disk: Disk, fd: int) -> None:
        self.fd = fd
        self._root = root
        self._disk = disk

    def append(self, kind: str, subject: Mapping[str, object], at: str) -> Entry:
        """As ``Ledger.append``."""
        tail, _ = self._recovered(at)
        return self._write(tail, kind, subject, at)

    def recover(self, at: str) -> tuple[Entry, ...]:
        """Only recover what an earlier crash left of a line; returns the entries that tell of it."""
        return self._recovered(at)[1]

    def _recovered(self, at: str) -> tuple[Tail, tuple[Entry, ...]]:
        """Move torn bytes aside and say so in the log; returns where the log ends then.

        The bytes are safe under ``log.torn-<n>`` before they leave the log, and n is the number of the entry
        that tells of them: a file of the number that comes next is one whose entry a crash prevented.
        """
        with storage(LOG, self._root):
            tail = read_tail(self.fd)
            if tail.whole == 0:
                sync_folder(self._disk, self._root)  # the log may be new: its name must last as well
        waiting: list[Path] = []
        while (path := self._root / f"{TORN}{tail.n + 1 + len(waiting)}").exists():
            waiting.append(path)
        if tail.torn:
            with storage(LOG, self._root):
                if not any(other.read_bytes() == tail.torn for other in waiting):
                    publish_file(self._disk, self._root, path.name, tail.torn, thing=path.name)
                    waiting.append(path)
                self._disk.truncate(self.fd, tail.whole)
                self._disk.fsync(self.fd)
        entries = []
        for path in waiting:
            with storage(path.name, self._root):
                moved = path.read_bytes()
            subject = {"name": path.name, "digest": digest(moved), "length": len(moved)}
            entry = self._write(tail, RECOVERY, subject, at)
            entries.append(entry)
            tail = Tail(tail.whole + len(entry.line), b"", entry.n, entry.digest)
        return tail, tuple(entries)

    def _write(self, tail: Tail, kind: str, subject: Mapping[str, object], at: str) -> Entry:
        entry = Entry.make(tail.n + 1, tail.head, kind, at, subject)
        try:
            write_all(self._disk, self.fd, entry.line)
            self._disk.fsync(self.fd)
        except OSError as error:
            # If the volume refuses this as well, the next append finds a torn line and recovers it.
            with suppress(OSError):
                self._disk.truncate(self.fd, tail.whole)
                self._disk.fsync(self.fd)
            raise storage_failed(error, f"{LOG} entry {entry.n}", self._root) from error
        return entry


def head(root: Path) -> str:
    """The digest of the last whole line of the log in ``root``: what a stranger needs to find it cut short.

    ``GENESIS``, the digest of no bytes, when nothing was logged. Raises ``LedgerBroken`` when the last line
    is no entry, or when the log can't be read.
    """
    try:
        fd = os.open(root / LOG, os.O_RDONLY)
    except FileNotFoundError:
        return GENESIS
    except OSError as error:
        raise unreadable_log(root, error) from error
    try:
        return read_tail(fd).head
    except OSError as error:
        raise unreadable_log(root, error) from error
    finally:
        os.close(fd)

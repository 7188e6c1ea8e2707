"""Disks that fail, and disks that end the process, at a chosen system call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.errors import NothingCompared
from pytest_parity.evidence import Ledger, Published, ReceiptStore, Verification, log_unlogged, verify
from pytest_parity.evidence.disk import Disk

__all__ = [
    "AT",
    "LATER",
    "FailingDisk",
    "KillingDisk",
    "NoSyncDisk",
    "examine",
    "files_in",
    "log_receipt",
    "measure",
    "receipt",
]

Result = TypeVar("Result")
AT = "2026-05-04T03:02:01Z"
LATER = "2026-05-04T04:00:00Z"


def receipt(name: str) -> bytes:
    """A receipt of some length whose bytes follow from its name."""
    return canonical_bytes({"name": name, "ids": list(range(500)), "outcome": "passed"})


def log_receipt(ledger: Ledger, name: str, published: Published) -> None:
    ledger.append("receipt", {"name": name, "digest": published.digest}, AT)


def measure(root: Path, name: str, disk: Disk) -> None:
    """What is written for one pair, in its order."""
    store, ledger = ReceiptStore(root, disk=disk), Ledger(root, disk=disk)
    intent = store.intend(name, canonical_bytes({"attempt": 1}))
    ledger.append("intent", {"name": name, "digest": intent.digest}, AT)
    log_receipt(ledger, name, store.publish(name, receipt(name)))


class NoSyncDisk(Disk):
    """For tests about the chain and not about power cuts: hundreds of fsyncs would only cost time."""

    def fsync(self, fd: int) -> None:
        pass


class SeamDisk(Disk):
    """Every system call goes through ``around``."""

    def around(self, name: str, call: Callable[[], Result]) -> Result:
        raise NotImplementedError

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        return self.around("open", lambda: super(SeamDisk, self).open(path, flags, mode))

    def write(self, fd: int, data: bytes) -> int:
        return self.around("write", lambda: super(SeamDisk, self).write(fd, data))

    def fsync(self, fd: int) -> None:
        self.around("fsync", lambda: super(SeamDisk, self).fsync(fd))

    def truncate(self, fd: int, length: int) -> None:
        self.around("truncate", lambda: super(SeamDisk, self).truncate(fd, length))

    def link(self, existing: Path, new: Path) -> None:
        self.around("link", lambda: super(SeamDisk, self).link(existing, new))

    def unlink(self, path: Path) -> None:
        self.around("unlink", lambda: super(SeamDisk, self).unlink(path))

    def mkdir(self, path: Path) -> None:
        self.around("mkdir", lambda: super(SeamDisk, self).mkdir(path))

    def flock(self, fd: int, operation: int) -> None:
        self.around("flock", lambda: super(SeamDisk, self).flock(fd, operation))

    def close(self, fd: int) -> None:
        self.around("close", lambda: super(SeamDisk, self).close(fd))


class FailingDisk(SeamDisk):
    """Fails with ``number`` at every call of ``call`` from the ``nth`` on, ``times`` times.

    ``written``: how many bytes of a failing write reach the disk first.
    """

    def __init__(
        self, call: str, number: int, *, nth: int = 1, times: int = 1, written: int | None = None
    ) -> None:
        self._call = call
        self._number = number
        self._failing = range(nth, nth + times)
        self._written = written
        self._seen = 0
        self.names: list[str] = []

    def around(self, name: str, call: Callable[[], Result]) -> Result:
        self.names.append(name)
        if name == self._call:
            self._seen += 1
            if self._seen in self._failing:
                raise OSError(self._number, os.strerror(self._number))
        return call()

    def write(self, fd: int, data: bytes) -> int:
        if self._written is not None and self._call == "write" and self._seen + 1 in self._failing:
            os.write(fd, data[: self._written])
        return super().write(fd, data)


class KillingDisk(SeamDisk):
    """Ends its own process with SIGKILL at call number ``kth``: ``before``, ``inside`` or ``after`` it.

    Inside means that half of the bytes were written; a call that isn't a write has no inside.
    """

    def __init__(self, kth: int, moment: str) -> None:
        self._left = kth
        self._moment = moment

    def around(self, name: str, call: Callable[[], Result]) -> Result:
        self._left -= 1
        if self._left == 0 and self._moment == "before":
            _die()
        result = call()
        if self._left == 0:
            _die()
        return result

    def write(self, fd: int, data: bytes) -> int:
        if self._left == 1 and self._moment == "inside":
            os.write(fd, data[: len(data) // 2])
            _die()
        return super().write(fd, data)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def files_in(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` with its bytes."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def examine(root: Path) -> Verification:
    """What must hold of a folder whatever moment its writer died at; returns it recovered and verified."""
    store = ReceiptStore(root)
    for name in store.names():
        assert store.read(name) == receipt(name), "a receipt is whole or not there"
    for key in store.intents():
        assert store.read_intent(key) == canonical_bytes({"attempt": 1})
    try:
        before: Verification | None = verify(root)
    except NothingCompared:
        before = None
    assert before is None or before.intact, "what a crash leaves is never taken for tampering"
    torn = _torn_bytes(root)

    store.sweep()
    recovered = log_unlogged(Ledger(root, patience_s=1), LATER)
    assert not recovered.unreadable
    Ledger(root).append("verdict", {"claim": "goes-on"}, LATER)
    after = verify(root)
    assert after.whole, after
    assert not [path for path in files_in(root) if ".tmp-" in path]
    if before is not None:
        assert {entry.subject["name"] for entry in recovered.entries} >= set(before.unlogged)
    if torn:
        assert torn in [path.read_bytes() for path in root.glob("log.torn-*")], "torn bytes are kept"
    return after


def _torn_bytes(root: Path) -> bytes:
    log = root / "log.jsonl"
    return log.read_bytes().rpartition(b"\n")[2] if log.exists() else b""

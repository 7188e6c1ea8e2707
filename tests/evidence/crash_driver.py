"""Run a writer in a child that dies, again and again: ``crash_driver.py SCENARIO FOLDER``.

A script of its own, so that it can fork from a process without threads. It prints what it did as JSON, and
leaves one folder for each death for the test to examine.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from evidence_faults import AT, LATER, KillingDisk, log_receipt, measure, receipt

from pytest_parity.errors import StorageFailed
from pytest_parity.evidence import Ledger, ReceiptStore, log_unlogged
from pytest_parity.evidence.disk import DISK, Disk


class FullLater(KillingDisk):
    """A volume that fills up inside the last line of the log, under a writer that dies as well."""

    def write(self, fd: int, data: bytes) -> int:
        if b'"kind":"verdict"' in data:
            os.write(fd, data[:40])
            return self.around("write", _no_space)
        return super().write(fd, data)


def _no_space() -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def pair(root: Path, disk: Disk) -> None:
    measure(root, "one", disk)


def recovery(root: Path, disk: Disk) -> None:
    log_unlogged(Ledger(root, disk=disk), LATER)


def refused(root: Path, disk: Disk) -> None:
    with suppress(StorageFailed):
        Ledger(root, disk=disk).append("verdict", {"claim": "x"}, AT)


def torn_folder(root: Path) -> None:
    """A logged pair, a receipt that isn't logged, and half a line."""
    measure(root, "logged", DISK)
    ReceiptStore(root).publish("unlogged", receipt("unlogged"))
    with open(root / "log.jsonl", "ab") as log:
        log.write(b'{"at":"2026-05-0')


def twice_torn_folder(root: Path) -> None:
    """As ``torn_folder``, after a recovery that died in the middle of its own entry."""
    torn_folder(root)
    (root / "log.torn-3").write_bytes(b"half of the first line")


def nothing(root: Path) -> None:
    del root


def whole_folder(root: Path) -> None:
    measure(root, "logged", DISK)


SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path, Disk], None], type[KillingDisk]]] = {
    "pair": (nothing, pair, KillingDisk),
    "recovery": (torn_folder, recovery, KillingDisk),
    "second-recovery": (twice_torn_folder, recovery, KillingDisk),
    "refused": (whole_folder, refused, FullLater),
}


def every_call(base: Path, scenario: str) -> int:
    """Die before, inside and after each system call; returns how many calls the scenario makes."""
    lay_out, run, disk = SCENARIOS[scenario]
    start = base / "start"
    start.mkdir()
    lay_out(start)
    for kth in range(1, 1000):
        deaths = 0
        for moment in ("before", "inside", "after"):
            root = base / f"{kth:03}-{moment}"
            shutil.copytree(start, root)
            status = _in_child(partial(run, root, disk(kth, moment)))
            if os.WIFSIGNALED(status):
                deaths += 1
                assert os.WTERMSIG(status) == signal.SIGKILL
            else:
                assert os.WEXITSTATUS(status) == 0, f"call {kth}, {moment}: status {status}"
                shutil.rmtree(root)
        if deaths == 0:
            return kth - 1
    raise AssertionError("the scenario never ends")


def random_times(base: Path, runs: int) -> int:
    """Die at random times, all in one folder; returns how many children were killed at work."""
    root = base / "shared"
    root.mkdir()
    seeded = random.Random(20260504)
    killed = 0
    for number in range(runs):
        pid = os.fork()
        if pid == 0:
            _leave(partial(_work, root, number))
        time.sleep(seeded.uniform(0.0, 0.012))
        os.kill(pid, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    return killed


def _work(root: Path, number: int) -> None:
    for count in range(10_000):
        name = f"run{number}-{count}"
        log_receipt(Ledger(root), name, ReceiptStore(root).publish(name, receipt(name)))


def _in_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        _leave(work)
    return os.waitpid(pid, 0)[1]


def _leave(work: Callable[[], None]) -> None:
    status = 1
    try:
        work()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    chosen, folder = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(random_times(folder, 100) if chosen == "random" else every_call(folder, chosen)))

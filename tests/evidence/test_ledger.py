"""The log: numbered, chained, whole whatever several processes and crashes do."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from evidence_faults import AT, FailingDisk, NoSyncDisk

from pytest_parity.core.canonical import canonical_bytes, digest, parse
from pytest_parity.errors import EvidenceError, LedgerBroken, ParityError, StorageFailed
from pytest_parity.evidence import GENESIS, Ledger, head, verify
from pytest_parity.evidence.reading import read_tail

MEND = "Restore the log from where it was published; evidence is never rewritten."
MEND_CALL = "Mend the call: nothing was appended."


def _said(attempt: Callable[[], object], kind: type[ParityError]) -> str:
    with pytest.raises(kind) as caught:
        attempt()
    assert type(caught.value) is kind
    return str(caught.value)


def test_the_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.head() == head(tmp_path) == GENESIS == digest(b"")
    first = ledger.append("verdict", {"claim": "plain-decode", "word": "MISS"}, AT)
    second = ledger.append("control", {}, "2026-05-04T05:02:01.5+02:00")
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    assert lines == [first.line, second.line]
    fields = parse(first.line)
    assert isinstance(fields, dict)
    check = fields.pop("check")
    assert fields == {
        "at": AT,
        "format": 1,
        "kind": "verdict",
        "n": 1,
        "previous": GENESIS,
        "subject": {"claim": "plain-decode", "word": "MISS"},
    }
    assert check == digest(canonical_bytes(fields))
    assert (second.n, second.previous) == (2, digest(first.line))
    assert ledger.head() == second.digest == digest(second.line)


def test_the_order_of_system_calls(tmp_path: Path) -> None:
    Ledger(tmp_path).append("verdict", {}, AT)
    disk = FailingDisk("none", 0)
    Ledger(tmp_path, disk=disk).append("verdict", {}, AT)
    assert " ".join(disk.names) == "open flock open write fsync close flock close"


def test_an_append_reads_only_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path, disk=NoSyncDisk())
    for _ in range(300):
        ledger.append("verdict", {"claim": "x" * 100}, AT)
    read = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        read.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert ledger.append("verdict", {}, AT).n == 301
    assert sum(read) == 4096


@pytest.mark.parametrize("length", [1, 3700, 3800, 4096, 8192, 20_000, 1_000_000])
def test_a_last_line_of_any_length_is_found(length: int, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, disk=NoSyncDisk())
    ledger.append("verdict", {}, AT)
    long = ledger.append("verdict", {"pad": "x" * length}, AT)
    assert ledger.head() == long.digest
    assert ledger.append("verdict", {}, AT).previous == long.digest
    assert verify(tmp_path).whole


REFUSED: list[tuple[str, object, str, str, str, str]] = [
    ("Verdict", {}, AT, "a kind of 1 to 32 lower-case letters and dashes", "'Verdict'", MEND_CALL),
    ("", {}, AT, "a kind of 1 to 32 lower-case letters and dashes", "''", MEND_CALL),
    ("verdict", {}, "yesterday", "a time with its zone, like 2026-05-04T03:02:01Z", "'yesterday'", MEND_CALL),
    ("verdict", {}, AT[:-1], "a time with its zone, like 2026-05-04T03:02:01Z", f"'{AT[:-1]}'", MEND_CALL),
    (
        "verdict",
        {},
        "2026-02-30T00:00:00Z",
        "a time with its zone, like 2026-05-04T03:02:01Z",
        "'2026-02-30T00:00:00Z'",
        MEND_CALL,
    ),
    ("verdict", [], AT, "an object as subject", "a list", MEND_CALL),
    ("receipt", {"name": "r1"}, AT, "the digest of the receipt in its subject", "None", MEND_CALL),
    ("intent", {"digest": "md5:1"}, AT, "the digest of the intent in its subject", "'md5:1'", MEND_CALL),
    (
        "receipt",
        {"digest": GENESIS, "name": "../x"},
        AT,
        "1 to 200 of the characters A-Z a-z 0-9 . _ = + -, the first a letter or digit",
        "'../x'",
        MEND_CALL,
    ),
    (
        "recovery",
        {},
        AT,
        "any other kind",
        "'recovery'",
        "The ledger writes recovery entries itself, after a write that was cut short.",
    ),
    (
        "verdict",
        {"pad": "x" * (1 << 20)},
        AT,
        "a line of at most 1048576 bytes",
        "1048828",
        "Publish the details as a file and name its digest in the entry.",
    ),
]


@pytest.mark.parametrize(
    ("kind", "subject", "at", "expected", "found", "mend"), REFUSED, ids=range(len(REFUSED))
)
def test_an_entry_that_no_line_may_hold(
    kind: str, subject: object, at: str, expected: str, found: str, mend: str, tmp_path: Path
) -> None:
    said = _said(lambda: Ledger(tmp_path).append(kind, subject, at), EvidenceError)  # type: ignore[arg-type]
    assert said == f"entry for the log: expected {expected}; found {found}. {mend}"
    assert head(tmp_path) == GENESIS


def test_a_subject_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    said = _said(lambda: Ledger(tmp_path).append("verdict", {"ratio": float("nan")}, AT), EvidenceError)
    assert said.startswith("value at $.subject.ratio: expected a finite number; found nan. ")
    assert (tmp_path / "log.jsonl").read_bytes() == b""


def test_nothing_is_chained_to_a_broken_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("verdict", {"word": "MISS"}, AT)
    log = tmp_path / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b"MISS", b"PASS"))
    edited = parse(log.read_bytes())
    assert isinstance(edited, dict)
    check = edited.pop("check")
    right = digest(canonical_bytes(edited))
    expected = (
        f"last line of log.jsonl: expected contents with check {check}; found contents whose check is "
        f"{right}. {MEND}"
    )
    held = log.read_bytes()
    assert _said(lambda: ledger.append("verdict", {}, AT), LedgerBroken) == expected
    assert _said(ledger.head, LedgerBroken) == expected
    assert log.read_bytes() == held


def test_a_log_of_garbage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"x" * 5_000_000)
    expected = f"end of log.jsonl: expected a line end in its last 1048576 bytes; found none. {MEND}"
    assert _said(lambda: Ledger(tmp_path).append("verdict", {}, AT), LedgerBroken) == expected
    assert _said(lambda: head(tmp_path), LedgerBroken) == expected


def test_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    expected = (
        f"log.jsonl: expected a log that can be read at {tmp_path / 'log.jsonl'}; found Is a directory. "
        "Give this user read access to the folder and its files."
    )
    assert _said(lambda: head(tmp_path), LedgerBroken) == expected
    assert _said(lambda: verify(tmp_path), LedgerBroken) == expected


def _append_many(root: Path, number: int) -> None:
    ledger = Ledger(root, disk=NoSyncDisk())
    for count in range(100):
        ledger.append("verdict", {"by": number, "count": count}, AT)


def test_eight_processes_keep_the_chain_whole(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_append_many, args=(tmp_path, number)) for number in range(8)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / "log.jsonl").exists() and (tmp_path / "log.jsonl").stat().st_size:
            found = verify(tmp_path)
            assert found.whole, "a reader never sees half a line of a living writer"
            assert found.lines >= seen
            seen = found.lines
        writers[0].join(0.02)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = verify(tmp_path, expected_head=head(tmp_path))
    assert found.whole
    assert found.lines == 800


def test_a_reader_waits_for_a_line_that_is_being_written(tmp_path: Path) -> None:
    started = threading.Event()

    class Slow(NoSyncDisk):
        def write(self, fd: int, data: bytes) -> int:
            written = super().write(fd, data[:20])
            started.set()
            time.sleep(0.02)
            return written

    Ledger(tmp_path).append("verdict", {}, AT)
    writer = threading.Thread(target=Ledger(tmp_path, disk=Slow()).append, args=("verdict", {}, AT))
    writer.start()
    started.wait()
    found = verify(tmp_path)
    writer.join()
    assert (found.lines, found.torn) == (2, 0)


def _hold(path: Path, ready: object) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    ready.set()  # type: ignore[attr-defined]  # a multiprocessing event has no public class
    signal.pause()


def test_a_lock_held_by_somebody_else(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    holder = spawn.Process(target=_hold, args=(tmp_path / "log.lock", ready))
    holder.start()
    ready.wait()
    ledger = Ledger(tmp_path, patience_s=0.05)
    assert _said(lambda: ledger.append("verdict", {}, AT), StorageFailed) == (
        f"log.lock: expected the lock within 0.05 s at {tmp_path / 'log.lock'}; found it held by process "
        f"{holder.pid}. Let that process finish, or end it: the lock goes with its holder."
    )
    holder.kill()
    holder.join()
    assert ledger.append("verdict", {}, AT).n == 1


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, patience_s=0)
    with pytest.raises(KeyboardInterrupt), ledger.exclusive():
        raise KeyboardInterrupt
    ledger.append("verdict", {}, AT)


def test_a_tail_of_an_empty_log(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "log.jsonl", os.O_RDONLY | os.O_CREAT)
    try:
        tail = read_tail(fd)
    finally:
        os.close(fd)
    assert (tail.whole, tail.torn, tail.n, tail.head) == (0, b"", 0, GENESIS)

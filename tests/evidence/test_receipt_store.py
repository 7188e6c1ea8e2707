"""Receipts: written once, whole, and never over another one."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import pickle
import stat
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from evidence_faults import FailingDisk, files_in

from pytest_parity.core.canonical import digest
from pytest_parity.errors import EvidenceError, ParityError, ReceiptExists, ReceiptUnreadable
from pytest_parity.evidence import ReceiptStore

BODY = b'{"outcome":"passed"}\n'
OTHER = b'{"outcome":"diverged"}\n'
NAME = "s1-plain-decode-d2048-synthetic-r3-a1"


def _said(attempt: Callable[[], object], kind: type[ParityError]) -> str:
    with pytest.raises(kind) as caught:
        attempt()
    assert type(caught.value) is kind
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_a_receipt_is_published_and_read_back(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    published = store.publish(NAME, BODY)
    assert published.path == tmp_path / f"{NAME}.json"
    assert published.digest == digest(BODY)
    assert store.read(NAME) == BODY
    assert store.read(NAME, digest=published.digest) == BODY
    assert store.names() == (NAME,)
    assert files_in(tmp_path) == {f"{NAME}.json": BODY}, "no temporary is left"
    assert stat.S_IMODE(published.path.stat().st_mode) & 0o222 == 0, "not even its owner may write to it"


def test_a_taken_name_is_refused_with_both_digests(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    published = store.publish(NAME, BODY)
    assert _said(lambda: store.publish(NAME, OTHER), ReceiptExists) == (
        f"receipt {NAME}: expected a name that is not taken; found {digest(BODY)} at {published.path}, while "
        f"the new bytes are {digest(OTHER)}. "
        "Evidence is never replaced: give another attempt a name of its own."
    )
    assert files_in(tmp_path) == {f"{NAME}.json": BODY}


def test_the_very_same_bytes_are_refused_as_well(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    published = store.publish(NAME, BODY)
    assert _said(lambda: store.publish(NAME, BODY), ReceiptExists) == (
        f"receipt {NAME}: expected a name that is not taken; found {digest(BODY)} at {published.path}, while "
        f"the new bytes are {digest(BODY)}. "
        "These very bytes were published before: nothing is left to write."
    )


def test_a_name_taken_by_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.json").mkdir()
    assert _said(lambda: ReceiptStore(tmp_path).publish(NAME, BODY), ReceiptExists) == (
        f"receipt {NAME}: expected a name that is not taken; found something unreadable (Is a directory) at "
        f"{tmp_path / NAME}.json, while the new bytes are {digest(BODY)}. "
        "Evidence is never replaced: give another attempt a name of its own."
    )


BAD_NAMES = [
    ("", "''"),
    ("../escape", "'../escape'"),
    ("a/b", "'a/b'"),
    (".hidden", "'.hidden'"),
    ("-option", "'-option'"),
    ("two words", "'two words'"),
    ("new\nline", r"'new\nline'"),
    ("trailing\n", r"'trailing\n'"),
    ("nul\0", r"'nul\x00'"),
    ("ümlaut", "'ümlaut'"),
    ("cell[2048]", "'cell[2048]'"),
    ("x" * 201, f"201 characters, '{'x' * 20}'…"),
]


@pytest.mark.parametrize(("name", "shown"), BAD_NAMES, ids=range(len(BAD_NAMES)))
def test_a_name_that_is_no_file_name_is_refused(name: str, shown: str, tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.publish(name, BODY),
        lambda: store.intend(name, BODY),
        lambda: store.read(name),
        lambda: store.read_intent(name),
    )
    for call in calls:
        assert _said(call, EvidenceError) == (
            "name of a receipt: expected 1 to 200 of the characters A-Z a-z 0-9 . _ = + -, the first a "
            f"letter or digit; found {shown}. "
            "Build the name from session, cell, rep and attempt, joined by dashes."
        )
    assert not files_in(tmp_path)


def test_the_longest_name_fits(tmp_path: Path) -> None:
    name = "x" * 200
    ReceiptStore(tmp_path).publish(name, BODY)
    assert ReceiptStore(tmp_path).names() == (name,)


def test_only_receipts_are_listed(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    store.publish("b", BODY)
    store.publish("a", BODY)
    store.intend("c", BODY)
    for other in ("log.jsonl", "log.lock", "log.torn-3", ".tmp-1-0123456789abcdef", "README.md", "a b.json"):
        (tmp_path / other).write_bytes(b"")
    assert store.names() == ("a", "b")


def test_a_folder_that_is_not_there_cannot_be_listed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert _said(ReceiptStore(gone).names, EvidenceError) == (
        f"receipts folder: expected a folder that can be listed at {gone}; found No such file or directory. "
        "Create the folder, or choose another with --receipts."
    )


def test_a_receipt_that_is_not_there(tmp_path: Path) -> None:
    assert _said(lambda: ReceiptStore(tmp_path).read(NAME), ReceiptUnreadable) == (
        f"receipt {NAME}: expected the file {tmp_path / NAME}.json; found No such file or directory. "
        "Restore the file from where it was published; evidence is never rewritten."
    )


def test_a_receipt_edited_by_one_byte(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    published = store.publish(NAME, BODY)
    edited = BODY.replace(b"passed", b"qassed")
    published.path.chmod(0o644)
    published.path.write_bytes(edited)
    assert _said(lambda: store.read(NAME, digest=published.digest), ReceiptUnreadable) == (
        f"receipt {NAME}: expected bytes with digest {digest(BODY)}; found {digest(edited)} in "
        f"{published.path}. Restore the file from where it was published; evidence is never rewritten."
    )


def test_an_intent_is_closed_by_the_receipt_of_its_name(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    assert store.open_intents() == store.intents() == ()
    intent = store.intend("a1", BODY)
    store.intend("a2", BODY)
    assert intent.path == tmp_path / "intents" / "a1.json"
    assert store.open_intents() == ("a1", "a2")
    store.publish("a1", OTHER)
    assert store.open_intents() == ("a2",)
    assert store.intents() == ("a1", "a2"), "nothing is deleted"
    assert store.read_intent("a1", digest=intent.digest) == BODY


def test_an_attempt_starts_once(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    store.intend("a1", BODY)
    store.publish("a1", OTHER)
    assert _said(lambda: store.intend("a1", OTHER), ReceiptExists) == (
        f"intent a1: expected a name that is not taken; found {digest(BODY)} at "
        f"{tmp_path / 'intents' / 'a1.json'}, while the new bytes are {digest(OTHER)}. "
        "Evidence is never replaced: give another attempt a name of its own."
    )
    assert _said(lambda: store.read_intent("a2"), ReceiptUnreadable).startswith(
        "intent a2: expected the file "
    )


def test_prepare_makes_the_folder_once(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path / "deep" / "receipts")
    store.prepare()
    store.prepare()
    store.publish(NAME, BODY)
    assert store.intents() == ()
    assert sorted(path.name for path in store.root.iterdir()) == ["intents", f"{NAME}.json"]


def test_the_order_of_system_calls(tmp_path: Path) -> None:
    disk = FailingDisk("none", 0)
    ReceiptStore(tmp_path, disk=disk).publish(NAME, BODY)
    assert " ".join(disk.names) == "open flock write fsync link open fsync close unlink close", (
        "bytes durable before the name, the name durable before anybody is told"
    )


def test_the_temporary_of_a_dead_writer_is_swept(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    store.intend("a1", BODY)
    dead = _dead_pid()
    left = [f".tmp-{dead}-0123456789abcdef", f".tmp-{dead}-fedcba9876543210"]
    for name in left:
        (tmp_path / name).write_bytes(BODY[:5])
    (tmp_path / "intents" / left[0]).write_bytes(b"")
    kept = [
        f".tmp-{os.getpid()}-0123456789abcdef",
        f".tmp-{dead}-zz",
        ".tmp-notes",
        ".tmp-1-0123456789abcdef",
    ]
    for name in kept:
        (tmp_path / name).write_bytes(BODY[:5])
    assert store.names() == ()
    assert store.sweep() == (*left, left[0])
    assert set(files_in(tmp_path)) == {*kept, "intents/a1.json"}
    assert store.sweep() == ()


def test_the_temporary_of_a_writer_in_another_container_is_kept(tmp_path: Path) -> None:
    """Its process id means nothing here, but its lock does."""
    temporary = tmp_path / f".tmp-{_dead_pid()}-0123456789abcdef"
    temporary.write_bytes(BODY[:5])
    fd = os.open(temporary, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert ReceiptStore(tmp_path).sweep() == ()
        assert temporary.exists()
    finally:
        os.close(fd)
    assert ReceiptStore(tmp_path).sweep() == (temporary.name,)


def _dead_pid() -> int:
    process = multiprocessing.get_context("spawn").Process(target=_nothing)
    process.start()
    process.join()
    assert process.pid is not None
    return process.pid


def _nothing() -> None:
    pass


def _race(root: Path, start: object, outcome: Connection, number: int) -> None:
    start.wait()  # type: ignore[attr-defined]  # a multiprocessing barrier has no public class
    wins = []
    for name in range(20):
        try:
            ReceiptStore(root).publish(f"r{name}", b"%d\n" % number)
        except ReceiptExists:
            wins.append(False)
        else:
            wins.append(True)
    outcome.send(wins)


@pytest.mark.parametrize("processes", [2, 8])
def test_of_processes_that_publish_one_name_exactly_one_wins(processes: int, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(processes)
    pipes = [spawn.Pipe(duplex=False) for _ in range(processes)]
    racers = [
        spawn.Process(target=_race, args=(tmp_path, start, sender, number))
        for number, (_, sender) in enumerate(pipes)
    ]
    for racer in racers:
        racer.start()
    outcomes = [receiver.recv() for receiver, _ in pipes]
    for racer in racers:
        racer.join()
        racer.close()
    for name in range(20):
        winners = [number for number, wins in enumerate(outcomes) if wins[name]]
        assert len(winners) == 1
        assert ReceiptStore(tmp_path).read(f"r{name}") == b"%d\n" % winners[0]
    assert len(files_in(tmp_path)) == 20, "no temporary is left by the losers"


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    class Short(FailingDisk):
        def write(self, fd: int, data: bytes) -> int:
            return super().write(fd, data[:3])

    ReceiptStore(tmp_path, disk=Short("none", 0)).publish(NAME, BODY)
    assert ReceiptStore(tmp_path).read(NAME) == BODY


def test_a_volume_that_takes_no_bytes_is_an_error(tmp_path: Path) -> None:
    class Stuck(FailingDisk):
        def write(self, fd: int, data: bytes) -> int:
            return super().write(fd, b"")

    with pytest.raises(EvidenceError, match=r"found Input/output error \(EIO\)"):
        ReceiptStore(tmp_path, disk=Stuck("none", errno.EIO)).publish(NAME, BODY)
    assert not files_in(tmp_path)

"""Every edit of the log and of a receipt is found, told by line, and nothing is found where nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from evidence_faults import AT, NoSyncDisk, log_receipt, receipt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_parity.core.canonical import digest
from pytest_parity.evidence import GENESIS, Entry, Ledger, ReceiptStore, head, verify

ENTRIES = 200


def _fill(root: Path, entries: int) -> list[bytes]:
    """A log of verdicts with a receipt at every fourth line, the last line a verdict."""
    root.mkdir(parents=True, exist_ok=True)
    store, ledger = ReceiptStore(root, disk=NoSyncDisk()), Ledger(root, disk=NoSyncDisk())
    for number in range(1, entries + 1):
        if number % 4 == 1:
            log_receipt(ledger, f"r{number}", store.publish(f"r{number}", receipt(f"r{number}")))
        else:
            ledger.append("verdict", {"claim": f"c{number}", "ratio": 1 + number / 1000}, AT)
    return (root / "log.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    root = tmp_path_factory.mktemp("big")
    return root, _fill(root, ENTRIES)


@contextmanager
def _log(root: Path, content: bytes) -> Iterator[None]:
    """The folder with another log for a while."""
    log = root / "log.jsonl"
    held = log.read_bytes()
    _overwrite(log, content)
    try:
        yield
    finally:
        _overwrite(log, held)


def _overwrite(path: Path, content: bytes) -> None:
    """In place: a file that is emptied first gets flushed by some file systems, thousands of times here."""
    with open(path, "r+b") as stream:
        stream.write(content)
        stream.truncate()


manner = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
line_number = st.integers(0, ENTRIES - 1)


def test_an_untouched_log_is_whole(big: tuple[Path, list[bytes]]) -> None:
    root, lines = big
    found = verify(root, expected_head=head(root))
    assert found.whole and found.intact
    assert (found.lines, found.files, found.since_expected) == (ENTRIES, ENTRIES // 4, 0)
    assert found.head == digest(lines[-1])
    found.require_intact()


@settings(max_examples=25, deadline=None)
@given(at=st.integers(0, ENTRIES))
def test_a_log_that_has_grown_still_holds_the_old_head(big: tuple[Path, list[bytes]], at: int) -> None:
    root, lines = big
    old = digest(lines[at - 1]) if at else GENESIS
    found = verify(root, expected_head=old)
    assert found.whole
    assert found.since_expected == ENTRIES - at


@settings(manner, max_examples=250)
@given(data=st.data(), byte=st.integers(0, 255))
def test_any_edited_byte_is_found(big: tuple[Path, list[bytes]], data: st.DataObject, byte: int) -> None:
    root, lines = big
    number = data.draw(line_number)
    at = data.draw(st.integers(0, len(lines[number]) - 1))
    edited = bytearray(lines[number])
    if edited[at] == byte:
        byte ^= 1
    edited[at] = byte
    last_newline = number == ENTRIES - 1 and at == len(edited) - 1
    with _log(root, b"".join([*lines[:number], bytes(edited), *lines[number + 1 :]])):
        found = verify(root)
        assert not found.whole
        if last_newline:
            assert found.torn == len(edited), "this is also what a crash leaves"
        else:
            assert not found.intact
            assert found.problems[0].line == number + 1
        assert not verify(root, expected_head=digest(lines[-1])).intact


def test_every_byte_of_a_small_log_is_watched(tmp_path: Path) -> None:
    lines = _fill(tmp_path, 3)
    content = b"".join(lines)
    watched = 0
    for at in range(len(content) - 1):
        for byte in {content[at] ^ 1, ord("0"), ord(" "), ord("\n")} - {content[at]}:
            with _log(tmp_path, content[:at] + bytes([byte]) + content[at + 1 :]):
                assert not verify(tmp_path).intact, (at, byte)
                watched += 1
    assert watched > 3000


@manner
@given(data=st.data())
def test_an_inserted_or_removed_byte_is_found(big: tuple[Path, list[bytes]], data: st.DataObject) -> None:
    root, lines = big
    content = b"".join(lines)
    at = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.binary(max_size=1))
    with _log(root, content[:at] + (byte + content[at:] if byte else content[at + 1 :])):
        assert not verify(root).whole
        assert not verify(root, expected_head=digest(lines[-1])).intact


@manner
@given(one=line_number, other=line_number)
def test_swapped_lines_are_found(big: tuple[Path, list[bytes]], one: int, other: int) -> None:
    root, lines = big
    swapped = list(lines)
    swapped[one], swapped[other] = lines[other], lines[one]
    with _log(root, b"".join(swapped)):
        found = verify(root)
        assert found.intact == (one == other)
        if one != other:
            assert found.problems[0].line == min(one, other) + 1


@settings(manner, max_examples=30)
@given(st.permutations(range(ENTRIES)))
def test_reordered_lines_are_found(big: tuple[Path, list[bytes]], order: list[int]) -> None:
    root, lines = big
    with _log(root, b"".join(lines[number] for number in order)):
        assert verify(root).intact == (order == list(range(ENTRIES)))


@manner
@given(first=st.integers(0, ENTRIES - 2), count=st.integers(1, ENTRIES))
def test_deleted_lines_are_found(big: tuple[Path, list[bytes]], first: int, count: int) -> None:
    root, lines = big
    rest = lines[min(first + count, ENTRIES - 1) :]
    with _log(root, b"".join(lines[:first] + rest)):
        found = verify(root)
        assert not found.intact
        assert found.problems[0].line == first + 1


@manner
@given(at=st.integers(0, ENTRIES), forged=st.booleans(), source=line_number)
def test_inserted_lines_are_found(big: tuple[Path, list[bytes]], at: int, forged: bool, source: int) -> None:
    root, lines = big
    previous = digest(lines[at - 1]) if at else GENESIS
    line = Entry.make(at + 1, previous, "verdict", AT, {"word": "PASS"}).line if forged else lines[source]
    with _log(root, b"".join([*lines[:at], line, *lines[at:]])):
        # A line that is chained to the last one is an append, and nothing else.
        assert verify(root).intact == (forged and at == ENTRIES)


@manner
@given(cut=st.data())
def test_a_log_cut_short_is_found_against_a_known_head(
    big: tuple[Path, list[bytes]], cut: st.DataObject
) -> None:
    root, lines = big
    content = b"".join(lines)
    length = cut.draw(st.integers(0, len(content) - 1))
    with _log(root, content[:length]):
        found = verify(root, expected_head=digest(lines[-1]))
        assert not found.intact
        assert found.since_expected is None
        assert [problem.line for problem in found.problems] == [None]
        without = verify(root)
        assert without.intact, "a crash may have left this: only a head that was written down tells"
        assert bool(without.torn) == (not content[:length].endswith(b"\n") and length > 0)


@settings(manner, max_examples=25)
@given(first=st.integers(0, ENTRIES - 1))
def test_a_chain_that_was_made_anew_is_found_against_a_known_head(
    big: tuple[Path, list[bytes]], first: int
) -> None:
    root, lines = big
    forged = list(lines[:first])
    for number in range(first, ENTRIES):
        entry = Entry.read(lines[number], number + 1)
        previous = digest(forged[-1]) if forged else GENESIS
        # The kind stays, and a verdict's word is bent: what somebody would do who wants to be believed.
        subject = entry.subject if entry.kind == "receipt" else {**entry.subject, "word": "PASS"}
        forged.append(Entry.make(number + 1, previous, entry.kind, entry.at, subject).line)
    with _log(root, b"".join(forged)):
        assert verify(root).intact, "no chain can tell this by itself: a head has to be known elsewhere"
        if forged[-1] != lines[-1]:
            assert not verify(root, expected_head=digest(lines[-1])).intact

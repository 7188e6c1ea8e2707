"""Every edit of the log and of a receipt is found, told by line, and nothing is found where nothing is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from evidence_faults import AT, NoSyncDisk, log_receipt, measure, receipt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_parity.core.canonical import canonical_bytes, digest
from pytest_parity.errors import EvidenceError, LedgerBroken, NothingCompared
from pytest_parity.evidence import GENESIS, Entry, Ledger, Problem, ReceiptStore, head, verify

ENTRIES = 200
MEND = "Restore the log from where it was published; evidence is never rewritten."


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
    assert (found.lines, found.receipts, found.since_expected) == (ENTRIES, ENTRIES // 4, 0)
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


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """Three pairs, each with intent and receipt in the log."""
    for name in ("one", "two", "three"):
        measure(tmp_path, name, NoSyncDisk())
    return tmp_path, (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)


def _problems(root: Path, lines: list[bytes]) -> list[str]:
    (root / "log.jsonl").write_bytes(b"".join(lines))
    return [str(problem) for problem in verify(root).problems]


def test_words_for_an_edited_line(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    entry = Entry.read(lines[2], 3)
    fields = lines[2].replace(b'"kind":"intent"', b'"kind":"intend"')
    check = lines[2].split(b'"check":"')[1][:71].decode()
    right = digest(fields.replace(b'"check":"%s",' % check.encode(), b""))
    assert _problems(root, [*lines[:2], fields, *lines[3:]]) == [
        f"log.jsonl line 3: expected contents with check {check}; found contents whose check is {right}",
        f"log.jsonl line 4: expected previous {digest(fields)}; found previous {entry.digest}",
    ]


def test_words_for_nonsense(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    first, nonsense = digest(lines[1]), digest(b"nonsense\n")
    assert _problems(root, [lines[0], b"nonsense\n", *lines[2:]]) == [
        "log.jsonl line 2: expected one JSON value; found Expecting value at character 0",
        f"log.jsonl line 3: expected previous {nonsense}; found previous {first}",
    ]


def test_words_for_swapped_deleted_and_repeated_lines(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    names = [digest(line) for line in lines]
    assert _problems(root, [lines[0], *lines[2:]]) == [
        "log.jsonl line 2: expected entry number 2; found entry number 3",
        f"log.jsonl line 2: expected previous {names[0]}; found previous {names[1]}",
    ]
    assert _problems(root, [*lines, lines[5]]) == [
        "log.jsonl line 7: expected entry number 7; found entry number 6",
        f"log.jsonl line 7: expected previous {names[5]}; found previous {names[4]}",
    ]
    assert _problems(root, [*lines[:4], lines[5], lines[4]]) == [
        "log.jsonl line 5: expected entry number 5; found entry number 6",
        f"log.jsonl line 5: expected previous {names[3]}; found previous {names[4]}",
        "log.jsonl line 6: expected entry number 7; found entry number 5",
        f"log.jsonl line 6: expected previous {names[5]}; found previous {names[3]}",
    ]


def test_words_for_a_receipt_that_is_missing_or_edited(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    (root / "one.json").unlink()
    (root / "intents" / "two.json").unlink()
    whole, edited = digest(receipt("three")), receipt("three").replace(b"passed", b"failed")
    (root / "three.json").chmod(0o644)
    (root / "three.json").write_bytes(edited)
    intent = Entry.read(lines[2], 3).subject["digest"]
    assert _problems(root, lines) == [
        f"log.jsonl line 2: expected receipt one with digest {digest(receipt('one'))}; found no file one.json",
        f"log.jsonl line 3: expected intent two with digest {intent}; found no file intents/two.json",
        f"log.jsonl line 6: expected receipt three with digest {whole}; found {digest(edited)} in three.json",
    ]


def test_words_for_a_receipt_that_cannot_be_read(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    (root / "one.json").unlink()
    (root / "one.json").mkdir()
    whole = digest(receipt("one"))
    assert _problems(root, lines) == [
        f"log.jsonl line 2: expected receipt one with digest {whole}; found one.json: Is a directory"
    ]


def test_words_for_torn_bytes_that_were_edited(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    (root / "log.jsonl").write_bytes(b"".join(lines) + b"torn")
    Ledger(root).append("verdict", {}, AT)
    (root / "log.torn-7").chmod(0o644)
    (root / "log.torn-7").write_bytes(b"thorn")
    (problem,) = verify(root).problems
    assert str(problem) == (
        f"log.jsonl line 7: expected recovery log.torn-7 with digest {digest(b'torn')}; found "
        f"{digest(b'thorn')} in log.torn-7"
    )


def test_words_for_a_log_cut_short(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    (root / "log.jsonl").write_bytes(b"".join(lines[:5]))
    found = verify(root, expected_head=digest(lines[5]))
    expected = f"a line with digest {digest(lines[5])}, the head that was written down"
    seen = f"none in 5 lines, the last with digest {digest(lines[4])}: cut short or rewritten"
    assert found.problems == (Problem(None, expected, seen),)
    with pytest.raises(LedgerBroken) as caught:
        found.require_intact()
    assert str(caught.value) == f"log.jsonl: expected {expected}; found {seen}. {MEND}"
    assert found.unlogged == ("three",)
    assert found.open_intents == ("three",)


def test_words_for_several_problems(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    (root / "log.jsonl").write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(LedgerBroken) as caught:
        verify(root).require_intact()
    assert str(caught.value) == (
        "log.jsonl line 2: expected entry number 2; found entry number 3 (the first of 2 problems). " + MEND
    )


def _line(**changes: object) -> bytes:
    """A first line with its check right, and something else wrong."""
    fields: dict[str, object] = {
        "format": 1, "n": 1, "previous": GENESIS, "kind": "verdict", "at": AT, "subject": {}
    } | changes  # fmt: skip
    return canonical_bytes(fields | {"check": digest(canonical_bytes(fields))})


KEYS = "an object with the keys at check format kind n previous subject"
WRONG: list[tuple[bytes, str, str]] = [
    (b"[]\n", KEYS, "a list"),
    (b"{}\n", KEYS, "an empty object"),
    (b'{"n":1}\n', KEYS, "the keys n"),
    (_line(extra=1), KEYS, "the keys at check extra format kind n previous subject"),
    (_line(format=2), "format 1", "format 2"),
    (_line(format=True), "format 1", "format True"),
    (_line(n=0), "a number from 1 as n", "0"),
    (_line(n=True), "a number from 1 as n", "True"),
    (_line(n=1.0), "a number from 1 as n", "1.0"),
    (_line(previous=""), "a digest as previous", "''"),
    (_line(kind=7), "a kind of 1 to 32 lower-case letters and dashes", "7"),
    (_line(at=None), "a time with its zone, like 2026-05-04T03:02:01Z", "None"),
    (_line(subject=[]), "an object as subject", "a list"),
    (_line(kind="receipt"), "the digest of the receipt in its subject", "None"),
    (
        _line(kind="recovery", subject={"name": "/etc/passwd", "digest": GENESIS}),
        "the file log.torn-<number> in a recovery's subject",
        "'/etc/passwd'",
    ),
    (
        _line(kind="receipt", subject={"name": "../../x", "digest": GENESIS}),
        "1 to 200 of the characters A-Z a-z 0-9 . _ = + -, the first a letter or digit",
        "'../../x'",
    ),
    (b"{}\r\n", "canonical bytes", "another spelling of the same value from byte 2 on"),
]


@pytest.mark.parametrize(("line", "expected", "found"), WRONG, ids=range(len(WRONG)))
def test_words_for_a_line_that_is_no_entry(line: bytes, expected: str, found: str, tmp_path: Path) -> None:
    assert _problems(tmp_path, [line]) == [f"log.jsonl line 1: expected {expected}; found {found}"]


def test_a_line_that_is_too_long_is_told_and_passed(small: tuple[Path, list[bytes]]) -> None:
    root, lines = small
    long = b"x" * 3_000_000 + b"\n"
    assert _problems(root, [lines[0], long, *lines[2:]]) == [
        "log.jsonl line 2: expected a line of at most 1048576 bytes; found 3000001",
        f"log.jsonl line 3: expected previous {digest(long)}; found previous {digest(lines[1])}",
    ]


def test_a_log_of_garbage_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"x\n" * 5000)
    found = verify(tmp_path)
    assert (len(found.problems), found.more_problems) == (100, 4900)


def test_an_unlogged_receipt_is_no_tampering(small: tuple[Path, list[bytes]]) -> None:
    root, _ = small
    ReceiptStore(root).publish("four", receipt("four"))
    found = verify(root)
    assert (found.intact, found.whole, found.unlogged) == (True, False, ("four",))


def test_a_receipt_without_any_log(tmp_path: Path) -> None:
    ReceiptStore(tmp_path).publish("r1", receipt("r1"))
    found = verify(tmp_path)
    assert (found.lines, found.head, found.unlogged, found.whole) == (0, GENESIS, ("r1",), False)


def test_an_intent_without_its_receipt_is_open(small: tuple[Path, list[bytes]]) -> None:
    root, _ = small
    intent = ReceiptStore(root).intend("four", b"{}\n")
    Ledger(root).append("intent", {"name": "four", "digest": intent.digest}, AT)
    assert verify(root).open_intents == ("four",)
    assert verify(root).whole


def test_nothing_verified_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"")
    with pytest.raises(NothingCompared) as caught:
        verify(tmp_path)
    assert str(caught.value) == (
        f"evidence in {tmp_path}: expected receipts, or lines in the log; found neither. "
        "Measure something first, or name the folder that holds the evidence."
    )


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="^receipts folder: expected a folder that can be listed at "):
        verify(tmp_path / "gone")


def test_a_copy_without_a_lock_file_is_verified(small: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    root, _ = small
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("log.lock", "copy"))
    assert verify(copy).whole
    assert not (copy / "log.lock").exists(), "verifying writes nothing"

"""What a verification says of each fault, to the letter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from evidence_faults import AT, NoSyncDisk, measure, receipt

from pytest_parity.core.canonical import canonical_bytes, digest
from pytest_parity.errors import EvidenceError, LedgerBroken, NothingCompared
from pytest_parity.evidence import GENESIS, Entry, Ledger, Problem, ReceiptStore, verify

MEND = "Restore the log from where it was published; evidence is never rewritten."


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
    missing, whole, edited = (
        digest(receipt("one")),
        digest(receipt("three")),
        receipt("three").replace(b"passed", b"failed"),
    )
    (root / "three.json").chmod(0o644)
    (root / "three.json").write_bytes(edited)
    intent = Entry.read(lines[2], 3).subject["digest"]
    assert _problems(root, lines) == [
        f"log.jsonl line 2: expected receipt one with digest {missing}; found no file one.json",
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

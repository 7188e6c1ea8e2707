"""What a crash left is moved aside, told and logged; nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from evidence_faults import AT, LATER, files_in, log_receipt, measure, receipt

from pytest_parity.core.canonical import Json, digest, parse
from pytest_parity.errors import LedgerBroken, ParityError
from pytest_parity.evidence import Ledger, ReceiptStore, log_unlogged, verify
from pytest_parity.evidence.disk import DISK

MEND = "Restore the log from where it was published; evidence is never rewritten."


def _said(attempt: Callable[[], object], kind: type[ParityError]) -> str:
    with pytest.raises(kind) as caught:
        attempt()
    assert type(caught.value) is kind
    return str(caught.value)


def test_a_torn_last_line_is_moved_aside_and_told(tmp_path: Path) -> None:
    measure(tmp_path, "r1", DISK)
    log = tmp_path / "log.jsonl"
    whole = log.read_bytes()
    torn = b'{"at":"2026-05-04T03:02:01Z","che'
    log.write_bytes(whole + torn)
    assert (verify(tmp_path).torn, verify(tmp_path).intact, verify(tmp_path).whole) == (
        len(torn),
        True,
        False,
    )
    entry = Ledger(tmp_path).append("verdict", {}, LATER)
    assert entry.n == 4
    assert (tmp_path / "log.torn-3").read_bytes() == torn
    told = parse(log.read_bytes().splitlines(keepends=True)[2])
    assert isinstance(told, dict)
    assert (told["kind"], told["n"], told["at"]) == ("recovery", 3, LATER)
    assert told["subject"] == {"name": "log.torn-3", "digest": digest(torn), "length": len(torn)}
    assert log.read_bytes().startswith(whole)
    assert verify(tmp_path).whole


def test_a_torn_first_line(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"\0\0\0")
    assert Ledger(tmp_path).append("verdict", {}, AT).n == 2
    assert (tmp_path / "log.torn-1").read_bytes() == b"\0\0\0"
    assert verify(tmp_path).whole


def test_torn_files_whose_entry_is_missing_are_told_first(tmp_path: Path) -> None:
    """A crash inside a recovery, and then another one inside the next."""
    Ledger(tmp_path).append("verdict", {}, AT)
    (tmp_path / "log.torn-2").write_bytes(b"one")
    (tmp_path / "log.torn-3").write_bytes(b"two")
    assert verify(tmp_path).unlogged_torn == ("log.torn-2", "log.torn-3")
    with open(tmp_path / "log.jsonl", "ab") as log:
        log.write(b"three")
    assert [entry.kind for entry in log_unlogged(Ledger(tmp_path), AT).entries] == ["recovery"] * 3
    assert (tmp_path / "log.torn-4").read_bytes() == b"three"
    assert verify(tmp_path).whole


def test_whole_receipts_that_a_crash_left_unlogged_are_logged(tmp_path: Path) -> None:
    store, ledger = ReceiptStore(tmp_path), Ledger(tmp_path)
    log_receipt(ledger, "logged", store.publish("logged", receipt("logged")))
    published = store.publish("unlogged", receipt("unlogged"))
    (tmp_path / "foreign.json").write_bytes(b'{"half":')
    assert verify(tmp_path).unlogged == ("foreign", "unlogged")
    recovered = log_unlogged(ledger, LATER)
    assert recovered.unreadable == ("foreign",)
    (entry,) = recovered.entries
    assert (entry.n, entry.kind, entry.at) == (2, "receipt", LATER)
    assert entry.subject == {"name": "unlogged", "digest": published.digest, "recovered": True}
    assert log_unlogged(ledger, LATER).entries == ()
    log_receipt(ledger, "unlogged", published)  # its own session was only slow
    found = verify(tmp_path)
    assert found.intact
    assert found.unlogged == ("foreign",)


def test_what_its_caller_says_of_a_receipt_stands_in_its_entry(tmp_path: Path) -> None:
    store, ledger = ReceiptStore(tmp_path), Ledger(tmp_path)
    published = store.publish("unlogged", receipt("unlogged"))
    store.publish("other", b'{"kind":"no receipt"}\n')
    more = {"outcome": "passed", "name": "a lie", "digest": "a lie"}

    def describe(body: Json) -> Mapping[str, object]:
        assert isinstance(body, dict)
        if body.get("kind") == "no receipt":
            raise KeyError("outcome")
        return more

    recovered = log_unlogged(ledger, LATER, describe)
    assert recovered.unreadable == ("other",)
    assert [entry.subject for entry in recovered.entries] == [
        {"outcome": "passed", "name": "unlogged", "digest": published.digest, "recovered": True}
    ]
    assert verify(tmp_path).unlogged == ("other",)


def test_nothing_is_recovered_into_a_broken_log(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for _ in range(3):
        ledger.append("verdict", {}, AT)
    ReceiptStore(tmp_path).publish("r1", receipt("r1"))
    log = tmp_path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b"nonsense\n" + lines[2])
    held = files_in(tmp_path)
    assert _said(lambda: log_unlogged(ledger, AT), LedgerBroken) == (
        f"log.jsonl line 2: expected one JSON value; found Expecting value at character 0. {MEND}"
    )
    assert files_in(tmp_path) == held

"""A writer that is killed at any moment leaves either no receipt or a whole one, and a log that recovers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from evidence_faults import examine

from pytest_parity.evidence import ReceiptStore, verify

DRIVER = Path(__file__).with_name("crash_driver.py")


def _drive(scenario: str, folder: Path) -> int:
    done = subprocess.run(
        [sys.executable, str(DRIVER), scenario, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    count = json.loads(done.stdout)
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize(
    ("scenario", "least_calls"), [("pair", 35), ("recovery", 20), ("second-recovery", 20), ("refused", 9)]
)
def test_sigkill_at_every_system_call(scenario: str, least_calls: int, tmp_path: Path) -> None:
    calls = _drive(scenario, tmp_path)
    assert calls >= least_calls, "the seam must see the system calls, or nothing was tried"
    folders = sorted(path for path in tmp_path.iterdir() if path.name != "start")
    assert len(folders) > 2 * calls, "before and after each call, and inside each write"
    receipts = set()
    for folder in folders:
        after = examine(folder)
        receipts.add(after.receipts)
    assert len(receipts) > 1 or scenario != "pair", "some deaths come before the receipt, some after"


def test_an_intent_without_a_receipt_outlives_the_crash(tmp_path: Path) -> None:
    _drive("pair", tmp_path)
    seen = {ReceiptStore(folder).open_intents() for folder in tmp_path.iterdir()}
    assert seen == {(), ("one",)}
    for folder in tmp_path.iterdir():
        store = ReceiptStore(folder)
        assert not set(store.names()) - set(store.intents()), "no receipt without its intent"


def test_sigkill_at_random_times(tmp_path: Path) -> None:
    assert _drive("random", tmp_path) == 100
    root = tmp_path / "shared"
    found = verify(root)
    assert found.intact
    after = examine(root)
    assert after.receipts >= len(ReceiptStore(root).names()) > 0


def test_a_crash_inside_a_recovery_keeps_both_torn_lines(tmp_path: Path) -> None:
    _drive("second-recovery", tmp_path)
    for folder in tmp_path.iterdir():
        if folder.name != "start":
            examine(folder)
            kept = {path.read_bytes() for path in folder.glob("log.torn-*")}
            assert kept >= {b"half of the first line", b'{"at":"2026-05-0'}

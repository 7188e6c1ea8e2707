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
    command = [sys.executable, str(DRIVER), scenario, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    count = json.loads(done.stdout)
    assert isinstance(count, int)
    return count


def _deaths(scenario: str, folder: Path, *, least_calls: int) -> list[Path]:
    """The folders that a writer left which died before, inside and after each of its system calls."""
    calls = _drive(scenario, folder)
    assert calls >= least_calls, "the seam must see the system calls, or nothing was tried"
    folders = sorted(path for path in folder.iterdir() if path.name != "start")
    assert len(folders) > 2 * calls, "before and after each call, and inside each write"
    return folders


def test_sigkill_at_every_system_call_of_a_pair(tmp_path: Path) -> None:
    open_intents, receipts = set(), set()
    for folder in _deaths("pair", tmp_path, least_calls=35):
        store = ReceiptStore(folder)
        assert not set(store.names()) - set(store.intents()), "no receipt without its intent"
        open_intents.add(store.open_intents())
        receipts.add(store.names())
        examine(folder)
        assert store.open_intents() in open_intents, "recovery neither makes nor closes intents"
    assert open_intents == {(), ("one",)}
    assert receipts == {(), ("one",)}, "some deaths come before the receipt, some after"


@pytest.mark.parametrize("scenario", ["recovery", "second-recovery"])
def test_sigkill_at_every_system_call_of_a_recovery(scenario: str, tmp_path: Path) -> None:
    torn = {b'{"at":"2026-05-0'}
    if scenario == "second-recovery":
        torn.add(b"half of the first line")
    for folder in _deaths(scenario, tmp_path, least_calls=20):
        examine(folder)
        assert {path.read_bytes() for path in folder.glob("log.torn-*")} >= torn, "torn bytes are kept"
        assert ReceiptStore(folder).names() == ("logged", "unlogged")


def test_sigkill_at_every_system_call_of_a_withdrawal(tmp_path: Path) -> None:
    for folder in _deaths("refused", tmp_path, least_calls=9):
        examine(folder)


def test_sigkill_at_random_times(tmp_path: Path) -> None:
    assert _drive("random", tmp_path) == 100
    root = tmp_path / "shared"
    found = verify(root)
    assert found.intact
    after = examine(root)
    assert after.files >= len(ReceiptStore(root).names()) > 0

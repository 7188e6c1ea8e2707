"""``parity ledger``: show a log, publish whole sessions byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evidence_folders import SESSION, Workshop, acted, edit, engine, pair, parity, says

from pytest_parity import evidence
from pytest_parity.commands import ledger as commands
from pytest_parity.errors import StorageFailed
from pytest_parity.measurement.recovery import recover

Capture = pytest.CaptureFixture[str]
OTHER = "20250102T000000Z-bbbbbb"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sessions on the desk: one that passed, one that diverged and has a refused pair."""
    acted(monkeypatch)
    shop = Workshop(tmp_path)
    for rep in (1, 2):
        shop.conductor().measure(pair(shop.claim, rep), "replay").exact().record()
    acted(monkeypatch, says((*range(100, 115), 9)))
    other = Workshop(tmp_path, session=OTHER, engines={"e": engine()})
    with pytest.raises(AssertionError, match="first difference at output token 15"):
        other.conductor().measure(pair(other.claim), "replay").exact()
    with pytest.raises(AssertionError, match="the same one twice"):
        other.conductor().measure(pair(other.claim, 2), "replay", lanes=("plain", "plain"))
    return shop.receipts


class TestShow:
    def test_has_a_line_for_each_entry(self, desk: Path, capsys: Capture) -> None:
        said = parity(capsys, "ledger", "show", desk)
        assert (said.status, said.err) == (0, "")
        shown = [line.split() for line in said.lines]
        assert [(n, kind, outcome, name) for n, _, kind, outcome, name in shown] == [
            ("1", "receipt", "passed", f"{SESSION}.same-d64-synthetic-r1"),
            ("2", "receipt", "passed", f"{SESSION}.same-d64-synthetic-r2"),
            ("3", "receipt", "diverged", f"{OTHER}.same-d64-synthetic-r1"),
            ("4", "receipt", "refused", f"{OTHER}.same-d64-synthetic-r2"),
        ]

    def test_of_nothing(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "ledger", "show", tmp_path)
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            f"parity: log of {tmp_path}: expected a readable file log.jsonl; found No such file or directory. "
            "Name the folder with the receipts.\n"
        )

    def test_of_a_broken_log(self, desk: Path, capsys: Capture) -> None:
        (desk / "log.jsonl").write_bytes(b"{}\n")
        said = parity(capsys, "ledger", "show", desk)
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith("parity: log.jsonl line 1: expected an object with the keys ")


class TestPublish:
    def test_copies_every_receipt_of_a_session_whatever_came_of_it(
        self, desk: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        to = tmp_path / "receipts"
        said = parity(capsys, "ledger", "publish", OTHER, "--from", desk, "--to", to)
        assert said.lines == [f"{OTHER}: 2 receipts published, 0 were there", f"head {evidence.head(to)}"]
        assert (said.status, said.err) == (0, "")
        published = sorted(to.glob("*.json"))
        assert [path.name for path in published] == sorted(path.name for path in desk.glob(f"{OTHER}.*"))
        for path in published:
            assert path.read_bytes() == (desk / path.name).read_bytes()
        assert evidence.verify(to).whole
        subjects = [json.loads(line)["subject"] for line in (desk / "log.jsonl").read_text().splitlines()]
        assert [
            json.loads(line)["subject"] for line in (to / "log.jsonl").read_text().splitlines()
        ] == subjects[2:]

    def test_of_several_sessions_keeps_the_order_of_the_log(
        self, desk: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        to = tmp_path / "receipts"
        parity(capsys, "ledger", "publish", OTHER, SESSION, "--from", desk, "--to", to)
        shown = [line.split()[-1] for line in parity(capsys, "ledger", "show", to).lines]
        assert shown == [
            f"{session}.same-d64-synthetic-r{rep}" for session in (OTHER, SESSION) for rep in (1, 2)
        ]

    def test_twice_changes_nothing(self, desk: Path, tmp_path: Path, capsys: Capture) -> None:
        to = tmp_path / "receipts"
        parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", to)
        before = {path: path.read_bytes() for path in to.rglob("*") if path.is_file()}
        said = parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", to)
        assert said.lines[0] == f"{SESSION}: 0 receipts published, 2 were there"
        assert said.status == 0
        assert {path: path.read_bytes() for path in to.rglob("*") if path.is_file()} == before

    def test_refuses_another_receipt_of_the_same_name(
        self, desk: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        to = tmp_path / "receipts"
        parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", to)
        path = to / f"{SESSION}.same-d64-synthetic-r1.json"
        path.chmod(0o644)
        edit(path, "machine", value={})
        before = path.read_bytes()
        said = parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", to)
        assert said.status == 1
        assert said.err.startswith(
            f"parity: receipt {path.stem}: expected a name that is not taken; found sha256:"
        )
        assert "Evidence is never replaced: give another attempt a name of its own." in said.err
        assert path.read_bytes() == before

    def test_that_was_cut_off_between_a_receipt_and_its_place_in_the_log_is_finished(
        self, desk: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        to = tmp_path / "receipts"

        def full(*args: object) -> None:
            raise StorageFailed("log", expected="room", found="none", mend="Make room.")

        with monkeypatch.context() as patch:
            patch.setattr(evidence.Ledger, "append", full)
            assert parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", to).status == 1
        assert evidence.verify(to).unlogged == (f"{SESSION}.same-d64-synthetic-r1",)
        said = parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", to)
        assert said.lines[0] == f"{SESSION}: 2 receipts published, 0 were there"
        assert evidence.verify(to).whole

    def test_of_evidence_that_was_tampered_with_is_refused(
        self, desk: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        path = desk / f"{SESSION}.same-d64-synthetic-r1.json"
        path.chmod(0o644)
        edit(path, "machine", value={})
        said = parity(capsys, "ledger", "publish", OTHER, "--from", desk, "--to", tmp_path / "receipts")
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith(
            f"parity: log.jsonl line 1: expected receipt {path.stem} with digest sha256:"
        )
        assert not (tmp_path / "receipts").exists()

    @pytest.mark.parametrize("session", ["20250103T000000Z-cccccc", SESSION[:-1], ""])
    def test_of_a_session_that_is_not_there(
        self, desk: Path, tmp_path: Path, capsys: Capture, session: str
    ) -> None:
        said = parity(capsys, "ledger", "publish", session, "--from", desk, "--to", tmp_path / "receipts")
        assert (said.status, said.out) == (1, "")
        assert (
            said.err
            == f"parity: session {session}: expected receipts in {desk}; found none. See parity ledger show.\n"
        )

    def test_of_a_session_with_a_pair_that_was_begun_and_not_closed(
        self, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """Half a session would leave out the very pair that somebody killed."""
        to, cut = tmp_path / "receipts", "20250103T000000Z-cccccc"
        acted(monkeypatch)
        shop = Workshop(tmp_path, session=cut)
        conductor = shop.conductor()
        conductor.measure(pair(shop.claim), "replay").exact().record()
        conductor.measure(pair(shop.claim, 2), "replay")
        said = parity(capsys, "ledger", "publish", cut, "--from", desk, "--to", to)
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            f"parity: session {cut}: expected a receipt of every pair that was begun; "
            f"found none of {cut}.same-d64-synthetic-r2. "
            "Run pytest -m parity once more: it receipts what a killed session left open.\n"
        )
        assert list(to.glob("*.json")) == []
        assert parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", to).status == 0
        del conductor
        recover(Workshop(tmp_path, session="20250104T000000Z-dddddd").workspace())
        said = parity(capsys, "ledger", "publish", cut, "--from", desk, "--to", to)
        assert said.lines[0] == f"{cut}: 2 receipts published, 0 were there"

    def test_from_a_folder_that_is_not_there(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(
            capsys, "ledger", "publish", SESSION, "--from", tmp_path / "none", "--to", tmp_path / "to"
        )
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            f"parity: receipts folder: expected a folder that can be listed at {tmp_path / 'none'}; "
            "found No such file or directory. Create the folder, or choose another with --receipts.\n"
        )

    def test_from_a_folder_without_a_log(self, desk: Path, tmp_path: Path, capsys: Capture) -> None:
        (desk / "log.jsonl").unlink()
        said = parity(capsys, "ledger", "publish", SESSION, "--from", desk, "--to", tmp_path / "to")
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith(
            f"parity: log of {desk}: expected a readable file log.jsonl; found No such file"
        )

    def test_says_when_in_utc(self, desk: Path, tmp_path: Path) -> None:
        commands.publish([SESSION], desk, tmp_path / "receipts")
        times = [
            json.loads(line)["at"] for line in (tmp_path / "receipts" / "log.jsonl").read_text().splitlines()
        ]
        assert all(at.endswith("Z") and len(at) == 20 for at in times)

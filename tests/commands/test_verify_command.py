"""``parity verify``: a stranger's check, from stored bytes alone."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from evidence_folders import (
    EMBEDDED,
    SESSION,
    Workshop,
    acted,
    claim,
    copy_of,
    edit,
    engine,
    pair,
    parity,
    real_run,
    relog,
    says,
    speed_session,
)

from pytest_parity import evidence
from pytest_parity.core.canonical import digest
from pytest_parity.measurement.installed import InstalledEngine

Capture = pytest.CaptureFixture[str]
WORDS = {"same": "PASS", "wrong": "FAIL", "stale": "STALE"}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Receipts of a real run, which verify must read as the run did."""
    project, ran = real_run(tmp_path_factory.mktemp("run"))
    assert ran.status == 1, ran.out
    assert {name: ran.claim(name).properties["parity_verdict"] for name in WORDS} == WORDS
    sentences = {name: ran.claim(name).properties["parity_sentence"] for name in WORDS}
    (project.folder / "sentences").write_text(
        "\n".join(f"{WORDS[n]:<12} {n}: {s}" for n, s in sorted(sentences.items()))
    )
    return project.folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return copy_of(good, tmp_path / "receipts")


def receipt(folder: Path, stem: str) -> Path:
    """One receipt by the end of its name."""
    (found,) = folder.glob(f"*.{stem}.json")
    return found


class TestAGoodFolder:
    def test_says_what_the_run_said(self, folder: Path, capsys: Capture) -> None:
        said = parity(capsys, "verify", folder)
        first, session, *verdicts = said.lines
        assert first == f"5 files checked, 5 log entries, head {evidence.head(folder)}"
        assert session == "session " + receipt(folder, "same-d64-synthetic-r1").name.split(".")[0]
        assert [line.strip() for line in verdicts] == (folder / "sentences").read_text().splitlines()
        assert (said.status, said.err) == (0, "")

    def test_as_a_program_of_its_own(self, folder: Path) -> None:
        ran = subprocess.run(
            [Path(sys.prefix) / "bin" / "parity", "verify", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "  PASS         same: every declared cell\n" in ran.stdout

    def test_holds_on_to_a_head_that_was_written_down(self, folder: Path, capsys: Capture) -> None:
        head = evidence.head(folder)
        assert parity(capsys, "verify", folder, "--since", head).status == 0
        other = "sha256:" + "0" * 64
        said = parity(capsys, "verify", folder, "--since", other)
        assert said.status == 1
        assert said.lines[0] == (
            f"BROKEN  log.jsonl: expected a line with digest {other}, the head that was written down; found none in "
            f"5 lines, the last with digest {head}: cut short or rewritten"
        )

    def test_is_not_written_to(self, folder: Path, capsys: Capture) -> None:
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        parity(capsys, "verify", folder)
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


class TestTampering:
    def test_an_edited_receipt(self, folder: Path, capsys: Capture) -> None:
        path = receipt(folder, "same-d64-synthetic-r1")
        edit(path, "machine", value={})
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[0].startswith(
            f"BROKEN  log.jsonl line 1: expected receipt {path.stem} with digest sha256:"
        )
        assert said.lines[0].endswith(f" in {path.name}")

    def test_an_edited_byte_that_spells_the_same_value(self, folder: Path, capsys: Capture) -> None:
        path = receipt(folder, "same-d64-synthetic-r2")
        path.write_bytes(path.read_bytes().replace(b'{"', b'{ "', 1))
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[0].startswith("BROKEN  log.jsonl line 2: expected receipt ")
        assert any(
            line.startswith("UNREADABLE  stored bytes: expected canonical bytes;") for line in said.lines
        )
        assert "  INCOMPLETE   same: 64 synthetic: not measured: r2" in said.lines

    def test_a_deleted_receipt(self, folder: Path, capsys: Capture) -> None:
        path = receipt(folder, "same-d64-synthetic-r2")
        path.unlink()
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[0].startswith(
            f"BROKEN  log.jsonl line 2: expected receipt {path.stem} with digest "
        )
        assert said.lines[0].endswith(f"; found no file {path.name}")
        assert "  INCOMPLETE   same: 64 synthetic: not measured: r2" in said.lines

    def test_a_receipt_that_is_deleted_from_the_log_as_well(self, folder: Path, capsys: Capture) -> None:
        path, head = receipt(folder, "wrong-d64-synthetic-r1"), evidence.head(folder)
        relog(folder, without=[path.stem])
        path.unlink()
        assert parity(capsys, "verify", folder).status == 0  # a forger who rewrites everything is found …
        said = parity(
            capsys, "verify", folder, "--since", head
        )  # … by a head that was written down elsewhere
        assert said.status == 1 and "cut short or rewritten" in said.lines[0]

    def test_an_edited_log_line(self, folder: Path, capsys: Capture) -> None:
        log = folder / "log.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"outcome":"diverged"', b'"outcome":"passed"', 1))
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[0].startswith("BROKEN  log.jsonl line 3: expected contents with check sha256:")
        assert said.lines[1].startswith("BROKEN  log.jsonl line 4: expected previous sha256:")

    def test_a_deleted_log_line(self, folder: Path, capsys: Capture) -> None:
        log = folder / "log.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:1] + lines[2:]))
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[0] == "BROKEN  log.jsonl line 2: expected entry number 2; found entry number 3"
        assert (
            f"UNLOGGED  {receipt(folder, 'same-d64-synthetic-r2').stem}: whole, but not in the log (a crash between the two writes)"
            in said.lines
        )

    def test_a_log_cut_short_leaves_a_receipt_out(self, folder: Path, capsys: Capture) -> None:
        log = folder / "log.jsonl"
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        (left,) = (line for line in said.lines if line.startswith("UNLOGGED"))
        assert left == (
            f"UNLOGGED  {receipt(folder, 'stale-d64-synthetic-r2').stem}: whole, but not in the log "
            "(a crash between the two writes)"
        )
        assert not any(line.startswith("BROKEN") for line in said.lines)

    def test_a_receipt_that_nothing_vouches_for_decides_nothing(self, folder: Path, capsys: Capture) -> None:
        """Slipped in after the last session, it would complete a claim, or undo one."""
        relog(folder, without=[receipt(folder, "same-d64-synthetic-r2").stem])
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert "  INCOMPLETE   same: 64 synthetic: not measured: r2" in said.lines
        wrong = receipt(folder, "wrong-d64-synthetic-r1").stem
        relog(folder, without=[wrong])
        said = parity(capsys, "verify", folder)
        assert [line.split()[1].rstrip(":") for line in said.lines if line.startswith("UNLOGGED")] == [
            receipt(folder, "same-d64-synthetic-r2").stem,
            wrong,
        ]
        assert not any("FAIL" in line for line in said.lines)

    def test_a_torn_line_at_the_end_of_the_log(self, folder: Path, capsys: Capture) -> None:
        with open(folder / "log.jsonl", "ab") as log:
            log.write(b'{"at":')
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[0] == "TORN  log.jsonl: 6 bytes after its last whole line (a crash within a write)"
        assert "  PASS         same: every declared cell" in said.lines
        evidence.log_unlogged(evidence.Ledger(folder), "2025-01-01T00:00:00Z")
        assert parity(capsys, "verify", folder).status == 0

    def test_torn_bytes_that_were_put_aside_and_not_told(self, folder: Path, capsys: Capture) -> None:
        (folder / "log.torn-6").write_bytes(b'{"at":')
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[0] == (
            "UNLOGGED  log.torn-6: bytes of a torn log line, put aside and not yet told in the log"
        )

    def test_a_claim_that_was_edited_in_its_receipt(self, folder: Path, capsys: Capture) -> None:
        """Not even a forger who rewrites digests and log gets by: the row has a digest of its own."""
        path = receipt(folder, "same-d64-synthetic-r1")
        edit(path, "claim", "row", "minimum_tokens", value=2)
        relog(folder)
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert not any(line.startswith("BROKEN") for line in said.lines)
        assert said.lines[1].startswith(
            f"UNREADABLE  receipt {path.stem}: expected a claim whose digest is sha256:"
        )
        assert said.lines[1].endswith("The row in it was edited: it counts for nothing.")
        assert "  INCOMPLETE   same: 64 synthetic: not measured: r1" in said.lines

    @pytest.mark.parametrize(
        ("keys", "value", "text"),
        [
            (("row", "kind"), "fastest", "its claim's row, kind: Input should be 'exact', 'parity', "),
            (("row", "more"), 1, "its claim's row, more: Extra inputs are not permitted"),
            (("row",), None, "its claim's row, as a whole: Input should be "),
        ],
    )
    def test_a_row_that_is_no_claim(
        self, folder: Path, capsys: Capture, keys: tuple[str, ...], value: object, text: str
    ) -> None:
        path = receipt(folder, "same-d64-synthetic-r1")
        edit(path, "claim", *keys, value=value)
        relog(folder)
        said = parity(capsys, "verify", folder)
        assert said.status == 1 and said.lines[1].startswith(f"UNREADABLE  {path.stem}: {text}")
        assert said.lines[2].startswith("session ")

    @pytest.mark.parametrize(
        ("keys", "value", "what"),
        [
            (("timing", "candidate", "decode_tps"), 1e9, "timing"),
            (("timing", "ratios", "decode_tps"), 2.0, "timing"),
            (("sides", "candidate", "words", "output_ids", 3), 7, "exactness"),
            (("sides", "candidate", "clockwork", "events", 0, 0), 1, "timing"),
            (("exactness", "tokens"), 400, "exactness"),
            (("order",), "CR", "order of the sides"),
        ],
    )
    def test_a_receipt_that_contradicts_itself(
        self, folder: Path, capsys: Capture, keys: tuple[str | int, ...], value: object, what: str
    ) -> None:
        path = receipt(folder, "same-d64-synthetic-r1")
        edit(path, *keys, value=value)
        relog(folder)
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert said.lines[1] == (
            f"UNREADABLE  receipt {path.stem}: expected the {what} that its own words and events give; found another one. "
            "It was edited, or written by another version: it counts for nothing."
        )

    def test_a_divergence_that_is_called_a_pass(self, folder: Path, capsys: Capture) -> None:
        path = receipt(folder, "wrong-d64-synthetic-r1")
        edit(path, "outcome", value="passed")
        relog(folder)
        said = parity(capsys, "verify", folder)
        assert said.status == 1 and any(
            line.startswith(f"UNREADABLE  receipt {path.stem}: ") for line in said.lines
        )
        assert not any("PASS         wrong" in line for line in said.lines)

    def test_something_that_is_no_receipt(self, folder: Path, capsys: Capture) -> None:
        stranger = folder / "x.json"
        stranger.write_text('{"format":"else"}\n')
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert "UNLOGGED  x: whole, but not in the log (a crash between the two writes)" in said.lines
        assert not any(line.startswith("UNREADABLE") for line in said.lines)
        subject = {"name": "x", "digest": digest(stranger.read_bytes())}
        evidence.Ledger(folder).append("receipt", subject, "2025-01-01T00:00:00Z")
        said = parity(capsys, "verify", folder)
        assert said.status == 1
        assert (
            "UNREADABLE  receipt x: expected format pytest-parity/receipt/1; found 'else'. Use the version that wrote it."
        ) in said.lines


class TestVerdicts:
    @pytest.mark.parametrize(
        ("step_ns", "word"), [(990_000, "PASS"), (1_200_000, "MISS"), (1_052_683, "UNRESOLVED")]
    )
    def test_of_a_claim_about_speed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, step_ns: int, word: str
    ) -> None:
        speed_session(tmp_path, monkeypatch, step_ns)
        said = parity(capsys, "verify", tmp_path / ".parity" / "receipts")
        assert said.lines[0].startswith("12 files checked, 12 log entries, head sha256:")
        assert said.lines[1] == f"session {SESSION}"
        assert said.lines[2].split()[:2] == [word, "speed:"]
        assert len(said.lines) == 3 and said.status == 0

    def test_without_its_control(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        speed_session(tmp_path, monkeypatch, 990_000, control=5)
        said = parity(capsys, "verify", tmp_path / ".parity" / "receipts")
        assert said.lines[2] == (
            "  UNRESOLVED   speed: 64 synthetic: no control in the session: the control has 5 of 6 pairs"
        )

    def test_of_a_session_that_is_not_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        speed_session(tmp_path, monkeypatch, 990_000, reps=4)
        said = parity(capsys, "verify", tmp_path / ".parity" / "receipts")
        assert said.lines[2] == "  INCOMPLETE   speed: 64 synthetic: not measured: r5, r6"
        assert said.status == 0

    def test_of_void_and_broken_pairs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        shop = Workshop(tmp_path)
        acted(monkeypatch, pids=(7, 7))
        shop.unfinished()
        said = parity(capsys, "verify", shop.receipts)
        assert said.lines[2] == (
            "  INCOMPLETE   same: 64 synthetic: r1 is void: both sides were answered by process 7: two runs that are one (T15)"
        )

    def test_of_a_pair_that_was_refused(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "m").write_bytes(b"x")
        argv = (*EMBEDDED, "-m", "{model}")
        pinned = engine("pinned", model="m", argv=argv, pin={"model_sha256": "0" * 64})
        shop = Workshop(
            tmp_path, engines={"e": engine(), "pinned": pinned}, claim=claim(candidate="pinned", lane="plain")
        )
        shop.unfinished()
        said = parity(capsys, "verify", shop.receipts)
        assert said.lines[2].startswith(
            "  STALE        same: 64 synthetic: pinned: the model: expected SHA-256 000"
        )

    @pytest.mark.parametrize(("day", "word"), [(29, "PASS"), (30, "STALE"), (31, "STALE")])
    def test_of_a_pin_goes_by_the_day_of_the_measurement(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, day: int, word: str
    ) -> None:
        acted(monkeypatch)
        old = engine(pin={"expires": "2025-01-30"})
        shop = Workshop(tmp_path, engines={"e": old}, now=lambda: datetime(2025, 1, day, 23, tzinfo=UTC))
        for rep in (1, 2):
            shop.conductor().measure(pair(shop.claim, rep), "replay").exact().record()
        said = parity(capsys, "verify", shop.receipts)
        assert said.lines[2].split()[0] == word
        assert ("the pin of e expired on 2025-01-30" in said.lines[2]) is (word == "STALE")

    @pytest.mark.parametrize(("day", "word"), [(29, "PASS"), (30, "STALE")])
    @pytest.mark.parametrize("role", ["candidate", "reference"])
    def test_of_a_pin_that_this_package_holds(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Capture,
        day: int,
        word: str,
        role: str,
    ) -> None:
        """The receipt lists every expiry: verify knows them where the build and its pins are long gone."""
        acted(monkeypatch)
        honest = InstalledEngine.pin

        def pin(self: InstalledEngine) -> dict[str, Any]:
            found = honest(self)
            if self.name == role:
                more = {"of": "the pinned source of llama-cpp", "on": "2025-01-30"}
                found["portable"]["expiries"].append(more)
            return found

        monkeypatch.setattr(InstalledEngine, "pin", pin)
        shop = Workshop(
            tmp_path,
            engines={"candidate": engine("candidate"), "reference": engine("reference")},
            claim=claim(candidate="candidate", reference="reference"),
            now=lambda: datetime(2025, 1, day, tzinfo=UTC),
        )
        for rep in (1, 2):
            shop.conductor().measure(pair(shop.claim, rep), "replay").exact().record()
        monkeypatch.undo()
        said = parity(capsys, "verify", shop.receipts)
        assert said.lines[2].split()[0] == word
        assert ("the pinned source of llama-cpp expired on 2025-01-30" in said.lines[2]) is (word == "STALE")

    def test_of_sessions_are_kept_apart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        acted(monkeypatch)
        for rep, session in ((1, "20250101T000000Z-aaaaaa"), (2, "20250102T000000Z-aaaaaa")):
            shop = Workshop(tmp_path, session=session)
            shop.conductor().measure(pair(shop.claim, rep), "replay").exact().record()
        said = parity(capsys, "verify", tmp_path / ".parity" / "receipts")
        assert said.lines[1:] == [
            "session 20250101T000000Z-aaaaaa",
            "  INCOMPLETE   same: 64 synthetic: not measured: r2",
            "session 20250102T000000Z-aaaaaa",
            "  INCOMPLETE   same: 64 synthetic: not measured: r1",
        ]

    def test_of_a_speculative_lane_without_natural_text(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        acted(monkeypatch, says())
        lanes = {"drafts": {"speculative": True}}
        shop = Workshop(
            tmp_path, engines={"e": engine(lanes=lanes)}, claim=claim(lane="drafts", minimum_tokens=16)
        )
        for rep in (1, 2):
            shop.conductor().measure(pair(shop.claim, rep), "replay").exact().record()
        said = parity(capsys, "verify", shop.receipts)
        assert said.lines[2].startswith(
            "  INCOMPLETE   same: a speculative lane needs a natural fixture class as well"
        )


class TestOpenIntents:
    def test_are_told_and_break_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        conductor = shop.conductor()
        conductor.measure(pair(shop.claim), "replay").exact().record()
        conductor.measure(pair(shop.claim, 2), "replay")  # its session may well be alive
        said = parity(capsys, "verify", shop.receipts)
        assert said.lines[1:] == [
            f"OPEN  {SESSION}.same-d64-synthetic-r2: begun, and no receipt says what came of it",
            f"session {SESSION}",
            "  INCOMPLETE   same: 64 synthetic: not measured: r2",
        ]
        assert said.status == 0

    def test_that_a_receipt_closes_are_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        assert len(list((shop.receipts / "intents").glob("*.json"))) == 1
        assert not any(line.startswith("OPEN") for line in parity(capsys, "verify", shop.receipts).lines)


class TestNothing:
    def test_a_folder_that_is_not_there(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "verify", tmp_path / "none")
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            f"parity: receipts folder {tmp_path / 'none'}: expected a folder; found none. "
            "Name the folder with the receipts.\n"
        )

    def test_a_folder_without_evidence(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "verify", tmp_path)
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            f"parity: evidence in {tmp_path}: expected receipts, or lines in the log; found neither. "
            "Measure something first, or name the folder that holds the evidence.\n"
        )

    def test_without_a_folder_it_is_the_desks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        monkeypatch.chdir(tmp_path)
        assert parity(capsys, "verify").status == 0

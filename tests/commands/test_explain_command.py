"""``parity explain``: one receipt in words, whatever came of its pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evidence_folders import SESSION, Said, Workshop, acted, claim, edit, engine, pair, parity, says

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.core.metrics import METRICS
from pytest_parity.measurement.pair import Diverged, Unfinished

Capture = pytest.CaptureFixture[str]
HEAD = f"pair same-d64-synthetic-r1 of session {SESSION}, order RC"
SIDES = ["  reference: e, lane plain", "  candidate: e, lane fused"]


def explained(shop: Workshop, capsys: Capture) -> Said:
    """The only receipt of a shop in words."""
    (path,) = shop.receipts.glob("*.json")
    return parity(capsys, "explain", path)


class TestOutcomes:
    def test_passed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        acted(monkeypatch, says(step_ns=800_000), says(sent_ns=21_000_000_123, step_ns=1_000_000))
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        said = explained(shop, capsys)
        assert (said.status, said.err) == (0, "")
        assert said.lines[:3] == ["passed  " + HEAD, *SIDES]
        assert said.lines[3].startswith("  prompt: 64 ids of synthetic, sha256:")
        assert said.lines[4].startswith("    Eight ids repeat, so the next one is known without any context")
        assert said.lines[5:7] == [
            "  exact: 16 tokens at level tokens",
            "  ratios (above 1 the candidate wins):",
        ]
        ratios = {line.split()[0]: line.split()[1] for line in said.lines[7::2]}
        at = next(number for number, line in enumerate(said.lines) if line.split()[0] == "decode_tps")
        assert said.lines[at].partition("1.2500   ")[2] == "candidate 1250, reference 1000 tokens/s"
        assert said.lines[at + 1].strip() == METRICS["decode_tps"].formula
        assert ratios["decode_tps"] == "1.2500"
        assert ratios["peak_rss_bytes"] == "1.0000"
        assert "acceptance" not in ratios  # unknown is left out, and never 0

    def test_passed_with_real_engines_shows_both_command_lines(self, tmp_path: Path, capsys: Capture) -> None:
        shop = Workshop(tmp_path)
        shop.conductor().measure(pair(shop.claim), "replay").exact().record()
        said = explained(shop, capsys)
        assert said.lines[1] == SIDES[0] and said.lines[3] == SIDES[1]
        for line, rest in ((said.lines[2], ""), (said.lines[4], " --kernels fused")):
            assert line.startswith("    {python} -m pytest_parity.engines.embedded --port ")
            assert line.endswith(f" --ctx-size 2048{rest}")

    def test_diverged(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        acted(monkeypatch, says((*range(100, 115), 9)))
        shop = Workshop(tmp_path)
        with pytest.raises(Diverged) as caught:
            shop.conductor().measure(pair(shop.claim), "pytest the/replay").exact()
        said = explained(shop, capsys)
        assert said.status == 1
        assert said.lines[:3] == ["diverged  " + HEAD, *SIDES]
        assert said.lines[5:] == str(caught.value).splitlines()
        assert said.lines[5] == "first difference at output token 15: candidate 9, reference 115"
        assert said.lines[-1] == "  replay:  pytest the/replay"
        assert "ratio" not in said.out

    def test_void(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        acted(monkeypatch, pids=(7, 7))
        shop = Workshop(tmp_path)
        shop.unfinished()
        said = explained(shop, capsys)
        assert said.status == 1 and said.lines[0] == "void  " + HEAD
        assert said.lines[-1] == (
            "  one-process: both sides were answered by process 7: two runs that are one (T15)"
        )
        assert "ratio" not in said.out

    def test_broken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        acted(monkeypatch, KeyboardInterrupt())
        shop = Workshop(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            shop.conductor().measure(pair(shop.claim), "replay")
        said = explained(shop, capsys)
        assert said.status == 1 and said.lines[0] == "broken  " + HEAD
        assert said.lines[-1] == "  interrupted: ended by KeyboardInterrupt"

    def test_refused(self, tmp_path: Path, capsys: Capture) -> None:
        shop = Workshop(tmp_path, claim=claim(depths=[2040]))
        with pytest.raises(Unfinished):
            shop.conductor().measure(pair(shop.claim), "replay")
        said = explained(shop, capsys)
        assert said.status == 1
        assert said.lines == [
            f"refused  pair same-d2040-synthetic-r1 of session {SESSION}, order RC",
            *SIDES,
            (
                "  context: e: 2040 prompt tokens and 16 output tokens: expected at most 2048 tokens in its context; "
                "found 2056. Give that depth its own output_tokens, or the engine a larger context."
            ),
        ]


class TestWhatCannotBeExplained:
    def test_a_file_that_is_not_there(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "explain", tmp_path / "none.json")
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            "parity: receipt none.json: expected a readable file; found No such file or directory. Correct the path.\n"
        )

    def test_a_folder(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "explain", tmp_path)
        assert (
            said.status == 1
            and "expected a readable file; found Is a directory. Correct the path." in said.err
        )

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", "stored bytes: expected one JSON value; found Expecting value at character 0."),
            (b"\xff", "stored bytes: expected UTF-8; found byte 0 is not (invalid start byte)."),
            (
                b'{ "a": 1}\n',
                "stored bytes: expected canonical bytes; found another spelling of the same value",
            ),
            (b"[]\n", "receipt x: expected format pytest-parity/receipt/1; found []."),
            (b"{}\n", "receipt x: expected format pytest-parity/receipt/1; found None."),
            (
                b'{"format":"pytest-parity/receipt/1"}\n',
                "receipt x: expected the fields of its format; found KeyError: 'outcome'.",
            ),
        ],
    )
    def test_a_file_that_is_no_receipt(
        self, tmp_path: Path, capsys: Capture, content: bytes, text: str
    ) -> None:
        (tmp_path / "x.json").write_bytes(content)
        said = parity(capsys, "explain", tmp_path / "x.json")
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith(f"parity: {text}")

    @pytest.mark.parametrize(
        ("keys", "value"),
        [
            (("timing", "ratios", "decode_tps"), 9.0),
            (("sides", "reference", "words", "output_ids", 0), 1),
            (("outcome",), "void"),
        ],
    )
    def test_a_receipt_that_contradicts_itself(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Capture,
        keys: tuple[Any, ...],
        value: object,
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        path = shop.conductor().measure(pair(shop.claim), "replay").exact().record().path
        path.chmod(0o644)
        edit(path, *keys, value=value)
        said = explained(shop, capsys)
        assert (said.status, said.out) == (1, "")
        assert "that its own words and events give; found another one." in said.err

    @pytest.mark.parametrize(
        "keys", [("pair",), ("prompt",), ("prompt", "tokens"), ("sides", "candidate", "lane")]
    )
    def test_a_receipt_without_a_field_that_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, keys: tuple[str, ...]
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path, engines={"e": engine()})
        path = shop.conductor().measure(pair(shop.claim), "replay").exact().record().path
        body = json.loads(path.read_bytes())
        at = body
        for key in keys[:-1]:
            at = at[key]
        del at[keys[-1]]
        (tmp_path / "x.json").write_bytes(canonical_bytes(body))
        said = parity(capsys, "explain", tmp_path / "x.json")
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith(
            f"parity: receipt x: expected the fields of its format; found KeyError: {keys[-1]!r}."
        )

"""``parity plan`` and ``parity engine``: what would run, and what is on this machine. Neither starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence_folders import parity

from pytest_parity.cli import main
from pytest_parity.engines import provision
from pytest_parity.engines.provision import ENGINE_PINS, MODEL_PINS

Capture = pytest.CaptureFixture[str]

TOML = """\
{top}
quiet_s = 0.5

[engines.e]
argv = ["{{python}}", "-m", "pytest_parity.engines.embedded", "--port", "{{port}}"]
context = 4096
estimate = {{ start_s = 2.0, prefill_tps = 100, decode_tps = 10 }}
[engines.e.lanes]
plain = {{}}
fused = {{ argv = ["--kernels", "fused"] }}

[engines.gone]
binary = "none"
argv = ["{{binary}}", "{{port}}"]
context = 4096
"""
CLAIMS = """\
[claims.same]
wording = "x"
candidate = "e"
reference = "e"
lane = "fused"
reference_lane = "plain"
kind = "exact"
depths = [64, 100]
fixtures = ["synthetic"]
output_tokens = 16

[claims.fast]
wording = "x"
candidate = "e"
reference = "e"
lane = "fused"
reference_lane = "plain"
kind = "parity"
metric = "decode_tps"
margin = 0.1
depths = [64]
fixtures = ["synthetic"]
output_tokens = 20
pairs = "6"

[claims.absent]
wording = "x"
candidate = "gone"
reference = "e"
kind = "exact"
depths = [64]
fixtures = ["synthetic"]
"""


def project(root: Path, top: str = "", claims: str | None = CLAIMS) -> Path:
    """A project's ``parity.toml``, with its register."""
    (root / "claims").mkdir()
    if claims is not None:
        (root / "claims" / "x.toml").write_text(claims)
    (root / "parity.toml").write_text(TOML.format(top=top))
    return root / "parity.toml"


class TestPlan:
    def test_shows_cells_pairs_and_machine_time(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "plan", "--parity-config", project(tmp_path))
        assert (said.status, said.err) == (0, "")
        assert said.lines == [
            "cell                           pairs  out  machine time",
            # A side: 2 s of start, warm-up and prompt at 100 tokens/s, output at 10; and 0.5 s of quiet before it.
            "same-d64-synthetic                 2   16  22 s",
            "same-d100-synthetic                2   16  24 s",
            "control-e-plain-d64-synthetic      6   20  69 s",
            "fast-d64-synthetic                 6   20  69 s",
            "16 pairs, 32 engine starts, about 3 min of machine time",
            "order R C | C R | R C | …, fixed; a ratio above 1: the candidate wins",
            "not asked: absent: gone: its binary none is not installed. Correct 'binary' of [engines.gone].",
        ]
        assert not (tmp_path / ".parity").exists()

    def test_of_named_claims(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "plan", "--parity-config", project(tmp_path), "--claims", "same")
        assert [line.split()[0] for line in said.lines[1:3]] == ["same-d64-synthetic", "same-d100-synthetic"]
        assert said.lines[3] == "4 pairs, 8 engine starts, about 46 s of machine time"

    def test_of_the_default_claims_and_of_all(self, tmp_path: Path, capsys: Capture) -> None:
        path = project(tmp_path, 'default_claims = ["same"]')
        assert (
            "4 pairs, 8 engine starts, about 46 s of machine time"
            in parity(capsys, "plan", "--parity-config", path).lines
        )
        both = parity(capsys, "plan", "--parity-config", path, "--claims", "all")
        assert "16 pairs, 32 engine starts, about 3 min of machine time" in both.lines

    def test_in_this_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        project(tmp_path)
        monkeypatch.chdir(tmp_path)
        assert parity(capsys, "plan").status == 0

    @pytest.mark.parametrize("name", ["sane", "same,", ""])
    def test_of_an_unknown_claim(self, tmp_path: Path, capsys: Capture, name: str) -> None:
        said = parity(capsys, "plan", "--parity-config", project(tmp_path), "--claims", name)
        wrong = "" if name != "sane" else name
        assert (said.status, said.out) == (4, "")
        assert said.err == (
            f"parity: --claims {wrong}: expected claims of the register: same, fast, absent; found {wrong!r}. "
            "Correct the name.\n"
        )

    def test_of_an_unknown_default_claim(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "plan", "--parity-config", project(tmp_path, 'default_claims = ["sane"]'))
        assert said.status == 4
        assert said.err.startswith(
            "parity: default_claims: sane: expected claims of the register: same, fast, absent;"
        )

    def test_of_no_claims(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "plan", "--parity-config", project(tmp_path, "default_claims = []"))
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            "parity: the plan: expected at least one claim; found none. Name one with --claims, or write one.\n"
        )

    def test_without_a_configuration(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "plan", "--parity-config", tmp_path / "parity.toml")
        assert (said.status, said.out) == (4, "")
        assert (
            said.err == "parity: parity.toml: expected a file; found none. Write it: the README shows one.\n"
        )

    def test_without_a_register(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(capsys, "plan", "--parity-config", project(tmp_path, claims=None))
        assert said.status == 4
        assert said.err == (
            "parity: register claims/: expected at least one *.toml with claims; found none. "
            "Write a claim: see docs/claims.md.\n"
        )

    def test_of_an_unreadable_register(self, tmp_path: Path, capsys: Capture) -> None:
        said = parity(
            capsys, "plan", "--parity-config", project(tmp_path, claims="[claims.x]\nwording = 1\n")
        )
        assert said.status == 4 and said.err.startswith("parity: claims/x.toml:")


class TestEngine:
    def test_list_shows_every_pin_and_how_to_get_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        said = parity(capsys, "engine", "list")
        assert (said.status, said.err) == (0, "")
        engines = [f"{name:<16} not built: parity engine build {name}" for name in ENGINE_PINS]
        models = [
            f"{name + ' ' + variant:<16} not there: parity engine model {name} {variant}"
            for name, pin in MODEL_PINS.items()
            for variant in pin.variants
        ]
        assert said.lines == engines + models
        assert engines and models and list(tmp_path.iterdir()) == []

    def test_list_shows_what_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(
            provision, "model_path", lambda name, variant: tmp_path if variant == "f32" else None
        )
        said = parity(capsys, "engine", "list")
        there = [line for line in said.lines if line.endswith(" there")]
        assert there and all(line.split()[1] == "f32" for line in there)

    @pytest.mark.parametrize(("action", "kind"), [("build", "engine"), ("model", "model")])
    def test_an_unknown_name(self, capsys: Capture, action: str, kind: str) -> None:
        said = parity(capsys, "engine", action, "nope")
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith(f"parity: {kind} 'nope': expected ")


class TestUsage:
    @pytest.mark.parametrize(
        "arguments", [[], ["nope"], ["ledger"], ["engine"], ["explain"], ["ledger", "publish"]]
    )
    def test_what_is_no_command_ends_with_status_2(self, arguments: list[str], capsys: Capture) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert "usage: parity" in capsys.readouterr().err

    def test_help_names_every_command(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["--help"])
        assert caught.value.code == 0
        shown = capsys.readouterr().out
        assert all(f"    {name} " in shown for name in ("plan", "verify", "explain", "ledger", "engine"))

    def test_an_interruption_ends_with_status_2(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        def interrupt(*args: object) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr("pytest_parity.commands.engine.listing", interrupt)
        said = parity(capsys, "engine", "list")
        assert (said.status, said.err) == (2, "parity: interrupted\n")

"""The README says what is true: its commands are the ones that CI runs, its output is of committed receipts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pytest_parity.configuration import load_configuration, load_register
from pytest_parity.core.canonical import parse

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def shell_blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


def output_block() -> str:
    found = re.search(
        r"<!-- output: main job -->\n```text\n(.*?)```\n<!-- end of output -->", README, re.DOTALL
    )
    assert found is not None
    return found.group(1)


def test_three_commands_and_the_first_one_sets_everything_up() -> None:
    main, tests, real = (block.strip() for block in shell_blocks())
    assert main.startswith("python3.11 -m venv .venv && ")
    assert main.endswith(".venv/bin/pytest -m parity --depths 2048,65536")
    assert tests == ".venv/bin/pytest"
    assert real.startswith(".venv/bin/parity engine build llama-cpp")
    assert "\n" not in main


def test_ci_runs_the_very_commands() -> None:
    assert re.search(r'^step 15 "suite" pytest$', CI, re.MULTILINE)
    assert 'bash .ci/main-job "$work/receipts"' in CI
    main_job = (ROOT / ".ci" / "main-job").read_text(encoding="utf-8")
    assert re.search(r"^pytest -m parity --depths 2048,65536 ", main_job, re.MULTILINE)
    assert '--claims "$(cat .ci/real-tier)" --depths 512,2048' in CI


def test_the_claim_shown_is_the_claim_in_the_register() -> None:
    shown = re.search(r"```toml\n(\[claims\.fused-decode\].*?)```", README, re.DOTALL)
    assert shown is not None
    registered = tomllib.loads((ROOT / "claims" / "embedded.toml").read_text(encoding="utf-8"))["claims"]
    assert tomllib.loads(shown.group(1))["claims"]["fused-decode"] == registered["fused-decode"]


def test_the_real_tier_names_claims_of_the_register() -> None:
    register = load_register(load_configuration(ROOT / "parity.toml"))
    names = (ROOT / ".ci" / "real-tier").read_text(encoding="utf-8").split(",")
    assert names
    assert set(names) <= set(register.claims)


def test_the_output_shows_a_pass_and_an_honest_non_pass() -> None:
    text = output_block()
    assert re.search(r"^PASS  fused-decode$", text, re.MULTILINE)
    assert re.search(r"^FAIL \(as expected\)  wrong-epsilon$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_every_figure_of_the_output_stands_in_committed_receipts() -> None:
    """Ratios and bounds are derived again from the receipts of the session that the output names."""
    from pytest_parity.commands.verify import judge_session, read_sessions

    session = re.search(r"session (\S+)$", output_block(), re.MULTILINE)
    assert session is not None
    sessions, bad = read_sessions(ROOT / "receipts")
    assert not bad
    verdicts = {verdict.claim.name: verdict for verdict in judge_session(sessions[session.group(1)])}
    rows = re.findall(
        r"^ +(\d+)  (\S+) +\d+ +([\d.]+)  \[([\d.]+), ([\d.]+)\] +(\w+)$", output_block(), re.MULTILINE
    )
    assert rows
    for depth, fixture, ratio, lower, upper, word in rows:
        cell = next(
            c
            for c in verdicts["fused-decode"].cells
            if (c.cell.depth, c.cell.fixture) == (int(depth), fixture)
        )
        assert cell.description is not None
        assert cell.decision is not None
        assert cell.decision.bounds is not None
        assert f"{cell.description.median_pair_ratio:.4f}" == ratio
        assert (f"{cell.decision.bounds.lower:.4f}", f"{cell.decision.bounds.upper:.4f}") == (lower, upper)
        assert cell.word == word


@pytest.mark.parametrize("name", ["q4-flash-attention", "numpy-equals-llama"])
def test_claims_about_real_engines_have_committed_receipts(name: str) -> None:
    found = [path for path in (ROOT / "receipts").glob("*.json") if f".{name}-d" in path.name]
    assert found
    body = parse(found[0].read_bytes())
    assert isinstance(body, dict)
    assert body["pair"]

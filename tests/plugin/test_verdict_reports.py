"""One run with every kind of outcome, in three modes: items, claims, JUnit, terminal and exit status agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project import GENERIC, MODES, Project, Ran, exact_claim, properties_of, speed_claim

TESTS = (
    GENERIC
    + """

def test_other():
    pass


import pytest


@pytest.mark.parity(claim="own")
def test_own(parity, candidate, reference, lease):
    assert (candidate, reference, lease) == ("e", "e", "cpu")
    assert parity.cell.depth == 64
    pair = parity.measure().exact(minimum_tokens=16)
    assert pair.timing().candidate.wall_s > 0
    pair.record()
"""
)
KNOWN = "another epsilon in the normaliser flips a token of natural prose"
CLAIMS = {
    "same": exact_claim(),
    "speed": speed_claim(pairs="6+6"),
    "drift": exact_claim(
        "drift",
        depths=[600],
        fixtures=["natural-prose"],
        expected=[{"verdict": "FAIL", "because": KNOWN}],
    ),
    "wrong": exact_claim("wrong"),
    "broken": exact_claim("broken"),
    "own": exact_claim(),
}
LANES = {
    "drift": ["--mutant", "epsilon-x10"],
    "wrong": ["--fault", "diverge-at=5"],
    "broken": ["--fault", "cut-stream=3"],
}
PAIRS = {
    "test_matrix.py::test_other": "passed",
    "same-d64-synthetic-r1": "passed",
    "same-d64-synthetic-r2": "passed",
    **{f"control-e-plain-d64-synthetic-r{rep}": "passed" for rep in range(1, 7)},
    **{f"speed-d64-synthetic-r{rep}": "passed" for rep in range(1, 7)},
    "drift-d600-natural-prose-r1": "xfailed",
    "drift-d600-natural-prose-r2": "skipped",
    "wrong-d64-synthetic-r1": "failed",
    "wrong-d64-synthetic-r2": "skipped",
    "broken-d64-synthetic-r1": "failed",
    "broken-d64-synthetic-r2": "failed",
    "own-d64-synthetic-r1": "passed",
    "own-d64-synthetic-r2": "passed",
}
WORDS = {"same": "passed", "drift": "xfailed", "wrong": "failed", "broken": "failed", "own": "passed"}
RAN: dict[str, tuple[Project, Ran]] = {}


@pytest.fixture(scope="module", params=list(MODES))
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Ran]:
    """The run in one mode; each mode is run once."""
    mode = str(request.param)
    project = Project(tmp_path_factory.mktemp(f"verdicts-{mode}"), lanes=LANES, claims=CLAIMS, tests=TESTS)
    RAN[mode] = project, project.run("-m", "parity or not parity", "-v", mode=mode)
    return RAN[mode]


def test_every_pair_and_every_claim_has_its_outcome(done: tuple[Project, Ran]) -> None:
    """The same set in every mode; a second look that is not needed leaves no item behind, not even a skip."""
    _, ran = done
    outcomes = dict(ran.outcomes)
    # A healthy control resolves a difference from itself once in 32 sessions: INVALID, and no pass.
    speed = outcomes.pop("claims/x.toml::speed")
    assert (speed, ran.claim("speed").properties["parity_verdict"]) in {
        ("passed", "PASS"),
        ("failed", "INVALID"),
    }
    assert outcomes == PAIRS | {f"claims/x.toml::{name}": word for name, word in WORDS.items()}
    assert ran.status == 1


def test_an_item_is_reported_once(done: tuple[Project, Ran]) -> None:
    _, ran = done
    nodeids = [report.nodeid for report in ran.reports]
    assert len(nodeids) == len(set(nodeids))
    items = {report.nodeid for report in ran.reports if "own-" in report.nodeid}
    assert items == {f"test_matrix.py::test_own[own-d64-synthetic-r{rep}]" for rep in (1, 2)}


def test_controls_run_before_the_cell_that_uses_them_and_claims_come_last(done: tuple[Project, Ran]) -> None:
    _, ran = done
    order = list(ran.outcomes)
    controls = [order.index(f"control-e-plain-d64-synthetic-r{rep}") for rep in range(1, 7)]
    cells = [order.index(f"speed-d64-synthetic-r{rep}") for rep in range(1, 7)]
    assert controls == sorted(controls)
    assert cells == sorted(cells)
    assert max(controls) < min(cells)
    assert {name.split("::")[0] for name in order[-6:]} == {"claims/x.toml"}
    assert order[-6:] == [f"claims/x.toml::{name}" for name in CLAIMS]


def test_the_reasons_are_told(done: tuple[Project, Ran]) -> None:
    _, ran = done
    assert ran.of("wrong-d64-synthetic-r2").word == "skipped"
    assert "diverged at r1" in ran.of("wrong-d64-synthetic-r2").text
    assert ran.of("wrong-d64-synthetic-r1").text.startswith("first difference at output token 5: candidate ")
    assert ran.claim("wrong").text.startswith("FAIL: 64 synthetic: diverged at r1: token 5 is ")
    assert (
        "INCOMPLETE: 64 synthetic: r1 is broken: candidate in phase measured request"
        in ran.claim("broken").text
    )
    assert "look 2 not needed" in ran.out or "INVALID  speed" in ran.out
    assert "FAIL (as expected)  drift" in ran.out
    assert f"expected FAIL, met: {KNOWN}"[:60] in ran.out


def test_the_terminal_lists_claims_as_tests(done: tuple[Project, Ran]) -> None:
    _, ran = done
    for name, word in WORDS.items():
        shown = {"xfailed": "XFAIL"}.get(word, word.upper())
        line = rf"claims/x\.toml::{name} ?.*{shown}|{shown} +claims/x\.toml::{name}"
        assert re.search(line, ran.out), name
    summary = ran.out.split("short test summary info")[1]
    assert "FAILED claims/x.toml::wrong" in summary  # newer pytest adds the reason, 8.0 does not
    assert "FAILED claims/x.toml::same" not in summary
    assert not re.search(r"(Traceback|INTERNALERROR|site-packages)", ran.out)


def test_junit_has_every_pair_and_claim_with_its_facts(done: tuple[Project, Ran]) -> None:
    project, ran = done
    cases = ran.cases()
    assert len(cases) == len(ran.outcomes)
    passed = properties_of(cases["same-d64-synthetic-r1"])
    assert passed["parity_outcome"] == "passed"
    assert passed["parity_exact_tokens"] == "16"
    assert float(passed["parity_ratio_wall_s"]) > 0
    assert (project.folder / f"{passed['parity_receipt']}.json").exists()
    assert properties_of(cases["broken-d64-synthetic-r1"])["parity_outcome"] == "broken"
    diverged = properties_of(cases["wrong-d64-synthetic-r1"])
    assert set(diverged) == {"parity_outcome", "parity_receipt"}
    assert cases["wrong-d64-synthetic-r1"].find("failure") is not None
    # JUnit counts what failed for known reasons as skipped.
    for name in ("drift-d600-natural-prose-r1",):
        assert cases[name].find("skipped") is not None
        assert KNOWN in str(cases[name].find("skipped").get("message"))  # type: ignore[union-attr]
    for name, word in {"same": "PASS", "drift": "FAIL", "wrong": "FAIL", "broken": "INCOMPLETE"}.items():
        claim = properties_of(cases[name])
        assert claim["parity_verdict"] == word
        assert claim["parity_held"] == str(name in ("same", "drift")).lower()
        assert claim["parity_sentence"]
    assert cases["wrong"].find("failure") is not None
    assert cases["drift"].find("failure") is None
    lower = float(properties_of(cases["speed"]).get("parity_minimum_lower_bound", "1"))
    assert 0 < lower < 100


def test_a_report_is_never_ahead_of_its_receipt(done: tuple[Project, Ran]) -> None:
    project, ran = done
    receipts = project.receipts()
    assert set(receipts) == {
        name for name in PAIRS if name.endswith(("-r1", "-r2", "-r3", "-r4", "-r5", "-r6"))
    } - {
        "drift-d600-natural-prose-r2",
        "wrong-d64-synthetic-r2",
    }
    for report in ran.reports:
        if "parity_receipt" in report.properties:
            assert (project.folder / f"{report.properties['parity_receipt']}.json").exists()
    assert len(project.sessions()) == 1
    assert project.engines() == []
    assert project.lease_is_free()


def test_sides_alternate_from_pair_to_pair(done: tuple[Project, Ran]) -> None:
    project, _ = done
    receipts = project.receipts()
    orders = [receipts[f"speed-d64-synthetic-r{rep}"]["order"] for rep in range(1, 7)]
    assert orders == ["RC", "CR"] * 3
    first = [receipts[f"speed-d64-synthetic-r{rep}"]["sides"]["reference"]["position"] for rep in range(1, 7)]
    assert first == [1, 2] * 3


@pytest.mark.parametrize("mode", MODES)
def test_a_first_failure_stops_the_run_and_still_gives_verdicts(tmp_path: Path, mode: str) -> None:
    claims = {"wrong": exact_claim("wrong"), "same": exact_claim()}
    project = Project(tmp_path, lanes=LANES, claims=claims)
    ran = project.run("-m", "parity", "-x", mode=mode)
    assert ran.outcomes["wrong-d64-synthetic-r1"] == "failed"
    assert ran.claim("wrong").text.startswith("FAIL: ")
    assert ran.claim("same").word in ("failed", "passed")
    assert "parity: verdicts" in ran.out
    assert "INTERNALERROR" not in ran.out
    # xdist ends an early stop as an interruption.
    assert ran.status == (2 if mode == "n2" else 1)
    if mode != "n2":
        assert set(ran.outcomes) == {"wrong-d64-synthetic-r1", "claims/x.toml::wrong", "claims/x.toml::same"}
        assert ran.claim("same").text.startswith("INCOMPLETE: 64 synthetic: not measured: r1, r2")

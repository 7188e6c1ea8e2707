"""2 interrupted, 4 unreadable, 1 something asked for did not hold, 75 the lease, 5 nothing, 0 all holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import GENERIC, MODES, Project, exact_claim, speed_claim

KNOWN = "another epsilon in the normaliser flips a token of natural prose"
LANES = {"drift": ["--mutant", "epsilon-x10"], "wrong": ["--fault", "diverge-at=5"]}
EXPECTED = [{"verdict": "FAIL", "because": KNOWN}]


def test_zero_when_all_holds_a_failure_that_is_expected_too(tmp_path: Path) -> None:
    claims = {
        "same": exact_claim(),
        "drift": exact_claim("drift", depths=[600], fixtures=["natural-prose"], expected=EXPECTED),
    }
    ran = Project(tmp_path, claims=claims, lanes=LANES).run("-m", "parity")
    assert ran.status == 0
    assert ran.outcomes == {
        "same-d64-synthetic-r1": "passed",
        "same-d64-synthetic-r2": "passed",
        "drift-d600-natural-prose-r1": "xfailed",
        "drift-d600-natural-prose-r2": "skipped",
        "claims/x.toml::same": "passed",
        "claims/x.toml::drift": "xfailed",
    }
    assert KNOWN in ran.out


def test_one_when_what_should_fail_is_exact(tmp_path: Path) -> None:
    ran = Project(tmp_path, claims={"hoped": exact_claim(expected=EXPECTED)}).run("-m", "parity")
    assert ran.status == 1
    assert ran.outcomes == {
        "hoped-d64-synthetic-r1": "passed",
        "hoped-d64-synthetic-r2": "passed",
        "claims/x.toml::hoped": "failed",
    }
    assert ran.claim("hoped").properties["parity_verdict"] == "PASS"
    assert f"expected FAIL: {KNOWN}" in ran.claim("hoped").text


def test_one_when_nothing_can_be_resolved_and_when_the_bar_is_missed(tmp_path: Path) -> None:
    """Going first costs the candidate half of its speed: no rule can call that parity, or its absence."""
    claims = {
        "uneven": {
            **speed_claim("uneven"),
            "metric": "wall_s",
            "margin": 0.01,
            "output_tokens": 200,
            "exactness": "tokens",
        },
        "tiny": {**speed_claim(), "kind": "at-least", "threshold": 5.0, "pairs": "5"},
    }
    del claims["tiny"]["margin"]
    lanes = {**LANES, "uneven": ["--fault", "slow-first=70", "--position", "{position}"]}
    ran = Project(tmp_path, claims=claims, lanes=lanes).run("-m", "parity")
    assert ran.status == 1
    # A healthy control resolves a difference from itself once in 32 sessions: INVALID.
    assert ran.claim("uneven").properties["parity_verdict"] in ("UNRESOLVED", "INVALID")
    assert ran.claim("tiny").properties["parity_verdict"] in ("MISS", "INVALID")
    for name in claims:
        assert ran.claim(name).word == "failed"
        assert ran.outcomes[f"{name}-d64-synthetic-r5"] == "passed"  # speed never fails a pair


def test_a_control_is_never_filtered_out(tmp_path: Path) -> None:
    ran = Project(tmp_path, claims={"lean": speed_claim(pairs="5")}).run(
        "-m", "parity", "-k", "lean and not control"
    )
    names = [f"control-e-plain-d64-synthetic-r{rep}" for rep in range(1, 7)]
    assert list(ran.outcomes)[:6] == names
    assert ran.claim("lean").properties["parity_verdict"] in ("PASS", "INVALID")
    assert ran.status == (0 if ran.claim("lean").word == "passed" else 1)


@pytest.mark.parametrize("mode", MODES)
def test_75_when_somebody_else_holds_the_lease(tmp_path: Path, mode: str) -> None:
    project = Project(tmp_path, claims={"same": exact_claim(), "lean": speed_claim()})
    with project.lease_held() as pid:
        ran = project.run("-m", "parity", mode=mode)
    assert ran.status == 75
    report = ran.of("same-d64-synthetic-r1")
    assert report.word == "failed"
    assert report.properties["parity_cause"] == "lease"
    assert "lease of cpu" in report.text
    assert "expected nobody to hold it; found it held by pid" in report.text
    assert f"pid {pid} (sleep 300)" in ran.out
    assert "the lease was not to be had: r1, r2" in ran.claim("same").text
    assert "the lease was not to be had for 14 pairs (exit status 75)" in ran.out
    assert not project.receipts()
    assert not project.intents()


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_one_comes_before_75(tmp_path: Path, mode: str) -> None:
    tests = GENERIC + "\n\ndef test_other():\n    assert not 'an ordinary failure'\n"
    project = Project(tmp_path, claims={"same": exact_claim()}, tests=tests)
    with project.lease_held():
        ran = project.run("-m", "parity or not parity", mode=mode)
    assert ran.status == 1
    assert ran.outcomes["test_matrix.py::test_other"] == "failed"
    assert ran.claim("same").properties["parity_verdict"] == "INCOMPLETE"


def test_a_refused_pair_comes_before_75(tmp_path: Path) -> None:
    claims = {"same": exact_claim(), "vacuous": exact_claim("plain")}
    project = Project(tmp_path, claims=claims)
    with project.lease_held():
        ran = project.run("-m", "parity")
    assert ran.status == 1
    assert "refused: claim vacuous: candidate and reference" in ran.of("vacuous-d64-synthetic-r1").text


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_pair_by_its_node_id_is_diagnostic(tmp_path: Path, mode: str) -> None:
    """Exactness alone decides, no control is planned, and nothing is said about speed."""
    project = Project(tmp_path, claims={"lean": speed_claim(), "wrong": exact_claim("wrong")}, lanes=LANES)
    ran = project.run("test_matrix.py::test_cell[lean-d64-synthetic-r2]", mode=mode)
    assert ran.status == 0
    assert ran.outcomes == {"lean-d64-synthetic-r2": "passed", "claims/x.toml::lean": "skipped"}
    assert ran.claim("lean").properties["parity_verdict"] == "INCOMPLETE"
    assert "diagnostic: 1 pair of another plan than '6'" in ran.claim("lean").text
    assert set(project.receipts()) == {"lean-d64-synthetic-r2"}
    assert "exact bounds" in ran.out
    row = next(line for line in ran.out.splitlines() if line.endswith(" diagnostic"))
    assert row.split() == ["64", "synthetic", "1", "-", "-", "diagnostic"]
    ran = project.run("test_matrix.py::test_cell[wrong-d64-synthetic-r2]", mode=mode)
    assert ran.status == 1
    assert ran.claim("wrong").properties["parity_verdict"] == "FAIL"


def test_a_pair_is_named_through_a_linked_folder_too(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    project = Project(tmp_path / "real", claims={"same": exact_claim()})
    node = f"{tmp_path / 'link'}/test_matrix.py::test_cell[same-d64-synthetic-r1]"
    ran = project.run(node)
    assert "same-d64-synthetic-r1" in ran.outcomes
    assert ran.status == 0


class TestGate:
    """Under a gate a claim that is not whole fails, whatever holds of the rest."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Project:
        claims = {"same": exact_claim(depths=[64, 96]), "far": exact_claim("fused", candidate="absent")}
        missing = {"binary": "no-such-program", "argv": ["{binary}", "--port", "{port}"]}
        gates = {"release": ["same"], "both": ["same", "far"]}
        return Project(tmp_path, claims=claims, gates=gates, more_engines={"absent": missing})

    def test_a_whole_claim_passes(self, project: Project) -> None:
        ran = project.run("--parity-gate", "release")
        assert ran.status == 0
        assert ran.claim("same").word == "passed"

    @pytest.mark.parametrize("options", [("--depths", "64"), ("-k", "d64"), ("--reps", "1")], ids=str)
    def test_a_filtered_claim_fails(self, project: Project, options: tuple[str, ...]) -> None:
        ran = project.run("--parity-gate", "release", *options)
        assert {word for name, word in ran.outcomes.items() if "claims" not in name} == {"passed"}
        assert ran.claim("same").word == "failed"
        assert "gate release takes whole claims only; same-d" in ran.claim("same").text
        assert ran.status == 1

    def test_a_claim_whose_engine_is_not_here_fails(self, project: Project) -> None:
        ran = project.run("--parity-gate", "both", "-k", "r1")
        assert ran.claim("far").word == "failed"
        assert "not asked: absent: its binary no-such-program is not installed." in ran.claim("far").text
        assert ran.status == 1
        # Without a gate it is only listed.
        ran = project.run("--parity-plan", "-m", "parity")
        assert "not asked: far: absent: its binary no-such-program is not installed." in ran.out

    @pytest.mark.parametrize("mode", MODES)
    def test_a_gate_over_no_test_fails(self, project: Project, mode: str) -> None:
        """Nothing measured is no pass: not with a filter that leaves nothing, not without a test."""
        ran = project.run("--parity-gate", "release", "-k", "nowhere", mode=mode)
        assert ran.status == 1
        assert ran.claim("same").word == "failed"
        assert "not asked: no test of this run measures it" in ran.claim("same").text

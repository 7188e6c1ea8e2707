"""The three words of a claim test, and everything that can be done wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import Project, Ran, exact_claim

TESTS = """
import pytest

def own(claim):
    return pytest.mark.parity(claim=claim)

def test_cell(parity):
    parity.measure().exact().record()

@own("good")
def test_good(parity):
    timing = parity.measure().exact(minimum_tokens=16).timing()
    assert timing.candidate.wall_s > 0
    parity._pair.record()

@own("no-record")
def test_no_record(parity):
    parity.measure().exact()

@own("no-exact")
def test_no_exact(parity):
    parity.measure()

@own("no-measure")
def test_no_measure(parity):
    pass

@own("twice")
def test_twice(parity):
    parity.measure().exact()
    parity.measure()

@own("asserts")
def test_asserts(parity):
    pair = parity.measure().exact()
    assert pair.timing().candidate.wall_s > 1000, "too fast"
    pair.record()

@own("asserts-early")
def test_asserts_early(parity):
    pair = parity.measure()
    assert pair.rep == 1

@own("early-timing")
def test_early_timing(parity):
    parity.measure().timing()

@own("early-record")
def test_early_record(parity):
    parity.measure().record()

@own("lanes")
def test_lanes(parity):
    parity.measure(lanes=("fused", "plain")).exact().record()

@own("other-lanes")
def test_other_lanes(parity):
    parity.measure(lanes=("plain", "fused")).exact().record()

@own("same-lanes")
def test_same_lanes(parity):
    parity.measure(lanes=("plain", "plain")).exact().record()

@own("no-lane")
def test_no_lane(parity):
    parity.measure(lanes=("quick", "plain")).exact().record()

@own("minimum")
def test_minimum(parity):
    parity.measure().exact(minimum_tokens=17).record()

@own("swallows")
def test_swallows(parity):
    with pytest.raises(AssertionError):
        parity.measure().exact().record()

@own("diverged-assert")
def test_diverged_assert(parity):
    pair = parity.measure()
    assert not pair, "ends before exact"

@own("skips")
def test_skips(parity):
    pytest.skip("not today")

@own("records-twice")
def test_records_twice(parity):
    pair = parity.measure().exact()
    pair.record()
    pair.record()
"""
NAMES = [line.split('"')[1] for line in TESTS.splitlines() if line.startswith("@own(")]
WRONG = ("swallows", "diverged-assert")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(
        tmp_path_factory.mktemp("custom"),
        lanes={"wrong": ["--fault", "diverge-at=5"]},
        claims={name: exact_claim("wrong" if name in WRONG else "fused") for name in [*NAMES, "generic"]},
        tests=TESTS,
    )


@pytest.fixture(scope="module")
def ran(project: Project) -> Ran:
    return project.run("-m", "parity", "--reps", "1")


def _pair(name: str) -> str:
    return f"{name}-d64-synthetic-r1"


OUTCOMES = {
    "good": ("passed", "", "passed"),
    "no-record": ("failed", "the pair was measured and not recorded: end with .record()", "void"),
    "no-exact": ("failed", "the pair was measured and not recorded: end with .record()", "void"),
    "no-measure": (
        "failed",
        "nothing was measured: a parity test calls parity.measure().exact().record()",
        None,
    ),
    "twice": ("failed", "measure() was called twice: a pair is measured once", "void"),
    "asserts": ("failed", "too fast", "void"),
    "asserts-early": ("failed", "AttributeError", "void"),
    "early-timing": ("failed", "'MeasuredPair' object has no attribute 'timing'", "void"),
    "early-record": ("failed", "record() before exact(): exactness comes first, whatever the claim", "void"),
    "lanes": ("passed", "", "passed"),
    "other-lanes": ("passed", "", "passed"),
    "same-lanes": (
        "failed",
        "refused: claim same-lanes: candidate and reference: expected two configurations that differ",
        "refused",
    ),
    "no-lane": (
        "failed",
        "lane 'quick' of e: expected one of plain, fused, wrong; found 'quick'. Describe it under",
        None,
    ),
    "minimum": (
        "failed",
        "exactness: expected at least 17 output tokens on both sides; found 16.",
        "void",
    ),
    "swallows": ("failed", "the pair is diverged, and the test went on as if it were not", "diverged"),
    "diverged-assert": ("failed", "ends before exact", "void"),
    "skips": ("skipped", "not today", None),
    "records-twice": ("failed", "receipt ", "passed"),
}


def test_every_case_is_listed() -> None:
    assert list(OUTCOMES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_way_has_its_outcome_its_words_and_its_receipt(project: Project, ran: Ran, name: str) -> None:
    word, text, outcome = OUTCOMES[name]
    report = ran.of(_pair(name))
    assert report.word == word
    assert text in report.text
    assert project.receipts().get(_pair(name), {}).get("outcome") == outcome
    # A receipt is on disk before its item reports.
    assert report.properties.get("parity_outcome") == outcome


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_holds_only_where_its_pair_passed(ran: Ran, name: str) -> None:
    verdict = ran.claim(name)
    held = name in ("good", "lanes", "records-twice")
    assert verdict.properties["parity_held"] == str(held).lower()
    assert verdict.word == ("skipped" if held else "failed")
    assert verdict.properties["parity_verdict"] == ("FAIL" if name == "swallows" else "INCOMPLETE")
    assert ran.status == 1


def test_lanes_that_the_claim_does_not_name_say_nothing_about_it(ran: Ran) -> None:
    assert (
        "other engines or lanes were measured than the claim names: e/plain against e/fused"
        in ran.claim("other-lanes").text
    )


def test_every_claim_has_one_test(ran: Ran) -> None:
    items = sorted(report.nodeid for report in ran.reports if report.nodeid.startswith("test_matrix.py"))
    own = [f"test_matrix.py::test_{name.replace('-', '_')}[{_pair(name)}]" for name in NAMES]
    assert items == sorted([*own, f"test_matrix.py::test_cell[{_pair('generic')}]"])


@pytest.mark.parametrize("name", ["no-record", "asserts", "twice", "no-exact", "asserts-early"])
def test_a_void_pair_that_was_equal_keeps_its_times(project: Project, ran: Ran, name: str) -> None:
    receipt = project.receipts()[_pair(name)]
    assert receipt["reason"] == {"code": "test-ended", "sentence": "the test ended before record()"}
    assert receipt["timing"] is None
    for side in receipt["sides"].values():
        assert len(side["words"]["output_ids"]) == 16
        assert side["clockwork"]["end_after_ns"] > 0


def test_a_void_pair_that_was_not_equal_keeps_none(project: Project, ran: Ran) -> None:
    receipt = project.receipts()[_pair("diverged-assert")]
    assert receipt["outcome"] == "void"
    for side in receipt["sides"].values():
        assert len(side["words"]["output_ids"]) == 16
        assert side["clockwork"] is None


def test_what_the_test_asked_for_is_in_the_receipt(project: Project, ran: Ran) -> None:
    receipts = project.receipts()
    assert receipts[_pair("good")]["minimum_tokens"] == 16
    lanes = {role: side["lane"] for role, side in receipts[_pair("other-lanes")]["sides"].items()}
    assert lanes == {"candidate": "plain", "reference": "fused"}
    assert receipts[_pair("same-lanes")]["sides"]["candidate"]["phase"] == "not started"


def test_refusals_start_nothing(project: Project, ran: Ran) -> None:
    begun = {intent["pair"] for intent in project.intents()}
    assert begun == {_pair(name) for name in [*NAMES, "generic"] if OUTCOMES.get(name, ("", "", "x"))[2]} - {
        _pair("same-lanes"),
    }


def test_a_filter_does_not_give_a_claim_back_to_the_generic_test(project: Project) -> None:
    """Whose test a claim is doesn't depend on what ``-k`` leaves."""
    ran = project.run("--parity-plan", "-k", "test_cell")
    assert "1 pair" in ran.out or "2 pairs" in ran.out
    assert "good-d64" not in ran.out
    assert "generic-d64-synthetic" in ran.out


def test_a_claims_marker_without_the_fixture_measures_nothing_and_fails(tmp_path: Path) -> None:
    source = 'import pytest\n\n\n@pytest.mark.parity(claim="same")\ndef test_ok():\n    pass\n'
    project = Project(tmp_path, claims={"same": exact_claim("fused")}, tests=source)
    ran = project.run("-m", "parity")
    assert ran.status == 1, ran.out
    assert "nothing was measured: the test takes no 'parity' fixture" in ran.out

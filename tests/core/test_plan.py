"""From claims to pairs: the order of the sides, controls, filters, and ids that can be file names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from factories import UNHURRIED, a_claim
from hypothesis import given
from hypothesis import strategies as st

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.core.claims import PLANS, Claim
from pytest_parity.core.plan import (
    CONTROL_PAIRS,
    Cell,
    Filter,
    PairPlan,
    SessionPlan,
    control_key,
    declared_cells,
    fixture_slug,
    make_plan,
    order_of,
)
from pytest_parity.core.stats import CONTROL_PAIRS as STATS_CONTROL_PAIRS
from pytest_parity.core.stats import plan as stat_plan
from pytest_parity.errors import ConfigurationError, NothingCompared

EVERYTHING = Filter()


def ids(plan: SessionPlan) -> list[str]:
    return [pair.id for pair in plan.pairs]


def controls_of(plan: SessionPlan) -> list[PairPlan]:
    return [pair for pair in plan.pairs if pair.cell.control_of is not None]


# --- the order of the sides (T02, T34) -------------------------------------------------------------------


def test_the_order_is_reference_first_then_candidate_first() -> None:
    assert [order_of(rep) for rep in range(1, 7)] == ["RC", "CR", "RC", "CR", "RC", "CR"]


def positions(orders: Sequence[str], side: str) -> int:
    """The sum of the places that ``side`` had in the session: 1 for the first run, 2 for the second, …"""
    return sum(2 * pair + (1 if order[0] == side else 2) for pair, order in enumerate(orders))


@pytest.mark.parametrize("name", PLANS)
def test_over_an_even_plan_each_side_goes_first_equally_often(name: str) -> None:
    orders = [order_of(rep) for rep in range(1, PLANS[name][-1] + 1)]
    first = [order[0] for order in orders]
    uneven = len(orders) % 2
    assert first.count("R") - first.count("C") == uneven
    assert positions(orders, "C") - positions(orders, "R") == uneven, "position sums balance"


def test_position_sums_would_tell_a_blocked_order() -> None:
    assert positions(["RC"] * 6, "C") - positions(["RC"] * 6, "R") == 6


def test_plans_of_the_register_are_plans_of_the_statistics() -> None:
    for name, looks in PLANS.items():
        if name != "2":
            assert tuple(look.pairs for look in stat_plan(name).looks) == looks
    assert CONTROL_PAIRS == STATS_CONTROL_PAIRS == PLANS["6"][-1]


def test_every_rep_of_every_cell_once_and_in_order() -> None:
    claim = a_claim(
        depths=[2048, {"depth": 8192, "pairs": "5", "output_tokens": 64}],
        fixtures=["synthetic", "natural-code"],
    )
    plan = make_plan([claim], EVERYTHING)
    assert [cell.id for cell in plan.cells()] == [
        "control-theirs-plain-d2048-synthetic",
        "decode-d2048-synthetic",
        "decode-d2048-natural-code",
        "decode-d8192-synthetic",
        "decode-d8192-natural-code",
    ]
    for cell in plan.cells():
        reps = [pair.rep for pair in plan.pairs if pair.cell == cell]
        assert reps == list(range(1, (5 if cell.depth == 8192 else 6) + 1))
    deep = plan.cells()[3]
    assert (deep.output_tokens, deep.plan, deep.pairs, deep.first_look) == (64, "5", 5, 5)
    assert plan.cells()[1].output_tokens == 256
    assert (
        Cell("c", "plain", 1, "synthetic", 1, "6+6").pairs,
        Cell("c", "plain", 1, "synthetic", 1, "6+6").first_look,
    ) == (12, 6)
    assert plan.by_id()["decode-d2048-synthetic-r2"].order == "CR"
    assert not plan.not_asked


# --- controls --------------------------------------------------------------------------------------------


def test_a_control_comes_before_the_first_cell_that_uses_it_and_only_once() -> None:
    exact = a_claim("tokens", kind="exact")
    claims = [exact, a_claim("decode"), a_claim("prefill", metric="prefill_tps")]
    plan = make_plan(claims, EVERYTHING)
    found = controls_of(plan)
    assert [pair.rep for pair in found] == [1, 2, 3, 4, 5, 6]
    assert {pair.cell.plan for pair in found} == {"6"}
    at = ids(plan).index("control-theirs-plain-d2048-synthetic-r1")
    assert ids(plan)[at - 1] == "tokens-d2048-synthetic-r2"
    assert ids(plan)[at + 6] == "decode-d2048-synthetic-r1"


def test_a_control_lies_at_the_shallowest_asked_depth_and_the_first_fixture_class() -> None:
    deep = a_claim("deep", depths=[65_536], fixtures=["natural-code", "synthetic"])
    wide = a_claim("wide", depths=[8192, 2048, 16_384], fixtures=["natural-prose", "synthetic"])
    (cell,) = {pair.cell for pair in controls_of(make_plan([deep, wide], EVERYTHING))}
    assert (cell.depth, cell.fixture, cell.lane, cell.control_of) == (
        2048,
        "natural-prose",
        "plain",
        "theirs/plain",
    )
    (cell,) = {pair.cell for pair in controls_of(make_plan([deep, wide], Filter(depths=(16_384, 65_536))))}
    assert (cell.depth, cell.fixture) == (16_384, "natural-prose")


def test_a_fixture_filter_never_filters_the_control_out() -> None:
    claim = a_claim(fixtures=["natural-prose", "synthetic"])
    (cell,) = {pair.cell for pair in controls_of(make_plan([claim], Filter(fixtures=("synthetic",))))}
    assert cell.fixture == "natural-prose", "the first fixture class of the claim"


def test_one_control_for_each_reference_and_lane() -> None:
    claims = [
        a_claim("a"),
        a_claim("b", lane="fast"),
        a_claim("c", lane="fast", reference_lane="plain"),
        a_claim("d", reference="others"),
    ]
    plan = make_plan(claims, EVERYTHING)
    assert [cell.id for cell in plan.cells() if cell.control_of] == [
        "control-theirs-plain-d2048-synthetic",
        "control-theirs-fast-d2048-synthetic",
        "control-others-plain-d2048-synthetic",
    ]
    assert [control_key(claim) for claim in claims] == [
        "theirs/plain",
        "theirs/fast",
        "theirs/plain",
        "others/plain",
    ]


@pytest.mark.parametrize("fields", [{"kind": "exact"}, {"kind": "reported", "metric": "decode_tps"}])
def test_claims_that_no_speed_decides_need_no_control(fields: dict[str, str]) -> None:
    assert controls_of(make_plan([a_claim(**fields)], EVERYTHING)) == []


@pytest.mark.parametrize("only", [Filter(reps=2), Filter(reps=7), Filter(pairs="5")])
def test_another_number_of_pairs_plans_no_control(only: Filter) -> None:
    assert only.other_plan(declared_cells(a_claim())[0])
    assert controls_of(make_plan([a_claim()], only)) == []


@pytest.mark.parametrize("only", [Filter(reps=6), Filter(pairs="6"), Filter()])
def test_the_declared_plan_asked_for_by_name_is_no_other_plan(only: Filter) -> None:
    assert not only.other_plan(declared_cells(a_claim())[0])
    assert len(controls_of(make_plan([a_claim()], only))) == 6


def test_a_control_and_its_cells_are_one_group_and_exact_cells_are_their_own() -> None:
    exact = a_claim("tokens", kind="exact", depths=[16, 32])
    plan = make_plan([exact, a_claim("decode"), a_claim("other", reference="others")], EVERYTHING)
    groups = {pair.cell.id: pair.group for pair in plan.pairs}
    assert groups == {
        "tokens-d16-synthetic": "tokens-d16-synthetic",
        "tokens-d32-synthetic": "tokens-d32-synthetic",
        "control-theirs-plain-d2048-synthetic": "theirs/plain",
        "decode-d2048-synthetic": "theirs/plain",
        "control-others-plain-d2048-synthetic": "others/plain",
        "other-d2048-synthetic": "others/plain",
    }


# --- filters ---------------------------------------------------------------------------------------------

MATRIX = {"depths": [2048, 8192, 131_008], "fixtures": ["synthetic", "natural-prose"]}
options = st.builds(
    Filter,
    depths=st.none() | st.lists(st.sampled_from((2048, 8192, 131_008)), min_size=1, unique=True).map(tuple),
    fixtures=st.none()
    | st.lists(st.sampled_from(("synthetic", "natural-prose")), min_size=1, unique=True).map(tuple),
)


@UNHURRIED
@given(options)
def test_a_filter_never_widens(only: Filter) -> None:
    claim = a_claim(kind="exact", **MATRIX)
    left = make_plan([claim], only).cells()
    assert set(left) <= set(declared_cells(claim))
    assert list(left) == [
        cell
        for cell in declared_cells(claim)
        if (only.depths is None or cell.depth in only.depths)
        and (only.fixtures is None or cell.fixture in only.fixtures)
    ]


MEND = "Options filter cells and never widen a claim: declare the cell in the register first."


def test_a_depth_that_no_claim_declares_is_an_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_plan([a_claim(**MATRIX)], Filter(depths=(2048, 2049, 4096)))
    assert str(caught.value) == (
        "--depths 2049,4096: expected values that the asked claims declare: 2048, 8192, 131008; "
        f"found 2049, 4096. {MEND}"
    )


def test_a_fixture_class_that_no_claim_declares_is_an_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_plan([a_claim(**MATRIX)], Filter(fixtures=("natural-code",)))
    assert str(caught.value) == (
        "--fixture-class natural-code: expected values that the asked claims declare: natural-prose, synthetic; "
        f"found natural-code. {MEND}"
    )


def test_nothing_no_claim_is_no_plan() -> None:
    with pytest.raises(NothingCompared) as caught:
        make_plan([], EVERYTHING)
    assert str(caught.value) == (
        "the plan: expected at least one claim; found none. Name one with --claims, or write one."
    )


def test_claims_without_a_cell_or_without_an_engine_are_not_asked() -> None:
    claims = [a_claim("shallow"), a_claim("deep", depths=[8192]), a_claim("elsewhere", candidate="absent")]

    def installed(claim: Claim) -> str | None:
        return "absent is not installed." if claim.candidate == "absent" else None

    plan = make_plan(claims, Filter(depths=(2048,)), installed)
    assert plan.not_asked == (("deep", "no cell in the filter"), ("elsewhere", "absent is not installed."))
    assert {cell.claim for cell in plan.cells()} == {"control-theirs-plain", "shallow"}


def test_a_claim_that_is_not_asked_has_no_control() -> None:
    plan = make_plan([a_claim()], EVERYTHING, lambda claim: "not installed")
    assert plan.pairs == ()


@pytest.mark.parametrize(
    ("only", "reps"), [(Filter(reps=1), 1), (Filter(reps=9), 9), (Filter(pairs="6+6"), 12)]
)
def test_another_number_of_pairs(only: Filter, reps: int) -> None:
    assert [pair.rep for pair in make_plan([a_claim()], only).pairs] == list(range(1, reps + 1))


# --- ids -------------------------------------------------------------------------------------------------

names = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,79}\Z")
paths = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60
).map(lambda path: f"file:{path}.txt")


@UNHURRIED
@given(
    names,
    st.lists(paths | st.sampled_from(("synthetic", "natural-code")), min_size=1, max_size=4, unique=True),
)
def test_ids_are_unique_and_safe_as_file_names(name: str, fixtures: list[str]) -> None:
    plan = make_plan([a_claim(name, kind="exact", fixtures=fixtures, depths=[16, 131_008])], EVERYTHING)
    assert len(set(ids(plan))) == len(plan.pairs) == 4 * len(fixtures)
    for found in ids(plan):
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", found), "no separator, no space, no leading dot"
        assert len(found) < 200


@UNHURRIED
@given(st.lists(paths, min_size=2, max_size=2, unique=True))
def test_two_files_never_share_a_slug(two: list[str]) -> None:
    assert fixture_slug(two[0]) != fixture_slug(two[1])


def test_files_of_one_name_in_two_folders_differ_and_stay_readable() -> None:
    one, other = fixture_slug("file:a/x.txt"), fixture_slug("file:b/x.txt")
    assert one == "file-x.txt-" + hashlib.sha256(b"a/x.txt").hexdigest()[:6]
    assert one != other and other.startswith("file-x.txt-")


@pytest.mark.parametrize(
    "claims",
    [
        [a_claim("control-theirs-plain"), a_claim("decode")],
        [a_claim("a", reference="x-y", lane="z"), a_claim("b", reference="x", lane="y-z")],
        [a_claim("same"), a_claim("same")],
    ],
)
def test_two_pairs_of_one_id_are_refused(claims: list[Claim]) -> None:
    with pytest.raises(
        ConfigurationError, match="expected an id that one pair of the session has; found two: of "
    ):
        make_plan(claims, EVERYTHING)


def test_the_refusal_names_both_owners() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_plan([a_claim("same", kind="exact")] * 2, EVERYTHING)
    assert str(caught.value) == (
        "pair same-d2048-synthetic-r1: expected an id that one pair of the session has; found two: of "
        "same at 2048 synthetic and of same at 2048 synthetic. "
        "Rename a claim, a lane or a file: names of controls are control-REFERENCE-LANE."
    )


# --- one plan, always the same ---------------------------------------------------------------------------


def fingerprint(plan: SessionPlan) -> str:
    return hashlib.sha256(
        canonical_bytes([{**asdict(pair), "order": pair.order} for pair in plan.pairs])
    ).hexdigest()


@UNHURRIED
@given(options)
def test_planning_twice_gives_the_same_plan(only: Filter) -> None:
    claims = [a_claim("decode", **MATRIX), a_claim("tokens", kind="exact", **MATRIX)]
    again = [a_claim("decode", **MATRIX), a_claim("tokens", kind="exact", **MATRIX)]
    assert make_plan(claims, only) == make_plan(again, only)


def test_the_plan_of_a_known_register_is_known() -> None:
    plan = make_plan([a_claim("decode", **MATRIX), a_claim("tokens", kind="exact", **MATRIX)], EVERYTHING)
    assert len(plan.pairs) == 6 + 36 + 12
    assert fingerprint(plan) == "d18552621acae624cc60366d9730b6a078b710ae45978631160221c088ada4d5"

"""The deciding half of the statistics: exact levels, bounds, the control, and every word of a cell."""

from __future__ import annotations

import math
import pickle
from typing import Literal

import pytest

from pytest_parity.core.stats import (
    ALPHA,
    E_THRESHOLD,
    PLAN_NAMES,
    CellDecision,
    ControlState,
    control,
    decide,
    holm,
    largest_sign_k,
    largest_walsh_k,
    pair_log_ratios,
    plan,
    plan_p,
    sign_bounds,
    sign_cdf,
    sign_e_value,
    signed_rank_cdf,
    signed_rank_p,
    walsh_bounds,
)
from pytest_parity.errors import ConfigurationError, NothingCompared, TimingUnreadable

# Five pairs of a published campaign (one engine against pinned llama.cpp, tokens per second).
DECODE = ((35.0973, 35.0850, 35.1586, 35.1939, 35.1910), (33.3817, 33.3035, 33.4304, 33.4261, 33.4900))
PREFILL = (
    (317.6623, 317.4944, 317.8869, 317.5583, 317.9913),
    (306.5062, 306.3196, 306.3874, 306.2955, 305.9840),
)

# Two pairs in either order of another campaign (decode tokens per second, Rust and original).
TWO_ORDERS = {
    "AR Summary": ((26.129, 23.569), (24.711, 25.535)),
    "AR Story": ((24.553, 21.743), (23.728, 24.186)),
    "AR Python": ((24.964, 21.107), (24.520, 24.898)),
}


def logs(*ratios: float) -> tuple[float, ...]:
    return tuple(math.log(ratio) for ratio in ratios)


def judged(
    ratios: tuple[float, ...],
    name: str,
    threshold: float,
    floor: float | None = 0.001,
    state: ControlState = "clean",
) -> CellDecision:
    return decide(logs(*ratios), plan(name), threshold, floor, state)


# --- plans and exact levels ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "looks", "total"),
    [
        ("5", [(5, 0, 1 / 32)], 0.03125),
        ("6", [(6, 2, 3 / 64)], 0.0469),
        ("6+6", [(6, 0, 1 / 64), (12, 15, 0.0320)], 0.0476),
        ("5+5", [(5, 0, 1 / 32), (10, 7, 0.0186)], 0.0498),
    ],
)
def test_each_plan_has_the_published_looks_and_spends_the_published_alpha(
    name: str, looks: list[tuple[int, int, float]], total: float
) -> None:
    declared = plan(name)
    assert [(look.pairs, look.walsh_k) for look in declared.looks] == [look[:2] for look in looks]
    assert [round(look.alpha, 4) for look in declared.looks] == [round(look[2], 4) for look in looks]
    assert round(declared.total_alpha, 4) == round(total, 4)
    assert declared.total_alpha <= ALPHA


def test_the_table_of_plans_is_the_list_of_names() -> None:
    assert PLAN_NAMES == ("5", "6", "6+6", "5+5")
    assert [plan(name).most_pairs for name in PLAN_NAMES] == [5, 6, 12, 10]


def test_an_unknown_plan_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan("7")
    assert str(refused.value) == (
        "plan of pairs: expected one of '5', '6', '6+6', '5+5'; found '7'. "
        "Declare one of these; a number of pairs chosen later is no plan."
    )


def test_the_next_larger_k_would_overspend_every_last_look() -> None:
    for name in PLAN_NAMES:
        *earlier, last = plan(name).looks
        left = ALPHA - sum(look.alpha for look in earlier)
        assert last.alpha <= left < signed_rank_cdf(last.pairs, last.walsh_k + 1)


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8, 10, 12, 20])
def test_no_exact_rule_knows_a_smaller_p_than_two_to_the_minus_n(n: int) -> None:
    best = logs(*(1.01 + rep / 1000 for rep in range(n)))
    assert signed_rank_cdf(n, 0) == sign_cdf(n, 0) == signed_rank_p(best, 0.0, side="above") == 2.0**-n


@pytest.mark.parametrize(
    ("n", "wilcoxon_k", "wilcoxon_p", "worst_forgiven", "sign_k", "sign_p"),
    [
        (3, None, None, None, None, None),
        (4, None, None, None, None, None),
        (5, 0, 0.031, 0, 0, 0.031),
        (6, 2, 0.047, 0, 0, 0.016),
        (7, 3, 0.039, 0, 0, 0.008),
        (8, 5, 0.039, 0, 1, 0.035),
        (10, 10, 0.042, 1, 1, 0.011),
        (12, 17, 0.046, 1, 2, 0.019),
        (20, 60, 0.049, 3, 5, 0.021),
    ],
)
def test_what_five_per_cent_forgives_at_each_number_of_pairs(
    n: int,
    wilcoxon_k: int | None,
    wilcoxon_p: float | None,
    worst_forgiven: int | None,
    sign_k: int | None,
    sign_p: float | None,
) -> None:
    k, sign = largest_walsh_k(n, 0.05), largest_sign_k(n, 0.05)
    assert (k, sign) == (wilcoxon_k, sign_k)
    if k is None or sign is None:
        return
    assert round(signed_rank_cdf(n, k), 3) == wilcoxon_p
    assert round(sign_cdf(n, sign), 3) == sign_p
    assert max(m for m in range(n) if sum(range(n - m + 1, n + 1)) <= k) == worst_forgiven


@pytest.mark.parametrize(("cells", "pairs"), [(2, 6), (6, 7), (12, 8), (24, 9), (42, 10), (84, 11)])
def test_how_many_pairs_a_list_of_cells_needs_for_any_win_to_count(cells: int, pairs: int) -> None:
    assert signed_rank_cdf(pairs, 0) <= 0.05 / cells < signed_rank_cdf(pairs - 1, 0)


def test_a_two_sided_95_per_cent_interval_does_not_exist_at_five_pairs_and_does_at_six() -> None:
    assert 1 - 2 * signed_rank_cdf(5, 0) == 0.9375
    assert 1 - 2 * signed_rank_cdf(6, 0) == pytest.approx(0.969, abs=5e-4)


# --- readings ------------------------------------------------------------------------------------------


def test_a_ratio_above_one_is_a_win_for_rates_and_for_times() -> None:
    assert pair_log_ratios([2.0], [1.0], "rate") == (math.log(2.0),)
    assert pair_log_ratios([2.0], [1.0], "time") == (-math.log(2.0),)
    assert math.copysign(1.0, pair_log_ratios([2.0], [2.0], "time")[0]) == 1.0


def test_readings_far_apart_neither_overflow_nor_vanish() -> None:
    (log,) = pair_log_ratios([1e308], [1e-308], "rate")
    assert log == pytest.approx(616 * math.log(10))
    assert walsh_bounds((log,), 0).upper == math.inf


def test_nothing_makes_no_pair_ratios() -> None:
    with pytest.raises(NothingCompared) as refused:
        pair_log_ratios([], [], "rate")
    assert str(refused.value) == (
        "pair ratios: expected at least one pair; found none. Nothing was compared, and that is never a pass."
    )


@pytest.mark.parametrize(("ours", "theirs"), [([1.0, 2.0], [1.0]), ([], [1.0]), ([1.0], [])])
def test_a_reading_without_its_partner_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(NothingCompared, match="one reading of each side in every pair; found "):
        pair_log_ratios(ours, theirs, "rate")


@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["candidate", "reference"])
@pytest.mark.parametrize("direction", ["rate", "time"])
def test_a_reading_that_is_no_positive_number_is_refused_by_side_and_pair(
    bad: float, side: str, direction: Literal["rate", "time"]
) -> None:
    good, spoilt = [1.0, 1.0], [1.0, bad]
    ours, theirs = (spoilt, good) if side == "candidate" else (good, spoilt)
    with pytest.raises(
        TimingUnreadable, match=f"^reading of the {side} in pair 2: expected a finite number above"
    ):
        pair_log_ratios(ours, theirs, direction)


def test_a_direction_that_is_neither_rate_nor_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected 'rate' or 'time'; found 'up'"):
        pair_log_ratios([1.0], [1.0], "up")  # type: ignore[arg-type]


# --- bounds --------------------------------------------------------------------------------------------


def test_the_published_decode_pairs_have_the_published_ratios_and_bounds() -> None:
    d = pair_log_ratios(*DECODE, "rate")
    assert [round(math.exp(x), 5) for x in d] == [1.05139, 1.05349, 1.05170, 1.05289, 1.05079]
    for bounds in (walsh_bounds(d, 0), sign_bounds(d, 0)):
        assert (round(bounds.lower, 5), round(bounds.upper, 5)) == (1.05079, 1.05349)
        assert 1 - bounds.one_sided_alpha == 31 / 32


def test_the_published_prefill_pairs_have_the_published_bounds() -> None:
    bounds = walsh_bounds(pair_log_ratios(*PREFILL, "rate"), 0)
    assert (round(bounds.lower, 5), round(bounds.upper, 5)) == (1.03640, 1.03924)


def test_bounds_are_the_walsh_averages_counted_from_both_ends() -> None:
    d = (0.0, 1.0, 4.0)  # averages 0, 0.5, 1, 2, 2.5, 4
    assert [(walsh_bounds(d, k).lower_log, walsh_bounds(d, k).upper_log) for k in (0, 1, 2)] == [
        (0.0, 4.0),
        (0.5, 2.5),
        (1.0, 2.0),
    ]
    assert (sign_bounds(d, 1).lower_log, sign_bounds(d, 1).upper_log) == (1.0, 1.0)


def test_at_six_pairs_the_bound_of_the_plan_is_the_third_of_21_averages() -> None:
    d = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
    (look,) = plan("6").looks
    assert walsh_bounds(d, look.walsh_k).lower_log == pytest.approx(0.02)  # after 0.01 and 0.015


@pytest.mark.parametrize("k", [-1, 3])
def test_a_k_that_would_cross_the_bounds_is_refused(k: int) -> None:
    with pytest.raises(ConfigurationError, match=f"expected k from 0 to 2; found k = {k}"):
        walsh_bounds((0.0, 1.0, 4.0), k)


def test_nothing_has_no_bounds() -> None:
    with pytest.raises(NothingCompared, match="pair logs: expected at least one pair; found none"):
        walsh_bounds((), 0)
    with pytest.raises(NothingCompared, match="pair logs: expected at least one pair; found none"):
        sign_bounds((), 0)
    with pytest.raises(NothingCompared, match="a null distribution"):
        signed_rank_cdf(0, 0)


# --- the control ---------------------------------------------------------------------------------------


def test_the_floor_is_the_far_end_of_the_controls_interval() -> None:
    seen = control(logs(1.0004, 0.9987, 1.0001, 1.0016, 0.9999, 1.0))
    assert [seen.lower, seen.upper] == pytest.approx([0.9987, 1.0016])
    assert seen.floor_log == pytest.approx(math.log(1.0016))
    assert (seen.resolved, seen.state) == (False, "clean")
    assert control(logs(1.0004, 0.99, 1.0001, 1.0016, 0.9999, 1.0)).floor_log == pytest.approx(
        -math.log(0.99)
    )


@pytest.mark.parametrize(
    "ratios", [(1.001, 1.002, 1.003, 1.004, 1.005, 1.006), (0.99, 0.98, 0.97, 0.96, 0.95, 0.94)]
)
def test_a_control_that_leaves_one_out_is_resolved(ratios: tuple[float, ...]) -> None:
    assert control(logs(*ratios)).state == "resolved"


def test_a_control_that_touches_one_is_clean() -> None:
    assert control(logs(1.0, 1.002, 1.003, 1.004, 1.005, 1.006)).state == "clean"


@pytest.mark.parametrize("pairs", [1, 5, 7, 12])
def test_a_control_of_any_number_but_six_pairs_is_no_control(pairs: int) -> None:
    with pytest.raises(NothingCompared, match=f"expected exactly 6 pairs .* found {pairs} pairs"):
        control((0.0,) * pairs)


def test_nothing_is_no_control() -> None:
    with pytest.raises(NothingCompared, match="There is no control"):
        control(())


# --- the words -----------------------------------------------------------------------------------------


def test_published_decode_passes_at_five_per_cent_and_is_unresolved_at_five_point_one() -> None:
    d = pair_log_ratios(*DECODE, "rate")
    passed = decide(d, plan("5"), 1.05, 0.0016, "clean")
    assert (passed.word, passed.reason, passed.look, passed.alpha_spent) == ("PASS", "bound-above", 1, 1 / 32)
    open_still = decide(d, plan("5"), 1.051, 0.0001, "clean")
    assert (open_still.word, open_still.reasons) == ("UNRESOLVED", ("straddles",))


def test_published_pairs_had_no_control_and_so_give_bounds_and_no_pass() -> None:
    seen = decide(pair_log_ratios(*DECODE, "rate"), plan("5"), 1.05, None, "absent")
    assert (seen.word, seen.reason, seen.by_bounds) == ("UNRESOLVED", "no-control", "PASS")
    above = decide(pair_log_ratios(*DECODE, "rate"), plan("5"), 1.051, None, "absent")
    assert (above.word, above.reasons, above.by_bounds) == (
        "UNRESOLVED",
        ("no-control", "straddles"),
        "STRADDLES",
    )


@pytest.mark.parametrize(("threshold", "word"), [(1.03, "PASS"), (1.05, "MISS")])
def test_published_prefill_passes_at_three_per_cent_and_misses_at_five(threshold: float, word: str) -> None:
    seen = decide(pair_log_ratios(*PREFILL, "rate"), plan("5"), threshold, 0.0016, "clean")
    assert (seen.word, seen.by_bounds) == (word, word)


def test_five_pairs_of_which_one_is_just_below_parity_settle_a_margin_and_not_parity_itself() -> None:
    pairs = (1.0301, 1.0352, 0.9990, 1.0366, 1.0361)  # mean 1.0274, minimum 0.9990, as published for 65,536
    assert sum(pairs) / 5 == pytest.approx(1.0274, abs=5e-5)
    assert judged(pairs, "5", 1.0).word == "UNRESOLVED"
    assert judged(pairs, "5", 0.99).word == "PASS"


@pytest.mark.parametrize("name", list(TWO_ORDERS))
@pytest.mark.parametrize("threshold", [1.0, 0.98])
def test_two_pairs_in_two_orders_settle_nothing(name: str, threshold: float) -> None:
    d = pair_log_ratios(*TWO_ORDERS[name], "rate")
    assert min(d) < math.log(threshold) < max(d)
    seen = decide(d, plan("6+6"), threshold, 0.001, "clean")
    assert (seen.word, seen.reason, seen.bounds, seen.look) == ("INCOMPLETE", "pairs-missing", None, None)


SIX_ABOVE = (1.02, 1.021, 1.022, 1.023, 1.024, 1.025)
SIX_MIXED = (1.02, 1.021, 0.99, 1.023, 1.024, 1.025)


def test_a_median_inside_the_floor_is_not_decided_even_when_all_pairs_agree() -> None:
    assert judged(SIX_ABOVE, "6", 1.0, floor=0.02).word == "PASS"
    inside = judged(SIX_ABOVE, "6", 1.0, floor=0.03)
    assert (inside.word, inside.reasons, inside.by_bounds) == ("UNRESOLVED", ("floor",), "PASS")
    below = judged(SIX_ABOVE, "6", 1.04, floor=0.03)
    assert (below.word, below.reasons, below.by_bounds) == ("UNRESOLVED", ("floor",), "MISS")


def test_a_gap_of_exactly_the_floor_is_inside_it() -> None:
    seen = decide((0.25,) * 6, plan("6"), 1.0, 0.25, "clean")
    assert (seen.word, seen.reason, seen.gap_log) == ("UNRESOLVED", "floor", 0.25)


def test_a_bound_that_touches_the_threshold_is_enough_for_a_pass_and_not_for_a_miss() -> None:
    assert decide((0.0, *[0.1] * 5), plan("6+6"), 1.0, 0.01, "clean").word == "PASS"
    assert decide((0.0, *[-0.1] * 5), plan("6+6"), 1.0, 0.01, "clean").word == "NEEDS_LOOK_2"


def test_an_engine_that_equals_the_threshold_to_the_bit_is_not_a_pass() -> None:
    assert judged((1.0,) * 6, "6", 1.0, floor=0.0).word == "UNRESOLVED"


@pytest.mark.parametrize("threshold", [0.5, 1.0, 2.0])
def test_a_control_that_resolved_an_engine_from_itself_makes_any_result_invalid(threshold: float) -> None:
    for name, pairs in (("6", SIX_ABOVE), ("6+6", SIX_MIXED), ("6+6", SIX_ABOVE * 2)):
        seen = judged(pairs, name, threshold, floor=0.002, state="resolved")
        assert (seen.word, seen.reasons) == ("INVALID", ("control-resolved",))


@pytest.mark.parametrize("objection", ["order-effect", "process-reused"])
def test_an_objection_of_the_caller_stands_against_pass_and_miss(
    objection: Literal["order-effect", "process-reused"],
) -> None:
    for threshold in (0.9, 1.1):
        seen = decide(logs(*SIX_ABOVE), plan("6"), threshold, 0.001, "clean", (objection,))
        assert (seen.word, seen.reasons) == ("UNRESOLVED", (objection,))


@pytest.mark.parametrize(
    ("name", "pairs"), [("5", 4), ("5", 6), ("6", 5), ("6+6", 5), ("6+6", 11), ("6+6", 13)]
)
def test_a_number_of_pairs_that_is_no_look_is_incomplete_and_has_no_bounds(name: str, pairs: int) -> None:
    seen = decide(logs(*([1.5] * pairs)), plan(name), 1.0, 0.001, "clean")
    surplus = pairs > plan(name).most_pairs
    assert (seen.word, seen.reason) == ("INCOMPLETE", "pairs-surplus" if surplus else "pairs-missing")
    assert (seen.bounds, seen.look, seen.alpha_spent, seen.pairs_given) == (None, None, 0.0, pairs)


def test_nothing_measured_is_incomplete_whatever_the_control_says() -> None:
    states: list[tuple[float | None, ControlState]] = [(0.0, "clean"), (0.1, "resolved"), (None, "absent")]
    for floor, state in states:
        assert decide((), plan("5"), 1.0, floor, state).word == "INCOMPLETE"


@pytest.mark.parametrize(
    ("threshold", "floor", "reason"),
    [(1.0, 0.001, "straddles"), (1.022, 0.01, "floor"), (1.0, None, "no-control")],
)
def test_a_first_look_that_decides_nothing_makes_the_second_mandatory(
    threshold: float, floor: float | None, reason: str
) -> None:
    seen = judged(SIX_MIXED, "6+6", threshold, floor=floor, state="absent" if floor is None else "clean")
    assert (seen.word, seen.reason, seen.look, seen.alpha_spent) == ("NEEDS_LOOK_2", reason, 1, 1 / 64)


def test_a_first_look_that_is_clear_of_the_bounds_but_inside_the_floor_does_not_stop() -> None:
    assert judged(SIX_ABOVE, "6+6", 1.0, floor=0.03).word == "NEEDS_LOOK_2"
    assert judged(SIX_ABOVE, "6+6", 1.0, floor=0.01).word == "PASS"


def test_the_second_look_forgives_one_stall_and_spends_the_rest_of_alpha() -> None:
    stalled = (*SIX_MIXED, *SIX_ABOVE)
    seen = judged(stalled, "6+6", 1.0)
    assert (seen.word, seen.look, seen.pairs_used, seen.undeclared_continuation) == ("PASS", 2, 12, False)
    assert seen.alpha_spent == plan("6+6").total_alpha
    last = judged((*SIX_MIXED, 0.98, 1.01, 0.97, 1.02, 0.99, 1.0), "6+6", 1.0)
    assert (last.word, last.reason, last.look) == ("UNRESOLVED", "straddles", 2)


@pytest.mark.parametrize("later", [(0.5,) * 6, (1.5,) * 6])
def test_pairs_after_a_first_look_that_decided_are_marked_and_change_nothing(
    later: tuple[float, ...],
) -> None:
    for threshold, word in ((1.0, "PASS"), (1.04, "MISS")):
        alone = judged(SIX_ABOVE, "6+6", threshold)
        seen = judged((*SIX_ABOVE, *later), "6+6", threshold)
        assert (seen.word, seen.look, seen.alpha_spent) == (word, 1, 1 / 64)
        assert (seen.pairs_given, seen.pairs_used, seen.undeclared_continuation) == (12, 6, True)
        assert seen.bounds == alone.bounds and not alone.undeclared_continuation


def test_a_pass_within_a_margin_says_when_it_is_resolved_slower() -> None:
    slower = judged((0.995, 0.996, 0.997, 0.996, 0.995, 0.996), "6", 0.99)
    assert (slower.word, slower.differs_from_one) == ("PASS", "slower")
    assert judged(SIX_ABOVE, "6", 1.0).differs_from_one == "faster"
    assert judged(SIX_MIXED, "6+6", 0.9).differs_from_one is None


def test_the_numbers_behind_a_word_are_those_of_its_look() -> None:
    seen = judged(SIX_ABOVE, "6", 1.0)
    assert seen.median_pair_ratio == pytest.approx(math.sqrt(1.022 * 1.023))
    assert seen.gap_log == seen.median_log
    assert seen.bounds is not None and seen.bounds.lower == pytest.approx(math.sqrt(1.02 * 1.022))
    assert pickle.loads(pickle.dumps(seen)) == seen


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 5, 11])
def test_a_log_that_is_no_number_is_refused_and_never_passes(bad: float, at: int) -> None:
    d = [0.1] * 12
    d[at] = bad
    with pytest.raises(TimingUnreadable, match=f"log ratio of pair {at + 1}"):
        decide(d, plan("6+6"), 1.0, 0.0, "clean")


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_a_threshold_that_is_no_positive_ratio_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigurationError, match="threshold of a claim: expected a finite ratio above zero"):
        judged(SIX_ABOVE, "6", threshold)


@pytest.mark.parametrize(
    ("floor", "state"),
    [(None, "clean"), (math.nan, "clean"), (-0.1, "clean"), (math.inf, "resolved"), (0.1, "absent")],
)
def test_a_floor_that_does_not_fit_its_control_is_refused(floor: float | None, state: ControlState) -> None:
    with pytest.raises(NothingCompared, match=f"floor of a session whose control is {state}"):
        judged(SIX_ABOVE, "6", 1.0, floor=floor, state=state)


def test_an_unknown_state_of_the_control_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'clean', 'resolved' or 'absent'; found 'fine'"):
        judged(SIX_ABOVE, "6", 1.0, state="fine")  # type: ignore[arg-type]


# --- many cells, open-ended measuring ------------------------------------------------------------------


def test_holm_rejects_step_by_step_and_stops_at_the_first_that_fails() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == (True, False, False, True)
    assert holm([0.03], 0.05) == (True,)
    assert holm([0.03, 0.01, 0.02], 0.05) == (True, True, True)  # 0.01 x 3, 0.02 x 2, 0.03 x 1
    assert holm([1 / 64] * 6) == (False,) * 6  # six pairs cannot decide six cells
    assert holm([1 / 128] * 6) == (True,) * 6  # seven can


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_holm_refuses_what_is_no_p_value(p: float) -> None:
    with pytest.raises(ConfigurationError, match="p-value of a cell"):
        holm([0.01, p])


def test_nothing_enters_holm_or_a_signed_rank_test() -> None:
    with pytest.raises(NothingCompared, match="Holm's test"):
        holm([])
    with pytest.raises(NothingCompared, match="pair logs"):
        signed_rank_p((), 0.0, side="above")
    with pytest.raises(NothingCompared, match="An unfinished cell is INCOMPLETE"):
        plan_p((), plan("6"), 0.0, side="below")


def test_zeros_and_ties_count_against_the_claim_on_both_sides() -> None:
    assert signed_rank_p((0.0,) * 6, 0.0, side="above") == 1.0
    assert signed_rank_p((0.0,) * 6, 0.0, side="below") == 1.0
    tied = (0.02, 0.02, 0.02, 0.02, 0.02, -0.02)  # five averages are zero, one is -0.02
    assert signed_rank_p(tied, 0.0, side="above") == signed_rank_cdf(6, 6)


def test_a_test_on_no_side_or_against_no_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected 'above' or 'below'; found 'both'"):
        signed_rank_p((0.1,), 0.0, side="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="threshold of a test: expected a finite log; found nan"):
        signed_rank_p((0.1,), math.nan, side="above")


def test_the_p_value_of_a_two_look_cell_pays_for_both_looks() -> None:
    two = plan("6+6")
    assert plan_p(logs(*SIX_ABOVE), two, 0.0, side="above") == pytest.approx(two.total_alpha)
    everything = plan_p(logs(*SIX_ABOVE * 2), two, 0.0, side="above")
    assert everything == pytest.approx(2.0**-12 * two.total_alpha / two.looks[1].alpha)
    assert plan_p(logs(*SIX_ABOVE), plan("6"), 0.0, side="below") == 1.0
    with pytest.raises(NothingCompared, match="found 7 pairs"):
        plan_p((0.1,) * 7, two, 0.0, side="above")


@pytest.mark.parametrize(("wins", "pairs"), [(7, 7), (10, 11), (12, 14), (14, 17), (16, 20)])
def test_the_open_ended_rule_stops_at_the_published_scores_and_not_one_win_earlier(
    wins: int, pairs: int
) -> None:
    assert sign_e_value(wins, pairs - wins) >= E_THRESHOLD
    assert sign_e_value(wins - 1, pairs - wins) < E_THRESHOLD
    assert sign_e_value(wins - 1, pairs - wins + 1) < E_THRESHOLD


def test_nothing_played_is_no_evidence_and_even_scores_are_evidence_against() -> None:
    assert sign_e_value(0, 0) == 1.0
    assert sign_e_value(10, 10) < 1.0 and sign_e_value(0, 10) < 0.1
    assert sign_e_value(1100, 0) == math.inf
    with pytest.raises(ConfigurationError, match="found -1 wins, 2 losses"):
        sign_e_value(-1, 2)

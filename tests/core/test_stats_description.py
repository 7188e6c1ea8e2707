"""The describing half: golden figures of two campaigns, t figures against scipy, and honest gaps."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from pytest_parity.core.diagnostics import (
    PAIRS_CAP,
    STATISTICS,
    FirstSide,
    describe,
    pairs_needed,
    point,
    range_overlap_alpha,
    resolvable_factor,
    t_cdf,
    t_power,
    t_quantile,
)
from pytest_parity.errors import ConfigurationError, NothingCompared, TimingUnreadable

DECODE = ((35.0973, 35.0850, 35.1586, 35.1939, 35.1910), (33.3817, 33.3035, 33.4304, 33.4261, 33.4900))
PREFILL = (
    (317.6623, 317.4944, 317.8869, 317.5583, 317.9913),
    (306.5062, 306.3196, 306.3874, 306.2955, 305.9840),
)

# Rust first, then original first; decode tokens per second of both.
TWO_ORDERS = {
    "AR Summary": ((26.129, 23.569), (24.711, 25.535)),
    "AR Story": ((24.553, 21.743), (23.728, 24.186)),
    "AR Python": ((24.964, 21.107), (24.520, 24.898)),
    "MTP Summary": ((23.935, 17.706), (23.628, 17.678)),
    "MTP Story": ((19.419, 15.146), (19.089, 14.581)),
    "MTP Python": ((33.140, 25.843), (31.919, 23.655)),
}

ALTERNATING: tuple[FirstSide, ...] = ("reference", "candidate") * 3


def per_cent(value: float | None, digits: int) -> float | None:
    return None if value is None else round(100 * value, digits)


# --- golden figures ------------------------------------------------------------------------------------


def test_published_decode_gives_its_published_ratio_and_population_cvs() -> None:
    seen = describe(*DECODE, "rate")
    assert round(seen.ratio_of_medians, 5) == 1.05183
    assert (seen.candidate.median, seen.reference.median) == (35.1586, 33.4261)
    assert (per_cent(seen.candidate.cv_population, 3), per_cent(seen.reference.cv_population, 3)) == (
        0.131,
        0.185,
    )
    assert (per_cent(seen.candidate.cv_sample, 3), per_cent(seen.reference.cv_sample, 3)) == (0.146, 0.207)


def test_published_prefill_gives_its_published_ratio_and_population_cvs() -> None:
    seen = describe(*PREFILL, "rate")
    assert round(seen.ratio_of_medians, 5) == 1.03703
    assert (seen.candidate.median, seen.reference.median) == (317.6623, 306.3196)
    assert (per_cent(seen.candidate.cv_population, 3), per_cent(seen.reference.cv_population, 3)) == (
        0.060,
        0.057,
    )


def test_published_decode_pairs_were_worth_almost_six_times_the_reps() -> None:
    seen = describe(*DECODE, "rate")
    assert [round(ratio, 5) for ratio in seen.pair_ratios] == [1.05139, 1.05349, 1.05170, 1.05289, 1.05079]
    assert (round(seen.smallest_pair_ratio, 4), seen.smallest_pair) == (1.0508, 5)
    assert (round(seen.largest_pair_ratio, 4), seen.largest_pair) == (1.0535, 2)
    assert round(seen.median_pair_ratio, 4) == 1.0517
    assert (per_cent(seen.pair_sd_log, 3), per_cent(seen.unpaired_sd_log, 3)) == (0.105, 0.254)
    assert seen.correlation == pytest.approx(0.88, abs=0.005)
    assert seen.pairing_worth == pytest.approx(5.8, abs=0.05)
    assert seen.t_interval is not None and seen.t_interval.level == 0.90
    assert (round(seen.t_interval.lower, 5), round(seen.t_interval.upper, 5)) == (1.05099, 1.05311)
    assert per_cent(seen.resolvable_log, 2) == 0.14
    assert (per_cent(seen.drift_per_pair_log, 2), per_cent(seen.drift_span_log, 1)) == (0.09, 0.4)
    assert (seen.stalls_suspected, seen.ranges) == ((), "candidate-above")


def test_published_prefill_pairs_cost_precision() -> None:
    seen = describe(*PREFILL, "rate")
    assert (round(seen.smallest_pair_ratio, 5), round(seen.largest_pair_ratio, 5)) == (1.03640, 1.03924)
    assert seen.correlation == pytest.approx(-0.52, abs=0.005)
    assert seen.pairing_worth == pytest.approx(0.66, abs=0.005)
    assert seen.stalls_suspected == (5,)  # 6.6 deviations: a hint


def test_an_order_that_nobody_wrote_down_leaves_order_and_seams_unsaid() -> None:
    seen = describe(*DECODE, "rate")
    assert (seen.order_effect, seen.seam_sd_log) == (None, None)
    one_order = describe(*DECODE, "rate", ["candidate"] * 5)
    assert (one_order.order_effect, one_order.seam_sd_log) == (None, None)


@pytest.mark.parametrize(
    ("name", "first", "second", "half_difference"),
    [
        ("AR Summary", 1.057, 0.923, 6.8),
        ("AR Story", 1.035, 0.899, 7.0),
        ("AR Python", 1.018, 0.848, 9.2),
        ("MTP Summary", 1.013, 1.002, 0.6),
        ("MTP Story", 1.017, 1.039, -1.0),
        ("MTP Python", 1.038, 1.092, -2.5),
    ],
)
def test_two_orders_of_one_pair_show_what_going_first_was_worth_and_no_interval(
    name: str, first: float, second: float, half_difference: float
) -> None:
    seen = describe(*TWO_ORDERS[name], "rate", ["candidate", "reference"])
    assert [round(ratio, 3) for ratio in seen.pair_ratios] == [first, second]
    effect = seen.order_effect
    assert effect is not None and per_cent(effect.effect_log, 1) == half_difference
    assert (effect.lower_log, effect.upper_log, effect.t) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "average"), [("AR Summary", 0.988), ("AR Story", 0.9645), ("AR Python", 0.929)]
)
def test_the_average_of_two_orders_is_the_published_one(name: str, average: float) -> None:
    assert point("median-of-pairs", *TWO_ORDERS[name], "rate") == pytest.approx(average, abs=5e-4)


def test_two_pairs_of_which_the_first_won_by_six_per_cent_have_a_useless_t_interval() -> None:
    seen = describe(*TWO_ORDERS["AR Summary"], "rate")
    assert seen.t_interval is not None
    assert (round(seen.t_interval.lower, 2), round(seen.t_interval.upper, 2)) == (0.64, 1.52)
    spreads = [
        describe(*TWO_ORDERS[name], "rate").pair_sd_log for name in ("AR Summary", "AR Story", "AR Python")
    ]
    assert [per_cent(sd, 0) for sd in spreads] == [10.0, 10.0, 13.0]


@pytest.mark.parametrize(
    ("n", "half_width", "effect", "overlap"),
    [
        (3, 1.69, 2.30, 0.050),
        (4, 1.18, 1.65, 0.0143),
        (5, 0.95, 1.36, 0.0040),
        (6, 0.82, 1.19, 0.0011),
        (7, 0.73, 1.07, 0.0003),
        (8, 0.67, 0.98, 0.0001),
        (10, 0.58, 0.85, 0.0000),
        (12, 0.52, 0.77, 0.0000),
        (20, 0.39, 0.58, 0.0000),
    ],
)
def test_what_each_number_of_pairs_can_see(n: int, half_width: float, effect: float, overlap: float) -> None:
    assert round(t_quantile(0.95, n - 1) / math.sqrt(n), 2) == half_width
    factor = resolvable_factor(n)
    assert factor is not None and round(factor, 2) == effect
    assert round(range_overlap_alpha(n), 4) == overlap
    assert range_overlap_alpha(10) == pytest.approx(5e-6, rel=0.1)


def test_two_per_cent_on_three_pairs_needs_a_spread_below_one_point_two() -> None:
    assert 2.0 / (t_quantile(0.95, 2) / math.sqrt(3)) == pytest.approx(1.19, abs=0.005)


@pytest.mark.parametrize(
    ("gap", "cv", "for_80", "for_95"),
    [
        (0.25, 0.15, 7, 10),
        (0.25, 0.35, 26, 44),
        (0.5, 0.35, 8, 13),
        (1.0, 1.0, 14, 24),
        (2.0, 2.0, 14, 24),
        (2.0, 3.0, 30, 51),
        (3.0, 2.0, 8, 12),
        (5.0, 3.0, 7, 10),
        (5.0, 5.0, 14, 24),
    ],
)
def test_the_planning_table_is_what_pairs_needed_answers(
    gap: float, cv: float, for_80: int, for_95: int
) -> None:
    sd = math.sqrt(2) * cv / 100
    d = [gap / 100 + x * sd * math.sqrt(3 / 2) for x in (-1, -1, 0, 0, 0, 1, 1)]  # sample SD is sd
    for power, pairs in ((0.80, for_80), (0.95, for_95)):
        needed = pairs_needed(d, 1.0, power=power)
        assert needed is not None and (needed.pairs, needed.capped) == (pairs, False)


# --- Student's t against scipy -------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(-60, 60), st.integers(1, 200))
def test_the_t_distribution_is_scipys(t: float, df: int) -> None:
    assert t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 11, 19, 99, 999])
@pytest.mark.parametrize("p", [0.005, 0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.975, 0.995])
def test_t_quantiles_are_scipys(p: float, df: int) -> None:
    assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 12, 20, 100])
@pytest.mark.parametrize("effect", [0.0, 0.1, 0.5, 1.36, 2.3])
def test_the_power_of_the_t_test_is_scipys_noncentral_t(effect: float, n: int) -> None:
    expected = stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, effect * math.sqrt(n))
    assert t_power(effect, n) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0), (math.nan, 3)])
def test_a_quantile_that_does_not_exist_is_refused(p: float, df: int) -> None:
    with pytest.raises(ConfigurationError, match="quantile of Student's t"):
        t_quantile(p, df)


# --- points --------------------------------------------------------------------------------------------


def test_the_four_points_of_published_decode() -> None:
    points = {name: round(point(name, *DECODE, "rate"), 5) for name in STATISTICS}
    assert points == {
        "ratio-of-medians": 1.05183,
        "ratio-of-means": 1.05205,
        "median-of-pairs": 1.05170,
        "minimum-of-pairs": 1.05079,
    }


@pytest.mark.parametrize("name", list(STATISTICS))
def test_a_point_is_above_one_where_the_candidate_wins_in_rate_or_in_time(name: str) -> None:
    assert point(name, [2.0, 4.0, 6.0], [1.0, 2.0, 3.0], "rate") == pytest.approx(2.0)
    assert point(name, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0], "time") == pytest.approx(2.0)


def test_an_unknown_statistic_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigurationError) as refused:
        point("best-of-pairs", [1.0], [1.0], "rate")
    assert str(refused.value) == (
        "statistic of a point claim: expected one of 'ratio-of-medians', 'ratio-of-means', "
        "'median-of-pairs', 'minimum-of-pairs'; found 'best-of-pairs'. Name one of these."
    )


def test_nothing_has_no_point_no_description_and_no_number_of_pairs() -> None:
    for name in STATISTICS:
        with pytest.raises(NothingCompared):
            point(name, [], [], "rate")
    with pytest.raises(NothingCompared):
        describe([], [], "rate")
    with pytest.raises(NothingCompared):
        pairs_needed([], 1.0)
    with pytest.raises(NothingCompared):
        range_overlap_alpha(0)


@pytest.mark.parametrize("name", list(STATISTICS))
def test_a_point_of_unmatched_or_unreadable_sides_is_refused(name: str) -> None:
    with pytest.raises(NothingCompared):
        point(name, [1.0, 2.0], [1.0], "rate")
    with pytest.raises(TimingUnreadable):
        point(name, [1.0, math.nan, 3.0], [1.0, 1.0, 1.0], "rate")


# --- what cannot be computed is None -------------------------------------------------------------------


def test_one_pair_has_averages_and_no_spread_of_any_kind() -> None:
    seen = describe([2.0], [1.0], "rate", ["reference"])
    assert (seen.pairs, seen.ratio_of_medians, seen.smallest_pair) == (1, 2.0, 1)
    spreads = (
        seen.candidate.cv_sample,
        seen.candidate.cv_population,
        seen.pair_sd_log,
        seen.unpaired_sd_log,
        seen.pairing_worth,
        seen.correlation,
        seen.t_interval,
        seen.resolvable_log,
        seen.order_effect,
        seen.drift_per_pair_log,
        seen.drift_span_log,
        seen.seam_sd_log,
        seen.stalls_suspected,
        seen.ranges,
    )
    assert spreads == (None,) * len(spreads)


def test_readings_without_any_spread_do_not_claim_to_resolve_everything() -> None:
    seen = describe([2.1] * 6, [0.7] * 6, "rate", ALTERNATING)
    assert (seen.pair_sd_log, seen.candidate.cv_sample) == (0.0, 0.0)
    assert (seen.pairing_worth, seen.correlation, seen.t_interval, seen.resolvable_log) == (None,) * 4
    assert seen.stalls_suspected is None
    assert seen.order_effect is not None and seen.order_effect.t is None


# --- order, drift, seams, stalls -----------------------------------------------------------------------


def simulated(
    seed: int, *, first_penalty: float = 0.0, drift: float = 0.0, noise: float = 0.001
) -> tuple[list[float], list[float]]:
    """Six pairs of equal engines in alternating order, with a penalty for going first and a drift per run."""
    source = random.Random(seed)
    ours: list[float] = []
    theirs: list[float] = []
    for side in ALTERNATING:
        for place in (0, 1):
            run = len(ours) + len(theirs)
            log = 3.0 + drift * run - first_penalty * (place == 0) + source.gauss(0, noise)
            (ours if (side == "candidate") == (place == 0) else theirs).append(math.exp(log))
    return ours, theirs


def test_a_penalty_for_going_first_is_found_with_its_interval() -> None:
    seen = describe(*simulated(1, first_penalty=0.005), "rate", ALTERNATING)
    effect = seen.order_effect
    assert effect is not None and effect.lower_log is not None and effect.upper_log is not None
    assert effect.lower_log < -0.005 < effect.upper_log < 0
    assert effect.t is not None and effect.t < -3
    assert (effect.candidate_first, effect.reference_first) == (3, 3)
    assert seen.pair_sd_log is not None and seen.seam_sd_log is not None
    assert seen.pair_sd_log > 2 * seen.seam_sd_log


def test_the_interval_of_the_order_effect_is_half_that_of_scipys_two_sample_t() -> None:
    ours, theirs = simulated(4, first_penalty=0.002)
    d = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    expected = stats.ttest_ind(d[1::2], d[::2])
    interval = expected.confidence_interval(0.90)
    effect = describe(ours, theirs, "rate", ALTERNATING).order_effect
    assert effect is not None and effect.t == pytest.approx(expected.statistic)
    assert effect.lower_log == pytest.approx(interval.low / 2)
    assert effect.upper_log == pytest.approx(interval.high / 2)


def test_a_steady_drift_is_the_slope_of_the_level_and_no_difference_between_engines() -> None:
    seen = describe(*simulated(2, drift=-0.01, noise=0.0001), "rate", ALTERNATING)
    assert seen.drift_per_pair_log == pytest.approx(-0.02, abs=2e-4)  # two runs a pair
    assert seen.drift_span_log == pytest.approx(0.10, abs=1e-3)
    assert seen.t_interval is not None and seen.t_interval.lower < 1 < seen.t_interval.upper


def test_seams_join_the_same_engine_across_two_pairs() -> None:
    ours = [math.exp(x) for x in (0.00, 0.03, 0.50, 0.51)]
    theirs = [math.exp(x) for x in (0.20, 0.70, 0.71, 0.90)]
    seen = describe(ours, theirs, "rate", ["reference", "candidate", "reference", "candidate"])
    seams = (0.03, 0.01, 0.01)  # C|C 0.00 to 0.03, R|R 0.70 to 0.71, C|C 0.50 to 0.51
    assert seen.seam_sd_log == pytest.approx(math.sqrt(sum((x - 0.05 / 3) ** 2 for x in seams) / 2))


def test_a_stalled_pair_is_named_and_kept() -> None:
    ours, theirs = simulated(3)
    ours[3] *= 0.8
    seen = describe(ours, theirs, "rate", ALTERNATING)
    assert seen.stalls_suspected is not None and 4 in seen.stalls_suspected
    assert (seen.smallest_pair, seen.pairs) == (4, 6)


def test_ranges_that_do_not_overlap_say_which_side_is_above() -> None:
    assert describe([3.0, 4.0], [1.0, 2.0], "rate").ranges == "candidate-above"
    assert describe([1.0, 2.0], [3.0, 4.0], "time").ranges == "reference-above"
    assert describe([1.0, 3.0], [3.0, 4.0], "rate").ranges == "overlap"


@pytest.mark.parametrize("first", [(), ("candidate",) * 4])
def test_an_order_that_does_not_cover_every_pair_is_refused(first: tuple[FirstSide, ...]) -> None:
    with pytest.raises(NothingCompared, match="one first side for each of 5 pairs"):
        describe(*DECODE, "rate", first)


def test_an_order_of_unknown_sides_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="found 'C'"):
        describe(*DECODE, "rate", ["C"] * 5)  # type: ignore[list-item]


# --- how many pairs would settle it --------------------------------------------------------------------


def test_a_gap_of_nothing_or_inside_the_floor_is_not_decidable_here() -> None:
    d = (0.010, 0.012, 0.008, 0.011, 0.009, 0.010)
    assert pairs_needed(d, math.exp(0.010), 0.0) is None
    assert pairs_needed(d, 1.0, 0.02) is None
    assert pairs_needed(d, 1.0, 0.005) is not None
    assert pairs_needed((0.25, 0.24, 0.26), 1.0, 0.25) is None
    assert pairs_needed(d[:1], 1.0) is None


def test_no_answer_is_below_the_five_pairs_that_exact_rules_need_or_above_the_cap() -> None:
    clear = pairs_needed((0.100, 0.101, 0.099), 1.0)
    assert clear is not None and (clear.pairs, clear.capped) == (5, False)
    hopeless = pairs_needed((0.2, -0.2, 0.001, -0.19, 0.19), 1.0)
    assert hopeless is not None and (hopeless.pairs, hopeless.capped) == (PAIRS_CAP, True)
    still = pairs_needed((0.1, 0.1, 0.1), 1.0)
    assert still is not None and still.pairs == 5


def test_published_decode_would_need_more_pairs_for_five_point_one_per_cent() -> None:
    d = [math.log(ours / theirs) for ours, theirs in zip(*DECODE, strict=True)]
    needed = pairs_needed(d, 1.051)
    assert needed is not None and 5 < needed.pairs < 30


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_pair_that_is_no_number_has_no_plan(bad: float) -> None:
    with pytest.raises(TimingUnreadable):
        pairs_needed((0.1, bad), 1.0)

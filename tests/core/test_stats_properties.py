"""Laws of the deciding statistics: against scipy, against enumeration, and against each other."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats  # type: ignore[import-untyped]

from pytest_parity.core.stats import (
    PLAN_NAMES,
    CellDecision,
    control,
    decide,
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
from pytest_parity.errors import TimingUnreadable

LEVEL = {"MISS": 0, "UNRESOLVED": 1, "NEEDS_LOOK_2": 1, "PASS": 2}
MIRROR = {"MISS": "PASS", "PASS": "MISS"}

pair_log = st.floats(-0.3, 0.3, allow_nan=False).map(lambda x: round(x, 6))
any_threshold = st.floats(0.8, 1.25)
any_floor = st.floats(0.0, 0.1)
steady = settings(deadline=None, max_examples=150)


@st.composite
def cells(draw: st.DrawFn) -> tuple[str, tuple[float, ...]]:
    """A plan, and as many pair logs as one of its looks has, centred anywhere and of any spread."""
    name = draw(st.sampled_from(PLAN_NAMES))
    pairs = draw(st.sampled_from([look.pairs for look in plan(name).looks]))
    centre, spread = draw(pair_log), draw(st.sampled_from([0.001, 0.1, 1.0]))
    noise = draw(st.lists(pair_log, min_size=pairs, max_size=pairs))
    return name, tuple(centre + spread * x for x in noise)


def clean(name: str, d: tuple[float, ...], threshold: float, floor: float = 0.001) -> CellDecision:
    return decide(d, plan(name), threshold, floor, "clean")


# --- against other sources of the same numbers ---------------------------------------------------------


@steady
@given(st.lists(pair_log, min_size=1, max_size=20), pair_log)
def test_the_signed_rank_p_value_is_scipys_where_nothing_is_tied(d: list[float], threshold: float) -> None:
    assume(len({round(abs(x - threshold), 9) for x in d} | {0.0}) == len(d) + 1)
    for side, alternative in (("above", "greater"), ("below", "less")):
        theirs = stats.wilcoxon([x - threshold for x in d], alternative=alternative, method="exact").pvalue
        ours = signed_rank_p(d, threshold, side="above" if side == "above" else "below")
        assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("n", range(1, 11))
def test_the_signed_rank_distribution_is_the_count_of_all_sign_patterns(n: int) -> None:
    sums = [sum(itertools.compress(range(1, n + 1), signs)) for signs in itertools.product((0, 1), repeat=n)]
    for k in range(-1, n * (n + 1) // 2 + 1):
        assert signed_rank_cdf(n, k) == sum(total <= k for total in sums) / 2**n


@pytest.mark.parametrize("n", [1, 2, 5, 12, 30])
def test_the_sign_distribution_is_scipys_binomial(n: int) -> None:
    for k in range(-1, n + 1):
        assert sign_cdf(n, k) == pytest.approx(stats.binom.cdf(k, n, 0.5), rel=1e-12)


@steady
@given(st.integers(0, 25), st.integers(0, 25))
def test_the_e_value_is_its_integral(wins: int, losses: int) -> None:
    integral, _ = integrate.quad(lambda x: (1 + x) ** wins * (1 - x) ** losses, 0, 1, limit=200)
    assert sign_e_value(wins, losses) == pytest.approx(integral, rel=1e-7)


def test_the_e_value_is_a_fair_bet_on_a_fair_coin() -> None:
    for wins, losses in itertools.product(range(8), repeat=2):
        mean = (sign_e_value(wins + 1, losses) + sign_e_value(wins, losses + 1)) / 2
        assert mean == pytest.approx(sign_e_value(wins, losses))


@steady
@given(st.lists(pair_log, min_size=5, max_size=15), pair_log, st.floats(0.01, 0.2))
def test_a_bound_lies_beyond_a_threshold_exactly_when_its_p_value_is_spent(
    d: list[float], threshold: float, alpha: float
) -> None:
    k = largest_walsh_k(len(d), alpha)
    assume(k is not None and k <= (len(d) * (len(d) + 1) // 2 - 1) // 2)
    assert k is not None
    bounds = walsh_bounds(d, k)
    assert (bounds.lower_log > threshold) == (signed_rank_p(d, threshold, side="above") <= alpha)
    assert (bounds.upper_log < threshold) == (signed_rank_p(d, threshold, side="below") <= alpha)


@steady
@given(st.lists(pair_log, min_size=5, max_size=15), pair_log)
def test_sign_bounds_agree_with_scipys_sign_test(d: list[float], threshold: float) -> None:
    assume(threshold not in d)
    k = largest_sign_k(len(d), 0.05)
    assert k is not None
    above = stats.binomtest(sum(x > threshold for x in d), len(d), 0.5, alternative="greater").pvalue
    assert (sign_bounds(d, k).lower_log > threshold) == (above <= 0.05)


# --- invariance and order ------------------------------------------------------------------------------


@steady
@given(st.lists(pair_log, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_pairs_does_not_change_the_bounds(d: list[float], shuffler: random.Random) -> None:
    shuffled = list(d)
    shuffler.shuffle(shuffled)
    assert walsh_bounds(d, 0) == walsh_bounds(shuffled, 0)
    assert sign_bounds(d, (len(d) - 1) // 2) == sign_bounds(shuffled, (len(d) - 1) // 2)


@steady
@given(
    st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(1.0, 1e4)), min_size=1, max_size=12),
    st.floats(1e-6, 1e6),
)
def test_the_unit_of_the_readings_does_not_matter(pairs: list[tuple[float, float]], unit: float) -> None:
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    d = pair_log_ratios(ours, theirs, "rate")
    scaled = pair_log_ratios([a * unit for a in ours], [b * unit for b in theirs], "rate")
    assert scaled == pytest.approx(d, abs=1e-12)
    seconds = pair_log_ratios([1 / a for a in ours], [1 / b for b in theirs], "time")
    assert seconds == pytest.approx(d, abs=1e-12)


@steady
@given(st.lists(st.tuples(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4)), min_size=1, max_size=12))
def test_swapping_the_sides_mirrors_ratios_and_bounds_to_the_bit(pairs: list[tuple[float, float]]) -> None:
    d = pair_log_ratios([a for a, _ in pairs], [b for _, b in pairs], "rate")
    swapped = pair_log_ratios([b for _, b in pairs], [a for a, _ in pairs], "rate")
    assert swapped == tuple(-x for x in d)
    assert walsh_bounds(swapped, 0).lower_log == -walsh_bounds(d, 0).upper_log


@steady
@given(cells(), any_threshold, any_floor)
def test_swapping_the_sides_turns_pass_into_miss_at_the_reciprocal_threshold(
    cell: tuple[str, tuple[float, ...]], threshold: float, floor: float
) -> None:
    name, d = cell
    seen = clean(name, d, threshold, floor)
    mirrored = clean(name, tuple(-x for x in d), 1 / threshold, floor)
    for decision in (seen, mirrored):  # a tie within rounding belongs to neither side
        assert decision.bounds is not None and decision.gap_log is not None
        centre = math.log(decision.threshold)
        assume(abs(decision.bounds.lower_log - centre) > 1e-9 < abs(decision.bounds.upper_log - centre))
        assume(abs(abs(decision.gap_log) - floor) > 1e-9)
    assert mirrored.word == MIRROR.get(seen.word, seen.word)
    assert mirrored.look == seen.look


@steady
@given(cells(), any_threshold, any_threshold, any_floor)
def test_a_higher_threshold_never_gives_a_better_word(
    cell: tuple[str, tuple[float, ...]], one: float, other: float, floor: float
) -> None:
    low, high = sorted((one, other))
    assert LEVEL[clean(*cell, high, floor).word] <= LEVEL[clean(*cell, low, floor).word]


@steady
@given(cells(), any_threshold, any_floor, any_floor)
def test_a_higher_floor_never_settles_a_single_look(
    cell: tuple[str, tuple[float, ...]], threshold: float, one: float, other: float
) -> None:
    name, d = cell
    d = d[: plan(name).looks[0].pairs]
    low, high = sorted((one, other))
    settled = clean(name, d, threshold, high).word
    assert settled in ("UNRESOLVED", "NEEDS_LOOK_2") or clean(name, d, threshold, low).word == settled


@steady
@given(cells(), any_threshold, any_floor)
def test_a_pass_has_its_bound_above_the_threshold_and_its_median_beyond_the_floor(
    cell: tuple[str, tuple[float, ...]], threshold: float, floor: float
) -> None:
    seen = clean(*cell, threshold, floor)
    assert seen.bounds is not None and seen.gap_log is not None
    if seen.word == "PASS":
        assert seen.bounds.lower_log >= math.log(threshold) and seen.gap_log > floor
    if seen.word == "MISS":
        assert seen.bounds.upper_log < math.log(threshold) and seen.gap_log < -floor


@steady
@given(cells(), any_threshold, any_floor, st.data())
def test_a_cell_with_a_missing_pair_never_passes(
    cell: tuple[str, tuple[float, ...]], threshold: float, floor: float, data: st.DataObject
) -> None:
    name, d = cell
    missing = data.draw(st.integers(0, len(d) - 1))
    assert clean(name, d[:missing] + d[missing + 1 :], threshold, floor).word == "INCOMPLETE"


@steady
@given(cells(), any_threshold, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_a_pair_that_is_no_number_never_passes(
    cell: tuple[str, tuple[float, ...]], threshold: float, bad: float, data: st.DataObject
) -> None:
    name, d = cell
    at = data.draw(st.integers(0, len(d) - 1))
    with pytest.raises(TimingUnreadable):
        clean(name, (*d[:at], bad, *d[at + 1 :]), threshold)


@steady
@given(cells(), any_threshold)
def test_without_a_clean_control_nothing_is_pass_or_miss(
    cell: tuple[str, tuple[float, ...]], threshold: float
) -> None:
    name, d = cell
    assert decide(d, plan(name), threshold, None, "absent").word in ("UNRESOLVED", "NEEDS_LOOK_2")
    assert decide(d, plan(name), threshold, 0.1, "resolved").word == "INVALID"


@steady
@given(cells(), any_threshold)
def test_the_p_value_of_a_cell_is_within_the_plans_alpha_exactly_when_a_bound_says_miss(
    cell: tuple[str, tuple[float, ...]], threshold: float
) -> None:
    name, d = cell
    declared, log_threshold = plan(name), math.log(threshold)
    looks = [look for look in declared.looks if look.pairs <= len(d)]
    beyond = any(walsh_bounds(d[: x.pairs], x.walsh_k).upper_log < log_threshold for x in looks)
    spent = plan_p(d, declared, log_threshold, side="below") <= declared.total_alpha * (1 + 1e-12)
    assert spent == beyond


# --- how often an equal engine passes ------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAN_NAMES)
def test_over_all_sign_patterns_of_equal_engines_a_false_pass_costs_no_more_than_the_plan_says(
    name: str,
) -> None:
    declared = plan(name)
    sizes = [0.01 * (1 + math.sqrt(2) * (7 * rep % 13)) for rep in range(declared.most_pairs)]
    words = []
    for signs in itertools.product((1, -1), repeat=declared.most_pairs):
        d = tuple(sign * size for sign, size in zip(signs, sizes, strict=True))
        words.append(decide(d, declared, 1.0, 0.0, "clean").word)
    passed, missed = words.count("PASS") / len(words), words.count("MISS") / len(words)
    assert passed == missed
    assert 0.8 * declared.total_alpha < passed <= declared.total_alpha
    if len(declared.looks) == 1:
        assert passed == declared.total_alpha


def stalling(noise: random.Random) -> float:
    return noise.gauss(0.0, 0.01) + (noise.random() < 0.02) * 0.2


@pytest.mark.parametrize("shape", ["normal", "with stalls"])
def test_an_equal_engine_passes_no_more_often_than_alpha_in_a_simulation(shape: str) -> None:
    noise = random.Random(20240917)
    draw = stalling if shape == "with stalls" else lambda source: source.gauss(0.0, 0.01)
    trials, declared, passed = 3000, plan("6+6"), 0
    for _ in range(trials):
        d = [draw(noise) - draw(noise) for _ in range(12)]
        passed += decide(d, declared, 1.0, 0.0, "clean").word == "PASS"
    alpha = declared.total_alpha
    assert passed / trials <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / trials)
    assert passed / trials > alpha / 2


def test_a_healthy_control_is_called_resolved_about_once_in_32() -> None:
    noise = random.Random(6)
    trials = 4000
    resolved = sum(control([noise.gauss(0.0, 0.01) for _ in range(6)]).resolved for _ in range(trials))
    assert resolved / trials == pytest.approx(1 / 32, abs=3 * math.sqrt(1 / 32 / trials))


def test_a_faster_engine_passes_most_of_the_time_under_its_own_control() -> None:
    noise = random.Random(12)
    words = []
    for _ in range(300):
        own = control([noise.gauss(0.0, 0.002) for _ in range(6)])
        d = [noise.gauss(0.02, 0.002) for _ in range(12)]
        words.append(decide(d, plan("6+6"), 1.0, own.floor_log, own.state).word)
    assert words.count("PASS") > 270 and words.count("MISS") == 0

"""What is printed beside a word, and never decides it: averages, spreads, t intervals, order, drift, seams.

Pure: standard library, values in, values out. What cannot be computed from the readings is ``None``, never
0. Names ending in ``_log`` are natural logs (0.01 is about one per cent); the others are ratios, or say
their unit. The t figures assume normal pair logs, which is why they only describe (Georges et al., OOPSLA
2007; Kalibera & Jones, ISMM 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pytest_parity.core.stats import (
    ALPHA,
    Direction,
    finite_logs,
    median,
    pair_log_ratios,
    ratio_of_log,
    threshold_log,
)
from pytest_parity.errors import ConfigurationError, NothingCompared

__all__ = [
    "PAIRS_CAP",
    "STALL_MADS",
    "STATISTICS",
    "Description",
    "FirstSide",
    "Interval",
    "OrderEffect",
    "PairsNeeded",
    "SideSummary",
    "describe",
    "pairs_needed",
    "point",
    "range_overlap_alpha",
    "resolvable_factor",
    "t_cdf",
    "t_power",
    "t_quantile",
]

FirstSide = Literal["candidate", "reference"]
Ranges = Literal["candidate-above", "reference-above", "overlap"]

PAIRS_CAP = 1000
"""``pairs_needed`` stops counting here; nobody measures that many."""

STALL_MADS = 5.0
"""A pair this many median absolute deviations from the median pair is a suspected stall."""

_FEWEST_DECIDABLE = 5
"""No exact rule decides anything at one in twenty with fewer pairs (2**-4 is more than that)."""

_ROUNDING = 1e-12
"""Logs nearer than this are equal: the difference is the rounding of a logarithm."""


# --- one side, and the point statistics ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SideSummary:
    """One side's readings, in their own unit (per second for a rate, seconds for a time).

    ``cv_sample``: standard deviation over mean with n - 1 (ddof 1); ``cv_population``: with n (ddof 0), as
    older tables print it. Fractions, not per cent; ``None`` for a single reading.
    """

    count: int
    median: float
    mean: float
    minimum: float
    maximum: float
    cv_sample: float | None
    cv_population: float | None


def _summary(readings: Sequence[float]) -> SideSummary:
    mean = _mean(readings)
    sd = _sd(readings)
    return SideSummary(
        count=len(readings),
        median=median(readings),
        mean=mean,
        minimum=min(readings),
        maximum=max(readings),
        cv_sample=None if sd is None else sd / mean,
        cv_population=None if sd is None else sd * math.sqrt(1 - 1 / len(readings)) / mean,
    )


def _as_ratio(ours: float, theirs: float, direction: Direction) -> float:
    return ours / theirs if direction == "rate" else theirs / ours


def _ratio_of_medians(ours: Sequence[float], theirs: Sequence[float], direction: Direction) -> float:
    return _as_ratio(median(ours), median(theirs), direction)


def _ratio_of_means(ours: Sequence[float], theirs: Sequence[float], direction: Direction) -> float:
    return _as_ratio(_mean(ours), _mean(theirs), direction)


def _median_of_pairs(ours: Sequence[float], theirs: Sequence[float], direction: Direction) -> float:
    return ratio_of_log(median(pair_log_ratios(ours, theirs, direction)))


def _minimum_of_pairs(ours: Sequence[float], theirs: Sequence[float], direction: Direction) -> float:
    return ratio_of_log(min(pair_log_ratios(ours, theirs, direction)))


STATISTICS: dict[str, Callable[[Sequence[float], Sequence[float], Direction], float]] = {
    "ratio-of-medians": _ratio_of_medians,
    "ratio-of-means": _ratio_of_means,
    "median-of-pairs": _median_of_pairs,
    "minimum-of-pairs": _minimum_of_pairs,
}
"""The statistics that a claim of kind ``point`` may name; above 1 the candidate wins."""


def point(name: str, candidate: Sequence[float], reference: Sequence[float], direction: Direction) -> float:
    """The statistic of that name, as a ratio. A point has no bound: at 1.0 an equal engine passes half the
    time with the first three of them."""
    if name not in STATISTICS:
        raise ConfigurationError(
            "statistic of a point claim",
            expected="one of " + ", ".join(f"'{known}'" for known in STATISTICS),
            found=repr(name),
            mend="Name one of these.",
        )
    pair_log_ratios(candidate, reference, direction)  # refuses what cannot be compared
    return STATISTICS[name](candidate, reference, direction)


# --- Student's t ---------------------------------------------------------------------------------------


def t_cdf(t: float, df: int) -> float:
    """P(T <= t) for Student's t, through the regularised incomplete beta function."""
    square = min(t * t, 1e300)
    tail = _beta_regularised(df / 2, 0.5, df / (df + square), square / (df + square)) / 2
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: int) -> float:
    """The t with P(T <= t) = p, by bisection to the last bit; ``df`` is degrees of freedom."""
    if not (0 < p < 1 and df >= 1):
        raise ConfigurationError(
            "quantile of Student's t",
            expected="0 < p < 1 and one degree of freedom or more",
            found=f"p = {p!r}, {df} degrees of freedom",
            mend="Two pairs are the fewest that have one.",
        )
    if p < 0.5:
        return -t_quantile(1 - p, df)
    high = 1.0
    while t_cdf(high, df) < p:
        high *= 2
    return _bisect(lambda t: t_cdf(t, df) < p, 0.0, high)


def _bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if below(middle):
            low = middle
        else:
            high = middle
    return high


def _beta_regularised(a: float, b: float, x: float, y: float) -> float:
    """I_x(a, b), by Lentz's continued fraction (Abramowitz & Stegun 26.5.8); ``y`` is 1 - x, unrounded."""
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_regularised(b, a, y, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = 1.0
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            step = c * d
            value *= step
        if abs(step - 1) < 1e-16:
            break
    return math.exp(log_front) * value / a


def t_power(effect: float, n: int, alpha: float = ALPHA) -> float:
    """Chance that a one-sided t test of n pairs sees an effect, given in pair standard deviations.

    The tail of the noncentral t, as an integral of the normal over the chi distribution (Simpson's rule).
    """
    df = n - 1
    critical = t_quantile(1 - alpha, df)
    reach = 9 / math.sqrt(2 * df)
    low, high, panels = max(0.0, 1 - reach), 1 + reach, 200
    log_scale = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)

    def density(s: float) -> float:
        if s <= 0:
            return math.exp(log_scale) if df == 1 else 0.0
        return math.exp(log_scale + (df - 1) * math.log(s) - df * s * s / 2)

    width = (high - low) / panels
    terms = []
    for i in range(panels + 1):
        s = low + i * width
        weight = 1 if i in (0, panels) else 4 if i % 2 else 2
        seen = math.erfc((critical * s - effect * math.sqrt(n)) / math.sqrt(2)) / 2
        terms.append(weight * seen * density(s))
    return math.fsum(terms) * width / 3


@lru_cache(maxsize=256)
def resolvable_factor(n: int, power: float = 0.8) -> float | None:
    """The effect that n pairs see with that power, in pair standard deviations; ``None`` below two pairs.

    From the noncentral t, one-sided at ``ALPHA``: an approximation to what the exact rule resolves.
    """
    if n < 2:
        return None
    return _bisect(lambda effect: t_power(effect, n) < power, 0.0, 64.0)


@dataclass(frozen=True, slots=True)
class PairsNeeded:
    """How many pairs would settle a cell; ``capped``: more than ``PAIRS_CAP``, which ``pairs`` then is."""

    pairs: int
    capped: bool


def pairs_needed(
    d_logs: Sequence[float], threshold: float, floor_log: float | None = None, *, power: float = 0.8
) -> PairsNeeded | None:
    """How many pairs would have settled this cell with that power, at the noise and the gap that it showed.

    The noise is the standard deviation of the pair logs, the gap |ln median - ln threshold|; the number
    comes from the noncentral t, an approximation, and is never under 5, where exact rules begin. It is a
    size for a new session, not permission to go on measuring this one.

    ``None``, "not decidable here": the gap is zero or inside the floor, or one pair alone shows no noise.
    """
    d = finite_logs(d_logs)
    gap = abs(median(d) - threshold_log(threshold))
    sd = _sd(d)
    if sd is None or gap <= max(_ROUNDING, floor_log or 0.0):
        return None
    if sd == 0 or t_power(gap / sd, _FEWEST_DECIDABLE) >= power:
        return PairsNeeded(_FEWEST_DECIDABLE, capped=False)
    if t_power(gap / sd, PAIRS_CAP) < power:
        return PairsNeeded(PAIRS_CAP, capped=True)
    low, high = _FEWEST_DECIDABLE, PAIRS_CAP
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if t_power(gap / sd, middle) >= power else (middle, high)
    return PairsNeeded(high, capped=False)


# --- the description of a cell -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval, as ratios."""

    lower: float
    upper: float
    level: float


@dataclass(frozen=True, slots=True)
class OrderEffect:
    """What going first was worth to the candidate: half the difference between the two orders, in logs.

    With one pair of an order there is no spread, so ``lower_log``, ``upper_log`` (90 %, pooled t) and ``t``
    may be ``None``. A drift over the session looks the same when the orders do not alternate.
    """

    effect_log: float
    lower_log: float | None
    upper_log: float | None
    t: float | None
    candidate_first: int
    reference_first: int


@dataclass(frozen=True, slots=True)
class Description:
    """Everything that is printed about a cell and decides nothing.

    ``pair_sd_log``: standard deviation of the pair logs (n - 1). ``unpaired_sd_log``: what it would be if the
    sides were independent. ``pairing_worth``: how many times the pairs an unpaired design would need; below
    1 pairing cost precision, and is kept because it protects against drift. ``correlation``: Pearson's r
    of the two sides' logs. ``t_interval``: two-sided 90 % for the geometric mean ratio.
    ``resolvable_log``: the effect that so many pairs see at this noise with 80 % power.
    ``drift_per_pair_log``: least-squares slope of the pairs' level (mean log reading of both sides) over
    their number; ``drift_span_log``: highest level less lowest. Above 0 readings grow: faster for rates,
    slower for times. ``seam_sd_log``: standard deviation of one engine's change over the seam between two
    pairs where it ran on both sides of it. Pair SD far above seam SD: an order effect; far below: one side
    carries something over. ``stalls_suspected``: numbers of pairs far out, all kept.
    ``ranges``: whether all readings of one side lie above all of the other's, in the readings' unit.
    """

    pairs: int
    candidate: SideSummary
    reference: SideSummary
    ratio_of_medians: float
    ratio_of_means: float
    pair_ratios: tuple[float, ...]
    median_pair_ratio: float
    smallest_pair_ratio: float
    smallest_pair: int
    largest_pair_ratio: float
    largest_pair: int
    pair_sd_log: float | None
    unpaired_sd_log: float | None
    pairing_worth: float | None
    correlation: float | None
    t_interval: Interval | None
    resolvable_log: float | None
    order_effect: OrderEffect | None
    drift_per_pair_log: float | None
    drift_span_log: float | None
    seam_sd_log: float | None
    stalls_suspected: tuple[int, ...] | None
    ranges: Ranges | None


def describe(
    candidate: Sequence[float],
    reference: Sequence[float],
    direction: Direction,
    first: Sequence[FirstSide] | None = None,
) -> Description:
    """Describe a cell from both sides' readings, matched by position and in the order of measuring.

    ``first``: which side ran first in each pair; ``None`` when nobody wrote it down, and then nothing is said
    about order and seams. Refuses what ``pair_log_ratios`` refuses.
    """
    d = pair_log_ratios(candidate, reference, direction)
    if first is not None and len(first) != len(d):
        raise NothingCompared(
            "order of the sides",
            expected=f"one first side for each of {len(d)} pairs",
            found=f"{len(first)}",
            mend="Give the order of every pair, or None.",
        )
    if first is not None and not set(first) <= {"candidate", "reference"}:
        raise ConfigurationError(
            "order of the sides",
            expected="'candidate' or 'reference' for each pair",
            found=", ".join(sorted(repr(side) for side in set(first))),
            mend="Name the side that ran first.",
        )
    ours, theirs = [math.log(x) for x in candidate], [math.log(x) for x in reference]
    levels = [(a + b) / 2 for a, b in zip(ours, theirs, strict=True)]
    sd, unpaired, factor = _sd(d), _unpaired_sd(ours, theirs), resolvable_factor(len(d))
    return Description(
        pairs=len(d),
        candidate=_summary(candidate),
        reference=_summary(reference),
        ratio_of_medians=_ratio_of_medians(candidate, reference, direction),
        ratio_of_means=_ratio_of_means(candidate, reference, direction),
        pair_ratios=tuple(ratio_of_log(x) for x in d),
        median_pair_ratio=ratio_of_log(median(d)),
        smallest_pair_ratio=ratio_of_log(min(d)),
        smallest_pair=d.index(min(d)) + 1,
        largest_pair_ratio=ratio_of_log(max(d)),
        largest_pair=d.index(max(d)) + 1,
        pair_sd_log=sd,
        unpaired_sd_log=unpaired,
        pairing_worth=(unpaired / sd) ** 2 if sd and unpaired is not None else None,
        correlation=_correlation(ours, theirs),
        t_interval=_t_interval(d),
        resolvable_log=factor * sd if sd and factor is not None else None,
        order_effect=None if first is None else _order_effect(d, first),
        drift_per_pair_log=_slope(levels),
        drift_span_log=max(levels) - min(levels) if len(levels) > 1 else None,
        seam_sd_log=None if first is None else _sd(_seams(ours, theirs, first)),
        stalls_suspected=_far_out(d),
        ranges=_ranges(candidate, reference),
    )


def range_overlap_alpha(n: int) -> float:
    """Chance that n readings of an engine all lie above n more of the same engine: 1 / C(2n, n).

    Exact when the 2n readings are exchangeable, which position, blocks and drift break.
    """
    if n < 1:
        raise NothingCompared("ranges", expected="at least one reading a side", found=str(n), mend="Measure.")
    return 1 / math.comb(2 * n, n)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _sd(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); ``None`` for fewer than two values."""
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return 0.0  # rounding of the mean must not look like noise
    mean = _mean(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))


def _unpaired_sd(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    sd_ours, sd_theirs = _sd(ours), _sd(theirs)
    return None if sd_ours is None or sd_theirs is None else math.hypot(sd_ours, sd_theirs)


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    sd_x, sd_y = _sd(xs), _sd(ys)
    if not sd_x or not sd_y:
        return None
    mean_x, mean_y = _mean(xs), _mean(ys)
    covariance = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / (len(xs) - 1)
    return max(-1.0, min(1.0, covariance / sd_x / sd_y))


def _t_interval(d: Sequence[float], level: float = 0.90) -> Interval | None:
    sd = _sd(d)
    if not sd:
        return None
    half = t_quantile(0.5 + level / 2, len(d) - 1) * sd / math.sqrt(len(d))
    return Interval(ratio_of_log(_mean(d) - half), ratio_of_log(_mean(d) + half), level)


def _slope(levels: Sequence[float]) -> float | None:
    if len(levels) < 2:
        return None
    middle, mean = (len(levels) - 1) / 2, _mean(levels)
    above = math.fsum((i - middle) * (level - mean) for i, level in enumerate(levels))
    return above / math.fsum((i - middle) ** 2 for i in range(len(levels)))


def _order_effect(d: Sequence[float], first: Sequence[FirstSide]) -> OrderEffect | None:
    ours = [x for x, side in zip(d, first, strict=True) if side == "candidate"]
    theirs = [x for x, side in zip(d, first, strict=True) if side == "reference"]
    if not ours or not theirs:
        return None
    effect = (_mean(ours) - _mean(theirs)) / 2
    df = len(ours) + len(theirs) - 2
    squares = math.fsum((x - _mean(group)) ** 2 for group in (ours, theirs) for x in group)
    if df < 1 or squares == 0:
        return OrderEffect(effect, None, None, None, len(ours), len(theirs))
    error = math.sqrt(squares / df * (1 / len(ours) + 1 / len(theirs))) / 2
    half = t_quantile(0.95, df) * error
    return OrderEffect(effect, effect - half, effect + half, effect / error, len(ours), len(theirs))


def _seams(ours: Sequence[float], theirs: Sequence[float], first: Sequence[FirstSide]) -> list[float]:
    """Changes of one engine from the end of a pair to the beginning of the next, where both are its runs."""
    seams = []
    for k in range(len(first) - 1):
        if first[k] != first[k + 1]:
            logs = ours if first[k + 1] == "candidate" else theirs
            seams.append(logs[k + 1] - logs[k])
    return seams


def _far_out(d: Sequence[float]) -> tuple[int, ...] | None:
    """Numbers (from 1) of pairs far from the median pair; ``None`` when most pairs agree to the last bit.

    At five pairs of plain normal noise one cell in five has such a pair: a hint to look, and no more.
    """
    middle = median(d)
    mad = median([abs(x - middle) for x in d])
    if len(d) < 3 or mad == 0:
        return None
    return tuple(rep for rep, x in enumerate(d, start=1) if abs(x - middle) > STALL_MADS * mad)


def _ranges(ours: Sequence[float], theirs: Sequence[float]) -> Ranges | None:
    if len(ours) < 2:
        return None
    if min(ours) > max(theirs):
        return "candidate-above"
    return "reference-above" if min(theirs) > max(ours) else "overlap"

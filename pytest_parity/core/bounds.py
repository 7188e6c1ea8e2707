"""Readings to pair logs, exact null distributions, and exact bounds on the centre of the pair logs.

Units and sources as in ``stats``, which decides with what is computed here. Counted in integers: no table and
no normal curve is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pytest_parity.errors import ConfigurationError, NothingCompared, TimingUnreadable

__all__ = [
    "Bounds",
    "Direction",
    "all_finite",
    "finite_logs",
    "largest_sign_k",
    "largest_walsh_k",
    "median",
    "nothing",
    "pair_log_ratios",
    "ratio_of_log",
    "sign_bounds",
    "sign_cdf",
    "signed_rank_cdf",
    "threshold_log",
    "walsh_averages",
    "walsh_bounds",
]

Direction = Literal["rate", "time"]


def pair_log_ratios(
    candidate: Sequence[float], reference: Sequence[float], direction: Direction
) -> tuple[float, ...]:
    """Natural logs of the pair ratios, in the order of the pairs; above 0 the candidate wins.

    ``direction`` ``rate``: ln(candidate / reference), of readings in something per second. ``time``:
    ln(reference / candidate), of readings in seconds. The two sequences are matched by position.

    Raises ``NothingCompared`` without pairs or when a reading has no partner, and ``TimingUnreadable`` for a
    reading that is zero, negative, infinite or not a number.
    """
    if direction not in ("rate", "time"):
        raise ConfigurationError(
            "direction of a metric",
            expected="'rate' or 'time'",
            found=repr(direction),
            mend="Name one of them.",
        )
    if len(candidate) == len(reference) == 0:
        raise nothing("pair ratios", "at least one pair")
    if len(candidate) != len(reference):
        raise NothingCompared(
            "pair ratios",
            expected="one reading of each side in every pair",
            found=f"{len(candidate)} of the candidate and {len(reference)} of the reference",
            mend="A reading without its partner is compared with nothing: the cell is incomplete.",
        )
    logs = []
    for rep, (ours, theirs) in enumerate(zip(candidate, reference, strict=True), start=1):
        difference = _reading_log(ours, "candidate", rep) - _reading_log(theirs, "reference", rep)
        logs.append(difference if direction == "rate" else 0.0 - difference)
    return tuple(logs)


def _reading_log(reading: float, side: str, rep: int) -> float:
    if not (math.isfinite(reading) and reading > 0):
        raise TimingUnreadable(
            f"reading of the {side} in pair {rep}",
            expected="a finite number above zero",
            found=repr(reading),
            mend="Such a pair is broken, not slow: keep its receipt and leave the cell incomplete.",
        )
    return math.log(reading)


def threshold_log(threshold: float) -> float:
    """Natural log of a threshold given as a ratio (1.05: five per cent faster; 0.99: within one per cent)."""
    if not (math.isfinite(threshold) and threshold > 0):
        raise ConfigurationError(
            "threshold of a claim",
            expected="a finite ratio above zero",
            found=repr(threshold),
            mend="Write 1.05 for five per cent faster, or a margin below 1 for parity.",
        )
    return math.log(threshold)


def ratio_of_log(log: float) -> float:
    """The ratio that a log stands for; infinite where a float cannot hold it."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


def median(values: Sequence[float]) -> float:
    """Middle value, or half the sum of the two middle ones.

    Of pair logs this is the log of the geometric median of the pair ratios, which is the smaller of the usual
    two readings of "median pair ratio" for an even number of pairs.
    """
    if not values:
        raise nothing("a median", "at least one value")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@lru_cache(maxsize=64)
def _signed_rank_counts(n: int) -> tuple[int, ...]:
    """Number of the 2**n sign patterns whose negative ranks sum to w, for every w (Wilcoxon 1945)."""
    counts = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(rank * (rank + 1) // 2, rank - 1, -1):
            counts[total] += counts[total - rank]
    return tuple(counts)


def signed_rank_cdf(n: int, k: int) -> float:
    """P(W- <= k) for n pairs that differ by chance alone: an exact integer over 2**n."""
    return sum(_signed_rank_counts(_pairs(n))[: max(k + 1, 0)]) / (1 << n)


def sign_cdf(n: int, k: int) -> float:
    """P(at most k of n fair coins show tails): an exact integer over 2**n."""
    return sum(math.comb(_pairs(n), j) for j in range(min(k, n) + 1)) / (1 << n)


def largest_walsh_k(n: int, alpha: float) -> int | None:
    """The largest k with P(W- <= k) <= alpha at n pairs; ``None`` when even k = 0 spends more."""
    return _largest(_signed_rank_counts(_pairs(n)), n, alpha)


def largest_sign_k(n: int, alpha: float) -> int | None:
    """The largest number of adverse pairs that the sign test forgives at n pairs; ``None`` for none."""
    return _largest([math.comb(_pairs(n), j) for j in range(n + 1)], n, alpha)


def _largest(counts: Sequence[int], n: int, alpha: float) -> int | None:
    spent, best = 0, None
    for k, count in enumerate(counts):
        spent += count
        if spent / (1 << n) > alpha:
            break
        best = k
    return best


def _pairs(n: int) -> int:
    if n < 1:
        raise nothing("a null distribution", "at least one pair")
    return n


@dataclass(frozen=True, slots=True)
class Bounds:
    """Two one-sided bounds on the centre of the pair ratios, each wrong with chance ``one_sided_alpha``."""

    lower_log: float
    upper_log: float
    one_sided_alpha: float

    @property
    def lower(self) -> float:
        """Lower bound, as a ratio."""
        return ratio_of_log(self.lower_log)

    @property
    def upper(self) -> float:
        """Upper bound, as a ratio."""
        return ratio_of_log(self.upper_log)


def walsh_bounds(d: Sequence[float], k: int) -> Bounds:
    """Exact bounds from the pair logs ``d``: the (k+1)-th smallest and largest Walsh average.

    A Walsh average is (d_i + d_j) / 2 with i <= j; there are n(n+1)/2. The confidence is exact when the
    pairs are independent and each is symmetric about the centre (Hollander & Wolfe, section 3.3).
    """
    return _bounds("Walsh averages", walsh_averages(finite_logs(d)), k, signed_rank_cdf(len(d), k))


def sign_bounds(d: Sequence[float], k: int) -> Bounds:
    """Exact bounds on the median from the pair logs ``d``: the (k+1)-th smallest and largest pair.

    Needs independent pairs and no symmetry. With k = 0 it is [smallest, largest], as ``walsh_bounds`` is.
    """
    return _bounds("pairs", sorted(finite_logs(d)), k, sign_cdf(len(d), k))


def walsh_averages(d: Sequence[float]) -> list[float]:
    """All means of two pair logs, each with itself too, in ascending order."""
    return sorted((d[i] + d[j]) / 2 for i in range(len(d)) for j in range(i, len(d)))


def _bounds(of: str, ordered: Sequence[float], k: int, alpha: float) -> Bounds:
    most = (len(ordered) - 1) // 2
    if not 0 <= k <= most:
        raise ConfigurationError(
            f"bounds from {len(ordered)} {of}",
            expected=f"k from 0 to {most}",
            found=f"k = {k}",
            mend="A larger k would put the lower bound above the upper one.",
        )
    return Bounds(ordered[k], ordered[-1 - k], alpha)


def finite_logs(d: Sequence[float]) -> tuple[float, ...]:
    """The pair logs as they are; raises where there are none, or one is infinite or not a number."""
    if not d:
        raise nothing("pair logs", "at least one pair")
    return all_finite(d)


def all_finite(d: Sequence[float]) -> tuple[float, ...]:
    """The pair logs as they are, none of them is fine; raises TimingUnreadable where one is no finite number."""
    for rep, value in enumerate(d, start=1):
        if not math.isfinite(value):
            raise TimingUnreadable(
                f"log ratio of pair {rep}",
                expected="a finite number",
                found=repr(value),
                mend="Make the logs with pair_log_ratios, which refuses unreadable readings.",
            )
    return tuple(d)


def nothing(thing: str, expected: str) -> NothingCompared:
    """The error for a sum or a comparison over nothing."""
    return NothingCompared(
        thing, expected=expected, found="none", mend="Nothing was compared, and that is never a pass."
    )

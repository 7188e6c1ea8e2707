"""How one performance cell is decided: pair ratios, exact bounds, the floor, the word.

Pure: standard library, values in, values out. Everything that decides is exact: the null distribution of
Wilcoxon's signed-rank statistic is counted in integers, so that no table and no normal curve is trusted.
What only describes (means, t intervals, drift) is in ``diagnostics``, and never decides.

Units. A *pair log* is a natural logarithm of a pair ratio (``pair_log_ratios``); above 0 the candidate wins.
Names ending in ``_log`` are in that unit; bounds and thresholds without it are ratios. All comparisons are
made between logs, so that swapping the sides mirrors a decision exactly.

Sources: Wilcoxon, Biometrics Bulletin 1 (1945); Hollander & Wolfe, Nonparametric Statistical Methods, ch. 3
(Walsh averages, exact bounds on the centre); Holm, Scand. J. Statist. 6 (1979); Howard & Ramdas on
anytime-valid inference (e-processes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_parity.core.bounds import (
    Bounds,
    Direction,
    all_finite,
    finite_logs,
    largest_sign_k,
    largest_walsh_k,
    median,
    nothing,
    pair_log_ratios,
    ratio_of_log,
    sign_bounds,
    sign_cdf,
    signed_rank_cdf,
    threshold_log,
    walsh_averages,
    walsh_bounds,
)
from pytest_parity.errors import ConfigurationError, NothingCompared

__all__ = [
    "ALPHA",
    "CONTROL_PAIRS",
    "E_THRESHOLD",
    "PLAN_NAMES",
    "Bounds",
    "CellDecision",
    "Control",
    "ControlState",
    "Direction",
    "Look",
    "Objection",
    "Reason",
    "StatPlan",
    "Word",
    "control",
    "decide",
    "finite_logs",
    "holm",
    "largest_sign_k",
    "largest_walsh_k",
    "median",
    "pair_log_ratios",
    "plan",
    "plan_p",
    "ratio_of_log",
    "sign_bounds",
    "sign_cdf",
    "sign_e_value",
    "signed_rank_cdf",
    "signed_rank_p",
    "threshold_log",
    "walsh_bounds",
]

ALPHA = 0.05
"""Chance of a false word in one direction that a plan may spend over all its looks."""

CONTROL_PAIRS = 6
"""Pairs in a control, always: its interval is then wrong once in 64 on each side."""

E_THRESHOLD = 20.0
"""An e-value of 20 is as strong as a p-value of 0.05, at any moment of stopping (Ville's inequality)."""

Word = Literal["PASS", "MISS", "UNRESOLVED", "INVALID", "INCOMPLETE", "NEEDS_LOOK_2"]
ControlState = Literal["clean", "resolved", "absent"]
Objection = Literal["order-effect", "process-reused"]
Side = Literal["above", "below"]
Reason = Literal[
    "bound-above",
    "bound-below",
    "no-control",
    "floor",
    "straddles",
    "order-effect",
    "process-reused",
    "control-resolved",
    "pairs-missing",
    "pairs-surplus",
]


# --- plans ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """One declared moment of deciding.

    ``pairs``: pairs measured by then. ``walsh_k``: the bounds are the (k+1)-th smallest and largest Walsh
    average. ``alpha``: the chance that one of the two bounds is wrong, exact.
    """

    pairs: int
    walsh_k: int
    alpha: float


@dataclass(frozen=True, slots=True)
class StatPlan:
    """A number of pairs, declared before the first one; a second look is the only extension there is."""

    name: str
    looks: tuple[Look, ...]

    @property
    def total_alpha(self) -> float:
        """Chance of a false word per direction over all looks (their sum: Boole's bound)."""
        return math.fsum(look.alpha for look in self.looks)

    @property
    def most_pairs(self) -> int:
        """Pairs at the last look."""
        return self.looks[-1].pairs


_PAIRS_AT_LOOKS: dict[str, tuple[int, ...]] = {"5": (5,), "6": (6,), "6+6": (6, 12), "5+5": (5, 10)}
PLAN_NAMES: tuple[str, ...] = tuple(_PAIRS_AT_LOOKS)


def plan(name: str) -> StatPlan:
    """The plan of that name: ``5``, ``6``, ``6+6`` or ``5+5``.

    The last look spends what is left of ``ALPHA``; a look before it spends the least that is possible,
    2**-pairs, so its bounds are the smallest and the largest pair.
    """
    if name not in _PAIRS_AT_LOOKS:
        raise ConfigurationError(
            "plan of pairs",
            expected="one of " + ", ".join(f"'{known}'" for known in PLAN_NAMES),
            found=repr(name),
            mend="Declare one of these; a number of pairs chosen later is no plan.",
        )
    looks: list[Look] = []
    budget = ALPHA
    for pairs in _PAIRS_AT_LOOKS[name]:
        last = pairs == _PAIRS_AT_LOOKS[name][-1]
        k = largest_walsh_k(pairs, budget) if last else 0
        assert k is not None, "every plan in the table has a bound"
        looks.append(Look(pairs, k, signed_rank_cdf(pairs, k)))
        budget -= looks[-1].alpha
    return StatPlan(name, tuple(looks))


# --- bounds --------------------------------------------------------------------------------------------


# --- the control ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Control:
    """What an engine against itself showed in this session: the smallest and the largest of six pairs."""

    lower_log: float
    upper_log: float

    @property
    def lower(self) -> float:
        """Smallest pair ratio."""
        return ratio_of_log(self.lower_log)

    @property
    def upper(self) -> float:
        """Largest pair ratio."""
        return ratio_of_log(self.upper_log)

    @property
    def resolved(self) -> bool:
        """The interval leaves 1 out: a difference that cannot be there. About 1 healthy session in 32."""
        return not self.lower_log <= 0.0 <= self.upper_log

    @property
    def state(self) -> ControlState:
        """``clean`` or ``resolved``; a session without a control is ``absent``."""
        return "resolved" if self.resolved else "clean"

    @property
    def floor_log(self) -> float:
        """F: the farther end of the interval from 1. Nothing nearer than F to a threshold is decided."""
        return max(abs(self.lower_log), abs(self.upper_log))


def control(d_logs: Sequence[float]) -> Control:
    """The control from the logs of its six pairs; any other number raises ``NothingCompared``."""
    if len(d_logs) != CONTROL_PAIRS:
        raise NothingCompared(
            "control of the session",
            expected=f"exactly {CONTROL_PAIRS} pairs of the reference with itself",
            found=f"{len(d_logs)} pairs",
            mend="There is no control: performance cells of this session stay UNRESOLVED.",
        )
    logs = finite_logs(d_logs)
    return Control(min(logs), max(logs))


# --- the decision --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CellDecision:
    """The word of one performance cell, and every number that it rests on.

    ``reason``: the first of ``reasons``, in the order in which they would have to be mended.
    ``by_bounds``: what the bounds alone say, without control and floor; never a verdict.
    ``gap_log``: ln median - ln threshold. ``floor_log``: F, ``None`` without a control.
    ``look``: 1 or 2, ``None`` when the number of pairs is no look of the plan (then no bounds either).
    ``alpha_spent``: per direction, up to and with that look.
    ``undeclared_continuation``: look 1 had decided, and pairs were measured after it.
    """

    word: Word
    reasons: tuple[Reason, ...]
    plan: StatPlan
    threshold: float
    pairs_given: int
    pairs_used: int
    floor_log: float | None
    control_state: ControlState
    look: int | None = None
    alpha_spent: float = 0.0
    bounds: Bounds | None = None
    by_bounds: Literal["PASS", "MISS", "STRADDLES"] | None = None
    median_log: float | None = None
    gap_log: float | None = None
    undeclared_continuation: bool = False

    @property
    def reason(self) -> Reason:
        """The reason that comes first."""
        return self.reasons[0]

    @property
    def median_pair_ratio(self) -> float | None:
        """Geometric median of the pair ratios used."""
        return None if self.median_log is None else ratio_of_log(self.median_log)

    @property
    def differs_from_one(self) -> Literal["faster", "slower"] | None:
        """Where the bounds leave 1 out: a PASS within a margin may still be resolved ``slower``."""
        if self.bounds is None or self.bounds.lower_log <= 0.0 <= self.bounds.upper_log:
            return None
        return "faster" if self.bounds.lower_log > 0.0 else "slower"


def decide(
    d_logs: Sequence[float],
    plan: StatPlan,
    threshold: float,
    floor_log: float | None,
    control_state: ControlState,
    objections: Sequence[Objection] = (),
) -> CellDecision:
    """The word of one cell from its pair logs, in the order in which they were measured.

    PASS: the lower bound is at or above ``threshold`` (a ratio), the control is clean, and the median lies
    more than the floor F above the threshold. MISS: the upper bound is below it, the control is clean, and
    the median lies more than F below. UNRESOLVED: everything else that was measured in full.
    INVALID: the control told an engine from itself. INCOMPLETE: the number of pairs is no look of the plan;
    this comes before INVALID, because without all pairs there is no verdict that could be invalid.
    NEEDS_LOOK_2: the first look of a two-look plan gave neither PASS nor MISS; the second is mandatory, and
    only an INVALID session ends without it.

    When all pairs are given although look 1 had decided, this does not raise: a cell is continued for the
    sake of its other metrics. The decision is look 1's, on its pairs alone, marked
    ``undeclared_continuation``.

    ``objections`` are the caller's further reasons against any PASS or MISS, at every look. Where two
    readings of the rule are possible, the one under which fewer cells pass is used.
    """
    d = all_finite(d_logs)
    log_threshold = threshold_log(threshold)
    _check_floor(floor_log, control_state)
    nothing_yet = CellDecision(
        "INCOMPLETE", ("pairs-missing",), plan, threshold, len(d), 0, floor_log, control_state
    )
    looks = [look.pairs for look in plan.looks]
    if len(d) not in looks:
        surplus = len(d) > plan.most_pairs
        return replace(nothing_yet, reasons=("pairs-surplus" if surplus else "pairs-missing",))
    given = looks.index(len(d))
    for index in range(given):
        earlier = _at_look(nothing_yet, d, index, log_threshold, objections)
        if earlier.word in ("PASS", "MISS"):
            return replace(earlier, undeclared_continuation=True)
    decision = _at_look(nothing_yet, d, given, log_threshold, objections)
    if decision.word == "UNRESOLVED" and given + 1 < len(looks):
        return replace(decision, word="NEEDS_LOOK_2")
    return decision


def _at_look(
    blank: CellDecision,
    d: tuple[float, ...],
    index: int,
    log_threshold: float,
    objections: Sequence[Objection],
) -> CellDecision:
    """The full rule at one look, on the pairs that had been measured by then."""
    look = blank.plan.looks[index]
    used = d[: look.pairs]
    bounds = walsh_bounds(used, look.walsh_k)
    middle = median(used)
    gap = middle - log_threshold
    by_bounds: Literal["PASS", "MISS", "STRADDLES"] = "STRADDLES"
    if bounds.lower_log >= log_threshold:
        by_bounds = "PASS"
    elif bounds.upper_log < log_threshold:
        by_bounds = "MISS"
    against: list[Reason] = []
    if blank.floor_log is None:
        against.append("no-control")
    against.extend(objections)
    if blank.floor_log is not None and not abs(gap) > blank.floor_log:
        against.append("floor")
    if by_bounds == "STRADDLES":
        against.append("straddles")
    word: Word = "UNRESOLVED"
    if blank.control_state == "resolved":
        word, against = "INVALID", ["control-resolved"]
    elif not against:
        word = "PASS" if by_bounds == "PASS" else "MISS"
        against = ["bound-above" if word == "PASS" else "bound-below"]
    return replace(
        blank,
        word=word,
        reasons=tuple(against),
        pairs_used=look.pairs,
        look=index + 1,
        alpha_spent=math.fsum(each.alpha for each in blank.plan.looks[: index + 1]),
        bounds=bounds,
        by_bounds=by_bounds,
        median_log=middle,
        gap_log=gap,
    )


def _check_floor(floor_log: float | None, state: ControlState) -> None:
    if state not in ("clean", "resolved", "absent"):
        raise ConfigurationError(
            "state of the control",
            expected="'clean', 'resolved' or 'absent'",
            found=repr(state),
            mend="Take it from Control.state.",
        )
    fits = floor_log is None if state == "absent" else floor_log is not None and 0 <= floor_log < math.inf
    if not fits:
        raise NothingCompared(
            f"floor of a session whose control is {state}",
            expected="no floor" if state == "absent" else "a finite floor, zero or above",
            found=repr(floor_log),
            mend="Take floor and state from one Control; without a control give None and 'absent'.",
        )


# --- many cells, and open-ended measuring --------------------------------------------------------------


def signed_rank_p(d: Sequence[float], threshold_log: float, *, side: Side) -> float:
    """Exact one-sided p-value of Wilcoxon's signed-rank test of the pair logs at a threshold.

    ``side`` says what a small p supports: the centre lies ``above`` or ``below`` the threshold (a matrix
    MISS needs ``below``). The statistic is the number of Walsh averages on the wrong side. One that equals
    the threshold counts as wrong, so zeros and ties are broken against the claim, and the p-value is never
    too small. Dual to ``walsh_bounds``: p <= P(W- <= k) exactly when the k-bound lies beyond the threshold.
    """
    if side not in ("above", "below"):
        raise ConfigurationError(
            "side of a test",
            expected="'above' or 'below'",
            found=repr(side),
            mend="Name what a small p supports.",
        )
    averages = walsh_averages(finite_logs(d))
    if not math.isfinite(threshold_log):
        raise ConfigurationError(
            "threshold of a test",
            expected="a finite log",
            found=repr(threshold_log),
            mend="Use threshold_log().",
        )
    if side == "above":
        wrong = sum(average <= threshold_log for average in averages)
    else:
        wrong = sum(average >= threshold_log for average in averages)
    return signed_rank_cdf(len(d), wrong)


def plan_p(d: Sequence[float], plan: StatPlan, threshold_log: float, *, side: Side) -> float:
    """One-sided p-value of a cell over all looks that were taken: what Holm may use.

    Every look's p-value is divided by the look's share of the plan's alpha, and the least is taken (weighted
    Bonferroni). It is at most ``plan.total_alpha`` exactly when some look's bound is beyond the threshold.
    """
    taken = [look for look in plan.looks if look.pairs <= len(d)]
    if not taken or taken[-1].pairs != len(d):
        raise NothingCompared(
            f"p-value of a cell under plan {plan.name}",
            expected="as many pairs as a look of the plan has",
            found=f"{len(d)} pairs",
            mend="An unfinished cell is INCOMPLETE and enters no test.",
        )
    total = plan.total_alpha
    scaled = (signed_rank_p(d[: look.pairs], threshold_log, side=side) * total / look.alpha for look in taken)
    return min(1.0, *scaled)


def holm(pvalues: Sequence[float], alpha: float = ALPHA) -> tuple[bool, ...]:
    """Which of several cells hold at once, in the order given: Holm's step-down test (1979).

    The chance that any of the true ones is a false word is at most ``alpha``, whatever their dependence.
    """
    if not pvalues:
        raise nothing("Holm's test", "at least one p-value")
    for p in pvalues:
        if not 0.0 <= p <= 1.0:
            raise ConfigurationError(
                "p-value of a cell",
                expected="from 0 to 1",
                found=repr(p),
                mend="Use plan_p or signed_rank_p.",
            )
    holds = [False] * len(pvalues)
    for passed, index in enumerate(sorted(range(len(pvalues)), key=lambda i: pvalues[i])):
        if pvalues[index] * (len(pvalues) - passed) > alpha:
            break
        holds[index] = True
    return tuple(holds)


def sign_e_value(wins: int, losses: int) -> float:
    """Evidence against "a win is no likelier than a loss", valid at any moment of stopping.

    E = integral from 0 to 1 of (1 + l)**wins * (1 - l)**losses dl, in closed form
    sum(C(n+1, j), j <= wins) / ((n + 1) * C(n, wins)) with n = wins + losses, computed in integers.
    A pair that equals the threshold is a loss, for PASS and for its mirror MISS. Stop at ``E_THRESHOLD``
    or at the declared cap. No pair at all is E = 1: no evidence. Infinite where a float cannot hold it.
    """
    if wins < 0 or losses < 0:
        raise ConfigurationError(
            "counts of an e-value",
            expected="zero or more wins and losses",
            found=f"{wins} wins, {losses} losses",
            mend="Count pairs.",
        )
    n = wins + losses
    try:
        return sum(math.comb(n + 1, j) for j in range(wins + 1)) / ((n + 1) * math.comb(n, wins))
    except OverflowError:
        return math.inf

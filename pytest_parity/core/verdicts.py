"""From records to words. Derived each time, never stored by hand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_parity.core import diagnostics, stats
from pytest_parity.core.claims import Claim, Expected
from pytest_parity.core.metrics import metric
from pytest_parity.core.plan import CONTROL_PAIRS, Cell, declared_cells
from pytest_parity.core.receipts import PairRecord
from pytest_parity.errors import ParityError

__all__ = ["CellVerdict", "ClaimVerdict", "Context", "ControlResult", "control_result", "judge_cell", "judge_claim", "second_look_needed"]

HOLDING = ("PASS", "PASS(point)", "RECORDED")


@dataclass(frozen=True, slots=True)
class ControlResult:
    """The control of one reference and lane, for one metric: a floor, or why there is none."""

    control: stats.Control | None
    why: str
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What a verdict needs beside the records.

    ``asked``: reps asked for, by cell. ``other_plan``: another number of pairs than declared was asked for.
    ``speculative``: the lane drafts. ``stale``: why the evidence is too old, or ``None``.
    ``lease_lost``: cells unmeasured only for want of the lease.
    """

    asked: Mapping[Cell, frozenset[int]]
    other_plan: bool = False
    speculative: bool = False
    stale: str | None = None
    lease_lost: frozenset[Cell] = frozenset()


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """One cell's word and what it rests on.

    ``held``: does it count as holding for the exit status. ``diagnostic``: fewer or other pairs than
    declared: exactness alone counts. ``records``: every pair of the cell in this session.
    """

    cell: Cell
    word: str
    sentence: str
    asked: bool
    held: bool
    records: tuple[PairRecord, ...] = ()
    diagnostic: bool = False
    expected: Expected | None = None
    for_want_of_lease: bool = False
    decision: stats.CellDecision | None = None
    description: diagnostics.Description | None = None
    needed: diagnostics.PairsNeeded | None = None
    notes: tuple[str, ...] = ()

    @property
    def exact_tokens(self) -> int | None:
        """The shortest output proven equal over the passed pairs."""
        lengths = [r.tokens for r in self.records if r.outcome == "passed" and r.tokens is not None]
        return min(lengths) if lengths else None


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """A claim's word over all its declared cells."""

    claim: Claim
    word: str
    sentence: str
    cells: tuple[CellVerdict, ...]
    held: bool
    """Everything asked of this claim holds. Not the same as PASS: a filter leaves cells unasked."""
    command: str | None = None
    minimum_lower: float | None = None
    """The smallest lower bound over all cells: the number that may be claimed."""

    @property
    def expected_met(self) -> bool:
        """Some asked cell carries an expectation, and all of those are met."""
        marked = [cell for cell in self.cells if cell.asked and cell.expected is not None]
        return bool(marked) and all(cell.held for cell in marked)


def control_result(records: Sequence[PairRecord], metric_name: str) -> ControlResult:
    """The floor that six pairs of an engine against itself give."""
    diverged = [r for r in records if r.outcome == "diverged"]
    if diverged:
        return ControlResult(None, f"the control's pair r{diverged[0].rep} did not write the same tokens twice", True)
    readings = [(r.rep, r.readings(metric_name)) for r in sorted(records, key=lambda r: r.rep)]
    known = [pair for _, pair in readings if pair is not None]
    if len(known) != CONTROL_PAIRS or [rep for rep, _ in readings] != list(range(1, CONTROL_PAIRS + 1)):
        return ControlResult(None, f"the control has {len(known)} of {CONTROL_PAIRS} pairs")
    try:
        logs = stats.pair_log_ratios([a for a, _ in known], [b for _, b in known], metric(metric_name).direction)
    except ParityError as error:
        return ControlResult(None, f"the control cannot be read: {error}")
    return ControlResult(stats.control(logs), "")


def judge_cell(
    claim: Claim, cell: Cell, records: Sequence[PairRecord], control: ControlResult, context: Context
) -> CellVerdict:
    """The word of one declared cell of ``claim``."""
    mine = tuple(sorted((r for r in records if _is_of(r, claim, cell)), key=lambda r: r.rep))
    reps = context.asked.get(cell, frozenset())
    expected = claim.expectation(cell.depth, cell.fixture)
    lost = cell in context.lease_lost
    if not reps:
        return CellVerdict(cell, "INCOMPLETE", "not asked for in this run", False, True, mine, expected=expected)
    blank = CellVerdict(cell, "", "", True, False, mine, expected=expected, for_want_of_lease=lost)
    found = _judge_asked(claim, blank, reps, control, context)
    if found.diagnostic and expected is not None and expected.verdict != "FAIL":
        return replace(found, expected=None)  # no word on speed exists that could be held against it
    held = found.word == expected.verdict if expected is not None else found.held
    return replace(found, held=held)


def _is_of(record: PairRecord, claim: Claim, cell: Cell) -> bool:
    return (
        record.claim == claim.name
        and record.control_of is None
        and record.depth == cell.depth
        and record.fixture == cell.fixture
    )


def _judge_asked(
    claim: Claim, blank: CellVerdict, reps: frozenset[int], control: ControlResult, context: Context
) -> CellVerdict:
    records = blank.records
    early = _without_numbers(claim, blank, reps, context)
    if early is not None:
        return early
    cell = blank.cell
    if context.other_plan or reps != frozenset(range(1, cell.pairs + 1)):
        full = {r.rep for r in records if r.outcome == "passed"} >= reps
        return replace(
            blank,
            word="INCOMPLETE",
            diagnostic=True,
            held=full,
            sentence=f"diagnostic: {len(records)} pair{'s' * (len(records) != 1)} of another plan than "
            f"{cell.plan!r}; exact in each, and no verdict on speed exists",
        )
    if claim.kind == "exact":
        return _broken_floor(claim, blank) or replace(blank, word="PASS", held=True, sentence=_proven(claim, blank))
    return _with_numbers(claim, blank, control)


def _without_numbers(
    claim: Claim, blank: CellVerdict, reps: frozenset[int], context: Context
) -> CellVerdict | None:
    """Everything that is decided before any rate is looked at."""
    records = blank.records
    diverged = [r for r in records if r.outcome == "diverged"]
    if diverged:
        d = diverged[0].divergence
        assert d is not None
        return replace(
            blank,
            word="FAIL",
            sentence=f"diverged at r{diverged[0].rep}: {_first_difference(d.kind, d.position, d.candidate_id, d.reference_id)}",
        )
    edited = [r for r in records if r.claim_digest != claim.digest]
    if edited:
        return replace(blank, word="STALE", sentence="the claim was edited after it was measured")
    if context.stale is not None:
        return replace(blank, word="STALE", sentence=context.stale)
    refused = [r for r in records if r.outcome == "refused"]
    for record in refused:
        assert record.reason is not None
        word = {"unsupported": "UNSUPPORTED", "pin": "STALE"}.get(record.reason.code, "INCOMPLETE")
        return replace(blank, word=word, sentence=record.reason.sentence)
    unmeasured = [r for r in records if r.outcome in ("void", "broken")]
    if unmeasured:
        first = unmeasured[0]
        assert first.reason is not None
        return replace(
            blank, word="INCOMPLETE", sentence=f"r{first.rep} is {first.outcome}: {first.reason.sentence}"
        )
    short = next((r for r in records if r.level != claim.exactness or (r.tokens or 0) < claim.minimum_tokens), None)
    if short is not None:
        sentence = f"r{short.rep} proves {short.tokens} tokens at level {short.level!r}, less than the claim asks"
        return replace(blank, word="INCOMPLETE", sentence=sentence)
    present = {r.rep for r in records}
    if len(present) != len(records) or len({r.session for r in records}) > 1:
        return replace(blank, word="INCOMPLETE", sentence="pairs of several sessions are never put together")
    may_stop = claim.kind in ("parity", "at-least") and not context.other_plan
    needed = reps & frozenset(range(1, blank.cell.first_look + 1)) if may_stop else reps
    missing = sorted(needed - present)
    if missing or not records:
        why = "the lease was not to be had" if blank.for_want_of_lease else "not measured"
        return replace(
            blank,
            word="INCOMPLETE",
            sentence=f"{why}: {', '.join(f'r{rep}' for rep in missing) or 'no pair'}",
        )
    lanes = {(r.candidate.engine, r.candidate.lane, r.reference.engine, r.reference.lane) for r in records}
    if lanes != {(claim.candidate, claim.lane, claim.reference, claim.other_lane)}:
        return replace(
            blank,
            word="INCOMPLETE",
            sentence="other engines or lanes were measured than the claim names: "
            + "; ".join(f"{a}/{b} against {c}/{d}" for a, b, c, d in sorted(lanes)),
        )
    configurations = {
        (r.candidate_digest, r.reference_digest, r.code_digest, r.candidate.build, r.reference.build) for r in records
    }
    if len(configurations) != 1:
        return replace(blank, word="INCOMPLETE", sentence="pairs of different engines or code are never put together")
    return None


def _with_numbers(claim: Claim, blank: CellVerdict, control: ControlResult) -> CellVerdict:
    assert claim.metric is not None
    records = blank.records
    pairs = [r.readings(claim.metric) for r in records]
    known = [pair for pair in pairs if pair is not None]
    if len(known) != len(pairs):
        return replace(
            blank, word="INCOMPLETE", sentence=f"{claim.metric} is unknown in {len(pairs) - len(known)} of {len(pairs)} pairs"
        )
    ours, theirs = [a for a, _ in known], [b for _, b in known]
    try:
        logs, description = _describe(claim.metric, records, ours, theirs)
    except ParityError as error:
        return replace(blank, word="INCOMPLETE", sentence=str(error))
    blank = replace(blank, description=description)
    broken = _broken_floor(claim, blank)
    if broken is not None:
        return broken
    if claim.kind == "reported":
        return replace(
            blank, word="RECORDED", held=True, sentence=f"median pair {description.median_pair_ratio:.4f}; recorded, never a pass"
        )
    bar = claim.bar
    assert bar is not None
    decision = _decide(claim, blank.cell, records, control)
    needed = diagnostics.pairs_needed(logs, bar, decision.floor_log)
    blank = replace(blank, decision=decision, needed=needed, notes=_notes(decision, description))
    if control.diverged:
        return replace(blank, word="INVALID", sentence=control.why)
    if claim.kind == "point":
        return _point(claim, blank, ours, theirs, control)
    if decision.word == "NEEDS_LOOK_2":
        return replace(blank, word="INCOMPLETE", sentence="look 1 did not decide, and look 2 was not measured in full")
    return replace(blank, word=decision.word, held=decision.word == "PASS", sentence=_decided(decision, control, blank))


def _describe(
    metric_name: str, records: Sequence[PairRecord], ours: Sequence[float], theirs: Sequence[float]
) -> tuple[tuple[float, ...], diagnostics.Description]:
    direction = metric(metric_name).direction
    first: list[diagnostics.FirstSide] = ["candidate" if r.order == "CR" else "reference" for r in records]
    return (
        stats.pair_log_ratios(ours, theirs, direction),
        diagnostics.describe(ours, theirs, direction, first),
    )


def _decide(
    claim: Claim, cell: Cell, records: Sequence[PairRecord], control: ControlResult
) -> stats.CellDecision:
    """The rule at the last look that was taken; look 1 decides only by what was known when it was taken."""
    plan = stats.plan(cell.plan)
    whole = _by_rule(claim, plan, records, control)
    if not whole.undeclared_continuation:
        return whole
    earlier = _by_rule(claim, plan, records[: cell.first_look], control)
    if earlier.word in ("PASS", "MISS"):
        return replace(earlier, pairs_given=len(records), undeclared_continuation=True)
    later = _by_rule(claim, replace(plan, looks=plan.looks[1:]), records, control)
    return replace(later, plan=plan, look=2, alpha_spent=plan.total_alpha)


def _by_rule(
    claim: Claim, plan: stats.StatPlan, records: Sequence[PairRecord], control: ControlResult
) -> stats.CellDecision:
    """The rule, with the one objection that this room knows: an order effect beyond half the margin."""
    assert claim.bar is not None and claim.metric is not None
    known = [pair for pair in (r.readings(claim.metric) for r in records) if pair is not None]
    logs, description = _describe(claim.metric, records, [a for a, _ in known], [b for _, b in known])
    floor = control.control.floor_log if control.control is not None else None
    state = control.control.state if control.control is not None else "absent"
    objections: list[stats.Objection] = []
    order = description.order_effect
    if claim.margin and order is not None and abs(order.effect_log) > claim.margin / 2:
        objections.append("order-effect")
    return stats.decide(logs, plan, claim.bar, floor, state, objections)


def second_look_needed(
    claim: Claim, cell: Cell, records: Sequence[PairRecord], control: ControlResult
) -> bool:
    """Must the second look be measured? ``records``: those of the first. Unknown counts as yes."""
    if claim.metric is None or claim.bar is None or claim.kind == "point":
        return True
    if sum(r.readings(claim.metric) is not None for r in records) != cell.first_look:
        return True
    try:
        return _decide(claim, cell, records, control).word == "NEEDS_LOOK_2"
    except ParityError:
        return True


def _point(
    claim: Claim, blank: CellVerdict, ours: Sequence[float], theirs: Sequence[float], control: ControlResult
) -> CellVerdict:
    assert claim.statistic is not None and claim.metric is not None and claim.threshold is not None
    if blank.decision is not None and blank.decision.word in ("INVALID", "INCOMPLETE", "NEEDS_LOOK_2"):
        word = "INVALID" if blank.decision.word == "INVALID" else "INCOMPLETE"
        return replace(blank, word=word, sentence=_decided(blank.decision, control, blank))
    if control.control is None:
        return replace(blank, word="UNRESOLVED", sentence=f"no control in the session: {control.why}")
    value = diagnostics.point(claim.statistic, ours, theirs, metric(claim.metric).direction)
    good = value >= claim.threshold
    return replace(
        blank,
        word="PASS(point)" if good else "MISS",
        held=good,
        sentence=f"{claim.statistic} {value:.4f} {'>=' if good else '<'} {claim.threshold:g}: a point, without error bounds",
    )


def _decided(decision: stats.CellDecision, control: ControlResult, verdict: CellVerdict) -> str:
    bounds = decision.bounds
    if bounds is None:
        return f"{decision.pairs_given} pairs are no look of plan {decision.plan.name}"
    span = f"[{bounds.lower:.4f}, {bounds.upper:.4f}]"
    if decision.word == "PASS":
        text = f"exact lower bound {bounds.lower:.4f} >= {decision.threshold:.4f}"
        if decision.differs_from_one == "slower":
            text += f", and resolved {(1 - bounds.upper) * 100:.1f} % slower or more within the margin"
        return text
    if decision.word == "MISS":
        return f"exact upper bound {bounds.upper:.4f} < {decision.threshold:.4f}"
    if decision.word == "INVALID":
        assert control.control is not None
        return (
            f"the control told the reference from itself: [{control.control.lower:.4f}, {control.control.upper:.4f}] "
            "leaves 1 out"
        )
    if decision.reason == "no-control":
        return f"no control in the session: {control.why or 'none was planned'}"
    if decision.reason == "order-effect":
        assert verdict.description is not None and verdict.description.order_effect is not None
        effect = verdict.description.order_effect.effect_log * 100
        return f"going first is worth {effect:+.1f} %, more than half the margin: mend the warm-up or the quiet period"
    if decision.reason == "floor":
        floor = (decision.floor_log or 0.0) * 100
        return (
            f"median {decision.median_pair_ratio:.4f} lies within the session's floor ({floor:.1f} %) of "
            f"{decision.threshold:.4f}: not decidable here"
        )
    text = f"bounds {span} straddle {decision.threshold:.4f}"
    if verdict.needed is not None:
        more = f"more than {verdict.needed.pairs}" if verdict.needed.capped else f"about {verdict.needed.pairs}"
        text += f"; {more} pairs would settle it"
    return text


def _notes(decision: stats.CellDecision, description: diagnostics.Description) -> tuple[str, ...]:
    notes = []
    if len(decision.plan.looks) == 2 and decision.look == 1 and decision.word in ("PASS", "MISS"):
        notes.append("look 2 not needed")
    if description.stalls_suspected:
        notes.append("stall suspected, kept: " + ", ".join(f"r{n}" for n in description.stalls_suspected))
    return tuple(notes)


def _broken_floor(claim: Claim, blank: CellVerdict) -> CellVerdict | None:
    """The first absolute bound on the candidate that does not hold, or cannot be looked at."""
    for name, bound in claim.floors.items():
        rate = metric(name).direction == "rate"
        floor = f"floor {name} {'>=' if rate else '<='} {bound:g}"
        for record in blank.records:
            reading = record.timing.candidate.value(name) if record.timing is not None else None
            if reading is None:
                return replace(blank, word="INCOMPLETE", sentence=f"{floor}: {name} is unknown in r{record.rep}")
            if not (reading >= bound if rate else reading <= bound):
                return replace(blank, word="FAIL", sentence=f"{floor} broken in r{record.rep}: {reading:.4g}")
    return None


def _proven(claim: Claim, verdict: CellVerdict) -> str:
    unit = "tokens" if claim.exactness == "tokens" else "tokens by their text"
    source = " (ids from an unstreamed repeat)" if any(r.ids_from == "repeat" for r in verdict.records) else ""
    return (
        f"{verdict.exact_tokens} {unit} equal, greedy, one slot, prompt of {verdict.cell.depth:,} ids, "
        f"{len(verdict.records)} pairs{source}"
    )


def _first_difference(kind: str, position: int, ours: int | None, theirs: int | None) -> str:
    if kind == "token":
        return f"token {position} is {ours}, the reference wrote {theirs}"
    if kind == "length":
        ended = "the candidate" if ours is None else "the reference"
        return f"{ended} ended at token {position}, the other went on"
    if kind == "text":
        return f"byte {position} of the text differs"
    return f"the same tokens, another {'stop reason' if kind == 'stop' else 'count'}"


def judge_claim(
    claim: Claim, records: Sequence[PairRecord], controls: Mapping[str, ControlResult], context: Context
) -> ClaimVerdict:
    """The word of ``claim`` over all its declared cells. ``controls``: by ``reference/lane``."""
    control = controls.get(f"{claim.reference}/{claim.other_lane}", ControlResult(None, "none was planned"))
    cells = tuple(judge_cell(claim, cell, records, control, context) for cell in declared_cells(claim))
    asked = [cell for cell in cells if cell.asked]
    word, sentence = _combine(claim, cells, context)
    held = bool(asked) and all(cell.held for cell in asked) and not _scope_gap(claim, context)
    worst = next((cell for cell in asked if not cell.held), None)
    lowers = [c.decision.bounds.lower for c in cells if c.decision is not None and c.decision.bounds is not None]
    return ClaimVerdict(
        claim,
        word,
        sentence,
        cells,
        held,
        command=None if word in HOLDING else next_command(claim, worst or next((c for c in cells if c.word not in HOLDING), None)),
        minimum_lower=min(lowers) if word == "PASS" and len(lowers) == len(cells) else None,
    )


def next_command(claim: Claim, cell: CellVerdict | None) -> str:
    """The command that measures or replays what is wanting."""
    parts = ["pytest", "-m", "parity", "--claims", claim.name]
    if cell is not None and cell.word == "FAIL" and cell.records:
        failed = next((r for r in cell.records if r.outcome == "diverged"), cell.records[0])
        return failed.replay or shlex.join(parts)
    if cell is not None and cell.asked:
        parts += ["--depths", str(cell.cell.depth), "--fixture-class", cell.cell.fixture]
    return shlex.join(parts)


def _scope_gap(claim: Claim, context: Context) -> str | None:
    """What the declared scope itself lacks; no measurement can mend it."""
    if context.speculative and not claim.has_natural:
        return (
            "a speculative lane needs a natural fixture class as well: synthetic alone certified a broken one (T07)"
        )
    if context.speculative and claim.minimum_tokens == 1:
        return "a speculative lane needs a stated minimum_tokens: a short output hides its faults (T16)"
    return None


def _combine(claim: Claim, cells: Sequence[CellVerdict], context: Context) -> tuple[str, str]:
    for word in ("FAIL", "INVALID", "UNSUPPORTED", "STALE"):
        hit = next((c for c in cells if c.word == word), None)
        if hit is not None:
            return word, f"{_at(hit)}: {hit.sentence}"
    gap = _scope_gap(claim, context)
    if gap is not None:
        return "INCOMPLETE", gap
    missing = [c for c in cells if c.word == "INCOMPLETE"]
    if missing:
        unasked = [c for c in missing if not c.asked]
        if len(unasked) == len(missing):
            return "INCOMPLETE", f"{len(unasked)} of {len(cells)} declared cells were not asked for"
        hit = next(c for c in missing if c.asked)
        return "INCOMPLETE", f"{_at(hit)}: {hit.sentence}"
    misses = [c for c in cells if c.word == "MISS"]
    firm = misses if claim.kind == "point" else _misses_at_holm(cells)
    if firm:
        return "MISS", f"{_at(firm[0])}: {firm[0].sentence}"
    open_cells = [*misses, *(c for c in cells if c.word == "UNRESOLVED")]
    if open_cells:
        first, *others = open_cells
        note = " (below the threshold in its own cell, not at the level that all cells together ask)" if misses else ""
        more = f"; open as well: {', '.join(map(_at, others))}" if others else ""
        return "UNRESOLVED", f"{_at(first)}: {first.sentence}{note}{more}"
    words = {c.word for c in cells}
    if words == {"RECORDED"}:
        return "RECORDED", "recorded as context; it satisfies no claim"
    if words == {"PASS(point)"}:
        return "PASS(point)", "every declared cell, by a point statistic without error bounds"
    if words == {"PASS"}:
        return "PASS", "every declared cell"
    return "INCOMPLETE", "cells of different kinds"


def _misses_at_holm(cells: Sequence[CellVerdict]) -> list[CellVerdict]:
    """The cells below their threshold at Holm's level over all declared cells."""
    pvalues = []
    for cell in cells:
        decision = cell.decision
        if decision is None or cell.description is None:
            return []
        logs = [stats.threshold_log(r) for r in cell.description.pair_ratios][: decision.pairs_used]
        pvalues.append(
            stats.plan_p(logs, decision.plan, stats.threshold_log(decision.threshold), side="below")
        )
    return [c for c, below in zip(cells, stats.holm(pvalues), strict=True) if below and c.word == "MISS"]


def _at(cell: CellVerdict) -> str:
    return f"{cell.cell.depth:,} {cell.cell.fixture}"

"""How a cell's rates are decided: control, floor, exact bounds, looks; and the sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_parity.core import diagnostics, stats
from pytest_parity.core.cell_verdict import CellVerdict, ControlResult
from pytest_parity.core.claims import Claim
from pytest_parity.core.metrics import metric
from pytest_parity.core.plan import CONTROL_PAIRS, Cell
from pytest_parity.core.receipts import PairRecord
from pytest_parity.errors import ParityError

__all__ = ["broken_floor", "control_result", "judge_rates", "second_look_needed"]


def control_result(records: Sequence[PairRecord], metric_name: str) -> ControlResult:
    """The floor that six pairs of an engine against itself give."""
    diverged = [r for r in records if r.outcome == "diverged"]
    if diverged:
        return ControlResult(
            None, f"the control's pair r{diverged[0].rep} did not write the same tokens twice", True
        )
    readings = [(r.rep, r.readings(metric_name)) for r in sorted(records, key=lambda r: r.rep)]
    known = [pair for _, pair in readings if pair is not None]
    if len(known) != CONTROL_PAIRS or [rep for rep, _ in readings] != list(range(1, CONTROL_PAIRS + 1)):
        return ControlResult(None, f"the control has {len(known)} of {CONTROL_PAIRS} pairs")
    try:
        logs = stats.pair_log_ratios(
            [a for a, _ in known], [b for _, b in known], metric(metric_name).direction
        )
    except ParityError as error:
        return ControlResult(None, f"the control cannot be read: {error}")
    engines = {(r.reference_digest, r.reference) for r in records} | {
        (r.candidate_digest, r.candidate) for r in records
    }
    if len(engines) != 1:
        return ControlResult(None, "the control's pairs are not one engine against itself")
    return ControlResult(stats.control(logs), "", reference=engines.pop())


def second_look_needed(
    claim: Claim, cell: Cell, records: Sequence[PairRecord], control: ControlResult
) -> bool:
    """Must the second look be measured? ``records``: those of the first. Unknown counts as yes."""
    if claim.metric is None or claim.bar is None or claim.kind == "point":
        return True
    if sum(r.readings(claim.metric) is not None for r in records) != cell.first_look:
        return True
    try:
        return _decide(claim, cell, records, _speaks_for(control, records)).word == "NEEDS_LOOK_2"
    except ParityError:
        return True


def judge_rates(claim: Claim, blank: CellVerdict, control: ControlResult) -> CellVerdict:
    """The word of a cell whose pairs are all there and exact, by its rates."""
    assert claim.metric is not None
    records = blank.records
    control = _speaks_for(control, records)
    pairs = [r.readings(claim.metric) for r in records]
    known = [pair for pair in pairs if pair is not None]
    if len(known) != len(pairs):
        return replace(
            blank,
            word="INCOMPLETE",
            sentence=f"{claim.metric} is unknown in {len(pairs) - len(known)} of {len(pairs)} pairs",
        )
    ours, theirs = [a for a, _ in known], [b for _, b in known]
    try:
        logs, description = _describe(claim.metric, records, ours, theirs)
    except ParityError as error:
        return replace(blank, word="INCOMPLETE", sentence=str(error))
    blank = replace(blank, description=description)
    broken = broken_floor(claim, blank)
    if broken is not None:
        return broken
    if claim.kind == "reported":
        return replace(
            blank,
            word="RECORDED",
            held=True,
            sentence=f"median pair {description.median_pair_ratio:.4f}; recorded, never a pass",
        )
    bar = claim.bar
    assert bar is not None
    decision = _decide(claim, blank.cell, records, control)
    needed = diagnostics.pairs_needed(logs, bar, decision.floor_log)
    blank = replace(blank, decision=decision, needed=needed, notes=_notes(claim, decision, description))
    if control.diverged:
        return replace(blank, word="INVALID", sentence=control.why)
    if claim.kind == "point":
        return _point(claim, blank, ours, theirs, control)
    if decision.word == "NEEDS_LOOK_2":
        return replace(
            blank, word="INCOMPLETE", sentence="look 1 did not decide, and look 2 was not measured in full"
        )
    return replace(
        blank, word=decision.word, held=decision.word == "PASS", sentence=_decided(decision, control, blank)
    )


def _speaks_for(control: ControlResult, records: Sequence[PairRecord]) -> ControlResult:
    """The control, if it measured the very reference of these pairs."""
    seen = {(r.reference_digest, r.reference) for r in records}
    if control.reference is None or seen == {control.reference}:
        return control
    return ControlResult(None, "the control measured another reference than these pairs")


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
    """The rule of ``stats.decide`` on what this claim asks of these pairs."""
    assert claim.bar is not None and claim.metric is not None
    known = [pair for pair in (r.readings(claim.metric) for r in records) if pair is not None]
    logs, _ = _describe(claim.metric, records, [a for a, _ in known], [b for _, b in known])
    floor = control.control.floor_log if control.control is not None else None
    state = control.control.state if control.control is not None else "absent"
    return stats.decide(logs, plan, claim.bar, floor, state)


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
    if decision.reason == "floor":
        floor = (decision.floor_log or 0.0) * 100
        return (
            f"median {decision.median_pair_ratio:.4f} lies within the session's floor ({floor:.1f} %) of "
            f"{decision.threshold:.4f}: not decidable here"
        )
    text = f"bounds {span} straddle {decision.threshold:.4f}"
    if verdict.needed is not None:
        more = (
            f"more than {verdict.needed.pairs}" if verdict.needed.capped else f"about {verdict.needed.pairs}"
        )
        text += f"; {more} pairs would settle it"
    return text


def _notes(
    claim: Claim, decision: stats.CellDecision, description: diagnostics.Description
) -> tuple[str, ...]:
    notes = []
    if len(decision.plan.looks) == 2 and decision.look == 1 and decision.word in ("PASS", "MISS"):
        notes.append("look 2 not needed")
    order = description.order_effect
    if claim.margin and order is not None and abs(order.effect_log) > claim.margin / 2:
        notes.append(
            f"going first is worth {order.effect_log * 100:+.1f} %, more than half the margin: mind warm-up and quiet"
        )
    if description.stalls_suspected:
        notes.append("stall suspected, kept: " + ", ".join(f"r{n}" for n in description.stalls_suspected))
    return tuple(notes)


def broken_floor(claim: Claim, blank: CellVerdict) -> CellVerdict | None:
    """The first absolute bound on the candidate that does not hold, or cannot be looked at."""
    for name, bound in claim.floors.items():
        rate = metric(name).direction == "rate"
        floor = f"floor {name} {'>=' if rate else '<='} {bound:g}"
        for record in blank.records:
            reading = record.timing.candidate.value(name) if record.timing is not None else None
            if reading is None:
                return replace(
                    blank, word="INCOMPLETE", sentence=f"{floor}: {name} is unknown in r{record.rep}"
                )
            if not (reading >= bound if rate else reading <= bound):
                return replace(blank, word="FAIL", sentence=f"{floor} broken in r{record.rep}: {reading:.4g}")
    return None

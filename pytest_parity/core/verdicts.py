"""The word of a claim over all its declared cells. Derived each time, never stored by hand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_parity.core import stats
from pytest_parity.core.cell_verdict import CellVerdict, Context, ControlResult
from pytest_parity.core.cells import judge_cell
from pytest_parity.core.claims import Claim
from pytest_parity.core.performance import control_result, second_look_needed
from pytest_parity.core.plan import declared_cells
from pytest_parity.core.receipts import PairRecord

__all__ = [
    "CellVerdict",
    "ClaimVerdict",
    "Context",
    "ControlResult",
    "control_result",
    "judge_cell",
    "judge_claim",
    "second_look_needed",
]

HOLDING = ("PASS", "PASS(point)", "RECORDED")


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
    lowers = [
        c.decision.bounds.lower for c in cells if c.decision is not None and c.decision.bounds is not None
    ]
    return ClaimVerdict(
        claim,
        word,
        sentence,
        cells,
        held,
        command=None
        if word in HOLDING
        else next_command(claim, worst or next((c for c in cells if c.word not in HOLDING), None)),
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
        return "a speculative lane needs a natural fixture class as well: synthetic alone certified a broken one (T07)"
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
        note = (
            " (below the threshold in its own cell, not at the level that all cells together ask)"
            if misses
            else ""
        )
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

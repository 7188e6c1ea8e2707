"""The word of one declared cell: first everything that needs no number, then its rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_parity.core.cell_verdict import CellVerdict, Context, ControlResult
from pytest_parity.core.claims import Claim
from pytest_parity.core.performance import broken_floor, judge_rates
from pytest_parity.core.plan import Cell
from pytest_parity.core.receipts import PairRecord

__all__ = ["judge_cell"]


def judge_cell(
    claim: Claim, cell: Cell, records: Sequence[PairRecord], control: ControlResult, context: Context
) -> CellVerdict:
    """The word of one declared cell of ``claim``."""
    mine = tuple(sorted((r for r in records if _is_of(r, claim, cell)), key=lambda r: r.rep))
    reps = context.asked.get(cell, frozenset())
    expected = claim.expectation(cell.depth, cell.fixture)
    lost = cell in context.lease_lost
    if not reps:
        return CellVerdict(
            cell, "INCOMPLETE", "not asked for in this run", False, True, mine, expected=expected
        )
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
    if cell in context.other_plan or reps != frozenset(range(1, cell.pairs + 1)):
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
        return broken_floor(claim, blank) or replace(
            blank, word="PASS", held=True, sentence=_proven(claim, blank)
        )
    return judge_rates(claim, blank, control)


def _without_numbers(
    claim: Claim, blank: CellVerdict, reps: frozenset[int], context: Context
) -> CellVerdict | None:
    """Everything that is decided before any rate is looked at."""
    records = blank.records
    named = (claim.candidate, claim.lane, claim.reference, claim.other_lane)
    diverged = [r for r in records if r.outcome == "diverged" and _lanes_of(r) == named]
    if diverged:
        d = diverged[0].divergence
        assert d is not None
        return replace(
            blank,
            word="FAIL",
            sentence=f"diverged at r{diverged[0].rep}: {_first_difference(d.kind, d.position, d.candidate_id, d.reference_id)}",
        )
    lanes = {_lanes_of(r) for r in records}
    if lanes - {named}:
        return replace(
            blank,
            word="INCOMPLETE",
            sentence="other engines or lanes were measured than the claim names: "
            + "; ".join(f"{a}/{b} against {c}/{d}" for a, b, c, d in sorted(lanes)),
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
    short = next(
        (r for r in records if r.level != claim.exactness or (r.tokens or 0) < claim.minimum_tokens), None
    )
    if short is not None:
        sentence = (
            f"r{short.rep} proves {short.tokens} tokens at level {short.level!r}, less than the claim asks"
        )
        return replace(blank, word="INCOMPLETE", sentence=sentence)
    present = {r.rep for r in records}
    if len(present) != len(records) or len({r.session for r in records}) > 1:
        return replace(blank, word="INCOMPLETE", sentence="pairs of several sessions are never put together")
    may_stop = claim.kind in ("parity", "at-least") and blank.cell not in context.other_plan
    needed = reps & frozenset(range(1, blank.cell.first_look + 1)) if may_stop else reps
    missing = sorted(needed - present)
    if missing or not records:
        why = "the lease was not to be had" if blank.for_want_of_lease else "not measured"
        return replace(
            blank,
            word="INCOMPLETE",
            sentence=f"{why}: {', '.join(f'r{rep}' for rep in missing) or 'no pair'}",
        )
    configurations = {
        (r.candidate_digest, r.reference_digest, r.code_digest, r.candidate.build, r.reference.build)
        for r in records
    }
    if len(configurations) != 1:
        return replace(
            blank, word="INCOMPLETE", sentence="pairs of different engines or code are never put together"
        )
    return None


def _lanes_of(record: PairRecord) -> tuple[str, str, str, str]:
    ours, theirs = record.candidate, record.reference
    return ours.engine, ours.lane, theirs.engine, theirs.lane


def _proven(claim: Claim, verdict: CellVerdict) -> str:
    unit = "tokens" if claim.exactness == "tokens" else "tokens by their text"
    source = (
        " (ids from an unstreamed repeat)" if any(r.ids_from == "repeat" for r in verdict.records) else ""
    )
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

"""How long a pair will hold the machine: from earlier receipts where there are some, else from what is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from pytest_parity.core.claims import Claim
from pytest_parity.core.plan import Cell, SessionPlan, control_key
from pytest_parity.engines.description import EngineDescription
from pytest_parity.errors import LedgerBroken
from pytest_parity.evidence.entries import Entry
from pytest_parity.evidence.names import LOG
from pytest_parity.measurement.workspace import Workspace

__all__ = ["attempts", "estimate"]


def estimate(
    plan: SessionPlan, workspace: Workspace, claims: Mapping[str, Claim]
) -> dict[Cell, float | None]:
    """Seconds of one pair of each cell; ``None`` where nothing is known."""
    seen: dict[tuple[object, object, object], list[float]] = {}
    for subject in log_subjects(workspace.receipts):
        seconds = subject.get("seconds")
        if isinstance(seconds, float):
            seen.setdefault(_place(subject), []).append(seconds)
    result: dict[Cell, float | None] = {}
    for cell in plan.cells():
        earlier = seen.get((cell.claim, cell.depth, cell.fixture))
        result[cell] = median(earlier) if earlier else _declared(cell, workspace, claims)
    return result


def _declared(cell: Cell, workspace: Workspace, claims: Mapping[str, Claim]) -> float | None:
    if cell.control_of is not None:
        claim = next(c for c in claims.values() if c.performance and control_key(c) == cell.control_of)
        names = (claim.reference, claim.reference)
    else:
        claim = claims[cell.claim]
        names = (claim.candidate, claim.reference)
    sides = [_side(cell, workspace.engines[name]) for name in names]
    return None if None in sides else sum(workspace.quiet_s + side for side in sides if side is not None)


def _side(cell: Cell, engine: EngineDescription) -> float | None:
    guess = engine.estimate
    if guess is None:
        return None
    warm = min(cell.depth, engine.warmup_tokens)
    return guess.start_s + (warm + cell.depth) / guess.prefill_tps + cell.output_tokens / guess.decode_tps


def attempts(workspace: Workspace, plan: SessionPlan) -> dict[Cell, int]:
    """Which attempt this session is at each cell: sessions in which any timing of it was derived, this one
    included, with the same claim, candidate and reference."""
    wanted: dict[tuple[object, object, object], Cell] = {
        (cell.claim, cell.depth, cell.fixture): cell for cell in plan.cells()
    }
    mine: dict[Cell, set[tuple[str, str, str]]] = {}
    sessions: dict[tuple[Cell, tuple[str, str, str]], set[str]] = {}
    for subject in log_subjects(workspace.receipts):
        cell = wanted.get(_place(subject))
        if cell is None or not (subject.get("timed") or subject.get("outcome") == "passed"):
            continue
        engines = (
            str(subject.get("claim_digest")),
            str(subject.get("candidate")),
            str(subject.get("reference")),
        )
        sessions.setdefault((cell, engines), set()).add(str(subject.get("session")))
        if subject.get("session") == workspace.session:
            mine.setdefault(cell, set()).add(engines)
    return {cell: max(len(sessions[cell, engines]) for engines in found) for cell, found in mine.items()}


def _place(subject: Mapping[str, object]) -> tuple[object, object, object]:
    """(claim, depth, fixture); of an entry that a recovery wrote, all three are ``None``."""
    return subject.get("claim"), subject.get("depth"), subject.get("fixture")


def log_subjects(receipts: Path) -> Iterator[Mapping[str, object]]:
    """Subjects of the log's receipt entries, in order; ends at the first line that is no entry.

    Only planning and counting read it this way; ``parity verify`` is what finds a broken log.
    """
    try:
        with open(receipts / LOG, "rb") as file:
            for number, line in enumerate(file, start=1):
                entry = Entry.read(line, number)
                if entry.kind == "receipt":
                    yield entry.subject
    except (OSError, LedgerBroken):
        return

"""What a person sees in the terminal: the plan before, the verdicts after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_parity.core.explain import claim_lines, plan_lines
from pytest_parity.core.plan import SessionPlan
from pytest_parity.core.verdicts import ClaimVerdict
from pytest_parity.errors import ParityError
from pytest_parity.measurement.planning import attempts
from pytest_parity.session import ParitySession

__all__ = ["Findings", "header", "plan", "summary"]


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run found. ``deselected``: parity items that nobody asked for. ``recovered``: pairs that a dead
    session had left open. ``rechained``: receipts that were not in the log. ``evidence_error``: why there is no verdict."""

    deselected: int
    recovered: tuple[str, ...]
    rechained: tuple[str, ...]
    evidence_error: ParityError | None
    verdicts: tuple[ClaimVerdict, ...]


def plan(session: ParitySession) -> list[str]:
    """The plan of what was selected."""
    chosen = tuple(session.asked_pairs()) if session.asked_ids else session.plan.pairs
    return plan_lines(SessionPlan(chosen, session.plan.not_asked), session.seconds(), "")


def header(session: ParitySession) -> list[str]:
    """The plan as header lines."""
    return [f"parity: session {session.id}", *plan(session)]


def summary(reporter: Any, session: ParitySession, found: Findings) -> None:
    """Verdicts, non-PASS first; then what was not asked, what was recovered, where the receipts are."""
    if found.deselected:
        reporter.write_line(
            f"parity: {found.deselected} parity items deselected; run them with -m parity "
            "(they take the accelerator's lease)"
        )
    for pair in found.recovered:
        reporter.write_line(f"parity: broken pair found, receipted and not measured again: {pair}")
    for name in found.rechained:
        reporter.write_line(
            f"parity: receipt was not in the log, chained now and marked so: {name}", yellow=True
        )
    if found.evidence_error is not None:
        reporter.write_line(f"parity: no verdict: {found.evidence_error}", red=True)
    if not found.verdicts:
        if session.asked_ids or found.deselected == 0:
            _not_asked(reporter, session)
        return
    verbose = session.config.get_verbosity() > 0
    reporter.section("parity: verdicts", sep="=")
    tries = attempts(session.workspace, session.plan)
    ordered = sorted(found.verdicts, key=lambda v: (v.held, v.word == "PASS"))
    for verdict in ordered:
        first, *rest = claim_lines(verdict, tries, verbose=verbose)
        reporter.write_line(
            first,
            green=verdict.word == "PASS",
            red=not verdict.held,
            yellow=verdict.held and verdict.word != "PASS",
            bold=True,
        )
        for line in rest:
            reporter.write_line(line)
        reporter.write_line("")
    _not_asked(reporter, session)
    if session.lease_lost:
        reporter.write_line(
            f"the lease was not to be had for {len(session.lease_lost)} pairs (exit status 75)"
        )
    reporter.write_line(f"receipts: {_shown(session)}  session {session.id}")


def _not_asked(reporter: Any, session: ParitySession) -> None:
    for name, why in (*session.plan.not_asked, *session.unserved()):
        reporter.write_line(f"not asked: {name}: {why}")


def _shown(session: ParitySession) -> str:
    try:
        return str(session.workspace.receipts.relative_to(session.config.invocation_params.dir))
    except ValueError:
        return str(session.workspace.receipts)

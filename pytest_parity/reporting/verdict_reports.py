"""Claim verdicts as test reports of their own, made on the controller from receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest

from pytest_parity.core.canonical import parse
from pytest_parity.core.claims import Claim
from pytest_parity.core.explain import claim_failure
from pytest_parity.core.plan import Cell
from pytest_parity.core.receipts import PairRecord, read_pair
from pytest_parity.core.verdicts import ClaimVerdict, Context, ControlResult, control_result, judge_claim
from pytest_parity.errors import ParityError
from pytest_parity.measurement.planning import attempts
from pytest_parity.session import ParitySession

__all__ = ["decide", "emit", "for_want_of_lease", "is_verdict"]

MARK = ("parity_report", "claim")
PHASES: tuple[Literal["setup", "call", "teardown"], ...] = ("setup", "call", "teardown")


def records_of(session: ParitySession) -> list[PairRecord]:
    """Every record of this session, read back from disk."""
    store = session.workspace.store
    if not session.workspace.receipts.exists():
        return []
    found = []
    for name in store.names():
        if name.startswith(session.id + "."):
            body: Any = parse(store.read(name))
            found.append(read_pair(name, body))
    return found


def decide(session: ParitySession) -> tuple[ClaimVerdict, ...]:
    """The verdict of every claim of this run that has an asked cell; under a gate, of every claim it names."""
    records = records_of(session)
    asked: dict[Cell, set[int]] = {}
    for pair in session.asked_pairs():
        asked.setdefault(pair.cell, set()).add(pair.rep)
    lost = frozenset(pair.cell for pair in session.asked_pairs() if pair.id in session.lease_lost)
    names = {cell.claim for cell in asked if cell.control_of is None}
    gate = session.config.getoption("--parity-gate")
    tries = attempts(session.workspace, session.plan) if gate is not None else {}
    verdicts = []
    for claim in session.claims:
        if claim.name not in names:
            if gate is not None or session.must_be_measured(claim.name):
                verdicts.append(_not_asked(claim, session))
            continue
        engine = session.configuration.engines[claim.candidate]
        context = Context(
            asked={cell: frozenset(reps) for cell, reps in asked.items()},
            other_plan=frozenset(filter(session.filter.other_plan, asked)),
            speculative=engine.lanes[claim.lane].speculative,
            stale=_stale(claim, session),
            lease_lost=lost,
        )
        verdict = judge_claim(claim, records, _controls(records, claim.metric), context)
        verdicts.append(verdict if gate is None else _gated(verdict, gate, tries))
    return tuple(verdicts)


def _stale(claim: Claim, session: ParitySession) -> str | None:
    """Why evidence for ``claim`` no longer counts: a pin expired, or what is installed is not what was pinned."""
    for name in (claim.candidate, claim.reference):
        try:
            why = session.workspace.installed(name).check_pin(session.workspace.today())
        except ParityError as error:
            why = str(error)
        if why is not None:
            return why
    return None


def _not_asked(claim: Claim, session: ParitySession) -> ClaimVerdict:
    """A claim that a gate names and this run leaves out: it fails."""
    why = dict(session.plan.not_asked).get(claim.name, "no test of this run measures it")
    return replace(judge_claim(claim, (), {}, Context({})), sentence=f"not asked: {why}")


def _gated(verdict: ClaimVerdict, gate: str, tries: Mapping[Cell, int]) -> ClaimVerdict:
    """Under a gate a claim that is not whole fails, and of attempts at a rate the first one counts."""
    partial = [cell for cell in verdict.cells if not cell.asked or cell.diagnostic]
    again = [cell for cell in verdict.cells if verdict.claim.performance and tries.get(cell.cell, 1) > 1]
    if not verdict.held or not (partial or again):
        return verdict
    if not partial:
        text = f"gate {gate} counts the first attempt; this is attempt {tries[again[0].cell]} at {again[0].cell.id}"
        return replace(verdict, held=False, sentence=text)
    first = f"{partial[0].cell.id}: {partial[0].sentence}"
    return replace(verdict, held=False, sentence=f"gate {gate} takes whole claims only; {first}")


def _controls(records: list[PairRecord], metric_name: str | None) -> dict[str, ControlResult]:
    found: dict[str, list[PairRecord]] = {}
    for record in records:
        if record.control_of is not None:
            found.setdefault(record.control_of, []).append(record)
    if metric_name is None:
        return {}
    return {key: control_result(group, metric_name) for key, group in found.items()}


def for_want_of_lease(verdict: ClaimVerdict) -> bool:
    """Does this claim not hold only because cells could not be measured without the lease?"""
    unheld = [cell for cell in verdict.cells if cell.asked and not cell.held]
    return bool(unheld) and all(cell.for_want_of_lease and cell.word == "INCOMPLETE" for cell in unheld)


def is_verdict(report: pytest.TestReport) -> bool:
    """Is this report a claim's verdict?"""
    return MARK in report.user_properties


def emit(running: pytest.Session, verdicts: tuple[ClaimVerdict, ...], session: ParitySession) -> None:
    """Send set-up, call and teardown reports of each claim through pytest's own hooks."""
    config = running.config
    running.testscollected += len(verdicts)
    for verdict in verdicts:
        nodeid = f"{session.register.places[verdict.claim.name]}::{verdict.claim.name}"
        location = (session.register.places[verdict.claim.name], 0, verdict.claim.name)
        config.hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        for when in PHASES:
            report = pytest.TestReport(
                nodeid=nodeid,
                location=location,
                keywords={verdict.claim.name: 1},
                outcome="passed",
                longrepr=None,
                when=when,
                user_properties=[MARK] if when == "setup" else [MARK, *_properties(verdict)],
                duration=0.0,
            )
            if when == "call":
                _colour(report, verdict)
            config.hook.pytest_runtest_logreport(report=report)
        config.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)


def _colour(report: pytest.TestReport, verdict: ClaimVerdict) -> None:
    """Passed for PASS, expected failure for an expectation that is met, skipped for what only a filter
    left open, failed for everything else."""
    if not verdict.held:
        report.outcome = "failed"
        report.longrepr = claim_failure(verdict)
    elif verdict.word in ("PASS", "PASS(point)"):
        return
    elif verdict.expected_met:
        report.outcome = "skipped"
        report.wasxfail = f"{verdict.word} as expected"
        report.longrepr = claim_failure(verdict)
    else:
        report.outcome = "skipped"
        report.longrepr = (report.location[0], 0, f"Skipped: {verdict.word}: {verdict.sentence}")


def _properties(verdict: ClaimVerdict) -> list[tuple[str, str]]:
    found = [
        ("parity_verdict", verdict.word),
        ("parity_sentence", verdict.sentence),
        ("parity_held", str(verdict.held).lower()),
    ]
    if verdict.minimum_lower is not None:
        found.append(("parity_minimum_lower_bound", f"{verdict.minimum_lower:.6f}"))
    return found

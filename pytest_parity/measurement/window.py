"""Everything seen around one pair, and what in it forbids to use it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from pytest_parity.core.prompts import PromptFixture
from pytest_parity.core.receipts import Reason
from pytest_parity.core.transcript import Transcript
from pytest_parity.measurement.admission import Admitted
from pytest_parity.measurement.side import SideRun

__all__ = ["Window", "void_reason"]


@dataclass(slots=True)
class Window:
    """Everything seen around one pair, for its receipt."""

    admitted: Admitted
    replay: str
    lease: dict[str, Any] | None = None
    scans: list[dict[str, Any]] = field(default_factory=list)
    prompt: PromptFixture | None = None
    runs: dict[str, SideRun] = field(default_factory=dict)
    began_ns: int = field(default_factory=time.monotonic_ns)


def void_reason(window: Window) -> Reason | None:
    """Reasons for which two finished sides must not be used."""
    candidate, reference = window.runs["candidate"], window.runs["reference"]
    if candidate.pid == reference.pid:
        return Reason(
            "one-process",
            f"both sides were answered by process {candidate.pid}: two runs that are one (T15)",
        )
    assert candidate.transcript is not None and reference.transcript is not None
    if _arrivals(candidate.transcript) == _arrivals(reference.transcript):
        return Reason(
            "one-run",
            "both sides have the same arrival times to the nanosecond: two runs that are one (T15)",
        )
    stamps = candidate.transcript.clockwork.stamps, reference.transcript.clockwork.stamps
    if window.admitted.ignore_eos and stamps[0] != stamps[1]:
        return Reason(
            "two-clocks",
            f"arrivals stamped by the {stamps[0]} and by the {stamps[1]}: no rate compares them",
        )
    for run in (candidate, reference):
        assert run.transcript is not None
        words = run.transcript.words
        lane = run.job.engine.description.lanes[run.job.lane]
        if words.cached and not lane.cache:
            return Reason(
                "cached",
                f"the {run.job.role} took {words.cached} prompt tokens from a cache that was forbidden (T05)",
            )
        if lane.cache and lane.prime and not words.cached:
            return Reason(
                "not-cached",
                f"the {run.job.role} reused nothing of its cache: the comparison is vacuous (T52)",
            )
    return None


def _arrivals(transcript: Transcript) -> tuple[int, ...]:
    """Distances of all arrivals from the request, in nanoseconds."""
    clock = transcript.clockwork
    return tuple(event.at_ns - clock.sent_ns for event in clock.events) + (clock.end_ns - clock.sent_ns,)

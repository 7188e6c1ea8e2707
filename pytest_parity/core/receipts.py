"""The record of one pair, as plain values: made here, read back here.

Reading recomputes exactness and timing from the stored words and events; what a receipt says about itself
is held against that and never believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_parity.core.exactness import Divergence, Exact, Level, compare
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.timing import PairTiming, derive, ratio
from pytest_parity.core.transcript import Clockwork, Event, Transcript, Words
from pytest_parity.errors import ParityError, ReceiptUnreadable

__all__ = [
    "FORMAT",
    "Outcome",
    "PairRecord",
    "Reason",
    "clockwork_body",
    "divergence_body",
    "exact_body",
    "read_pair",
    "timing_body",
    "words_body",
]

FORMAT = "pytest-parity/receipt/1"
Outcome = Literal["passed", "diverged", "void", "broken", "refused"]
"""``refused``: nothing was started. ``broken``: something was, and the pair could not be finished."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a pair did not pass: a short code, and a sentence."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class PairRecord:
    """What a verdict needs of one receipt."""

    name: str
    session: str
    replay: str
    claim: str
    claim_digest: str
    depth: int
    fixture: str
    output_tokens: int
    plan: str
    control_of: str | None
    rep: int
    attempt: int
    order: str
    outcome: Outcome
    reason: Reason | None
    level: Level
    tokens: int | None
    timing: PairTiming | None
    divergence: Divergence | None
    candidate_digest: str
    reference_digest: str
    code_digest: str
    measured_at: str
    ids_from: str | None = None

    def readings(self, metric: str) -> tuple[float, float] | None:
        """(candidate, reference) of ``metric``; ``None`` when the pair did not pass or either is unknown."""
        if self.outcome != "passed" or self.timing is None:
            return None
        ours, theirs = self.timing.candidate.value(metric), self.timing.reference.value(metric)
        return None if ours is None or theirs is None else (float(ours), float(theirs))


def words_body(words: Words) -> dict[str, Any]:
    """``words`` as JSON values."""
    return {
        "prompt_tokens": words.prompt_tokens,
        "output_ids": list(words.output_ids) if words.output_ids is not None else None,
        "text": words.text,
        "stop": words.stop,
        "evaluated": words.evaluated,
        "cached": words.cached,
        "predicted": words.predicted,
        "drafted": words.drafted,
        "accepted": words.accepted,
        "rounds": words.rounds,
        "settings": dict(words.settings),
        "ids_from": words.ids_from,
    }


def clockwork_body(clock: Clockwork) -> dict[str, Any]:
    """``clock`` as JSON values: absolute monotonic nanoseconds once, then distances from it."""
    return {
        "sent_ns": clock.sent_ns,
        "events": [[event.at_ns - clock.sent_ns, event.tokens] for event in clock.events],
        "end_after_ns": clock.end_ns - clock.sent_ns,
        "engine": dict(clock.engine),
        "peak_rss_bytes": clock.peak_rss_bytes,
    }


def exact_body(exact: Exact) -> dict[str, Any]:
    """An exact result as JSON values."""
    return {"level": exact.level, "tokens": exact.tokens, "ids_from": exact.candidate_words.ids_from}


def divergence_body(divergence: Divergence) -> dict[str, Any]:
    """A divergence as JSON values."""
    body = asdict(divergence)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in body.items()}


def timing_body(timing: PairTiming) -> dict[str, Any]:
    """Figures and ratios of an exact pair as JSON values."""
    return {
        "candidate": asdict(timing.candidate),
        "reference": asdict(timing.reference),
        "ratios": {name: ratio(timing, name) for name in METRICS},
        "ratio_direction": "candidate / reference for rates, reference / candidate for times; above 1 the candidate wins",
    }


def words_of(body: Mapping[str, Any]) -> Words:
    """Words from a receipt."""
    ids = body["output_ids"]
    return Words(**{**body, "output_ids": tuple(ids) if ids is not None else None})


def clockwork_of(body: Mapping[str, Any]) -> Clockwork:
    """Clockwork from a receipt."""
    sent = body["sent_ns"]
    return Clockwork(
        sent_ns=sent,
        events=tuple(Event(sent + after, tokens) for after, tokens in body["events"]),
        end_ns=sent + body["end_after_ns"],
        engine=body["engine"],
        peak_rss_bytes=body["peak_rss_bytes"],
    )


def read_pair(name: str, body: Mapping[str, Any]) -> PairRecord:
    """A receipt's body as a :class:`PairRecord`, exactness and timing recomputed.

    Raises ReceiptUnreadable when the format is unknown, a field is missing, or what the receipt says about
    itself is not what its own words and events give.
    """
    if body.get("format") != FORMAT:
        raise ReceiptUnreadable(
            f"receipt {name}", expected=f"format {FORMAT}", found=repr(body.get("format")), mend="Use the version that wrote it."
        )
    try:
        return _read(name, body)
    except ReceiptUnreadable:
        raise
    except (KeyError, TypeError, ValueError, ParityError) as error:
        raise ReceiptUnreadable(
            f"receipt {name}",
            expected="the fields of its format",
            found=f"{type(error).__name__}: {error}",
            mend="Its bytes were not written by this package; compare its digest with the log's.",
        ) from None


def _read(name: str, body: Mapping[str, Any]) -> PairRecord:
    outcome: Outcome = body["outcome"]
    level: Level = body["level"]
    timing: PairTiming | None = None
    divergence: Divergence | None = None
    tokens: int | None = None
    ids_from: str | None = None
    if outcome == "passed":
        exact = _again(body, level)
        if isinstance(exact, Divergence) or exact_body(exact) != body["exactness"]:
            raise _contradiction(name, "exactness")
        tokens, ids_from = exact.tokens, exact.candidate_words.ids_from
        timing = derive(exact)
        if timing_body(timing) != body["timing"]:
            raise _contradiction(name, "timing")
    elif outcome == "diverged":
        again = _again(body, level)
        if not isinstance(again, Divergence) or divergence_body(again) != body["divergence"]:
            raise _contradiction(name, "divergence")
        divergence = again
    reason = body["reason"]
    return PairRecord(
        name=name,
        session=body["session"],
        replay=body["replay"],
        claim=body["claim"]["name"],
        claim_digest=body["claim"]["digest"],
        depth=body["cell"]["depth"],
        fixture=body["cell"]["fixture"],
        output_tokens=body["cell"]["output_tokens"],
        plan=body["cell"]["plan"],
        control_of=body["cell"]["control_of"],
        rep=body["rep"],
        attempt=body["attempt"],
        order=body["order"],
        outcome=outcome,
        reason=Reason(**reason) if reason is not None else None,
        level=level,
        tokens=tokens,
        timing=timing,
        divergence=divergence,
        candidate_digest=body["sides"]["candidate"]["configuration_digest"],
        reference_digest=body["sides"]["reference"]["configuration_digest"],
        code_digest=body["code"]["digest"],
        measured_at=body["at"],
        ids_from=ids_from,
    )


def _again(body: Mapping[str, Any], level: Level) -> Exact | Divergence:
    ours, theirs = body["sides"]["candidate"], body["sides"]["reference"]
    nothing = {"sent_ns": 0, "events": [], "end_after_ns": 0, "engine": {}, "peak_rss_bytes": None}
    minimum = body["minimum_tokens"]
    return compare(
        Transcript(words_of(ours["words"]), clockwork_of(ours["clockwork"] or nothing)),
        Transcript(words_of(theirs["words"]), clockwork_of(theirs["clockwork"] or nothing)),
        level,
        minimum_tokens=minimum,
    )


def _contradiction(name: str, what: str) -> ReceiptUnreadable:
    return ReceiptUnreadable(
        f"receipt {name}",
        expected=f"the {what} that its own words and events give",
        found="another one",
        mend="It was edited, or written by another version: it counts for nothing.",
    )



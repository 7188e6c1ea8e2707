"""The record of one pair, as plain values: made here, read back here.

Reading recomputes exactness and timing from the stored words and events; what a receipt says about itself
is held against that and never believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.core.exactness import LEVELS, Divergence, Exact, Level, compare
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.plan import order_of
from pytest_parity.core.timing import PairTiming, derive, ratio
from pytest_parity.core.transcript import Clockwork, Event, Transcript, Words
from pytest_parity.errors import ParityError, ReceiptUnreadable, TimingUnreadable

__all__ = [
    "FORMAT",
    "Measured",
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
class Measured:
    """Which engine and lane stood in a role, and which build of it: binary, model, its own build id.

    ``build`` parts are ``None`` where there is no such file, or where the engine was never reached.
    """

    engine: str
    lane: str
    build: tuple[str | None, str | None, str | None]


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
    candidate: Measured
    reference: Measured
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
        "stamps": clock.stamps,
        "engine": dict(clock.engine),
        "peak_rss_bytes": clock.peak_rss_bytes,
    }


def exact_body(exact: Exact) -> dict[str, Any]:
    """An exact result as JSON values. ``ids_from``: ``repeat`` where one side's ids come from a repeat."""
    return {"level": exact.level, "tokens": exact.tokens, "ids_from": _ids_from(exact)}


def _ids_from(exact: Exact) -> Literal["stream", "repeat"]:
    either = {exact.candidate_words.ids_from, exact.reference_words.ids_from}
    return "repeat" if "repeat" in either else "stream"


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
    _whole_numbers(ids or ())
    if body["ids_from"] not in ("stream", "repeat"):
        raise ValueError(f"ids_from is {body['ids_from']!r}")
    return Words(**{**body, "output_ids": tuple(ids) if ids is not None else None})


def clockwork_of(body: Mapping[str, Any]) -> Clockwork:
    """Clockwork from a receipt."""
    sent = body["sent_ns"]
    _whole_numbers((sent, body["end_after_ns"], *(after for after, _ in body["events"])))
    _whole_numbers(tokens for _, tokens in body["events"] if tokens is not None)
    return Clockwork(
        sent_ns=sent,
        events=tuple(Event(sent + after, tokens) for after, tokens in body["events"]),
        end_ns=sent + body["end_after_ns"],
        stamps=body["stamps"],
        engine=body["engine"],
        peak_rss_bytes=body["peak_rss_bytes"],
    )


def _whole_numbers(values: Iterable[object]) -> None:
    """Raise ValueError for a value that equals a whole number and is none, such as 1.0 or true."""
    for value in values:
        if type(value) is not int:
            raise ValueError(f"{value!r} is no whole number")


def read_pair(name: str, body: Mapping[str, Any]) -> PairRecord:
    """A receipt's body as a :class:`PairRecord`, exactness and timing recomputed.

    Raises ReceiptUnreadable when the format is unknown, a field is missing, or what the receipt says about
    itself is not what its own words and events give.
    """
    found = body.get("format") if isinstance(body, Mapping) else body
    if found != FORMAT:
        raise ReceiptUnreadable(
            f"receipt {name}",
            expected=f"format {FORMAT}",
            found=repr(found),
            mend="Use the version that wrote it.",
        )
    try:
        return _read(name, body)
    except ReceiptUnreadable:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, ParityError) as error:
        raise ReceiptUnreadable(
            f"receipt {name}",
            expected="the fields of its format",
            found=f"{type(error).__name__}: {error}",
            mend="Its bytes were not written by this package; compare its digest with the log's.",
        ) from None


def _read(name: str, body: Mapping[str, Any]) -> PairRecord:
    outcome: Outcome = body["outcome"]
    level: Level = body["level"]
    if outcome not in get_args(Outcome) or level not in LEVELS:
        raise ValueError(f"outcome {outcome!r} at level {level!r}")
    _check_types(body)
    if body["order"] != order_of(body["rep"]):
        raise _contradiction(name, "order of the sides")
    timing: PairTiming | None = None
    divergence: Divergence | None = None
    tokens: int | None = None
    ids_from: str | None = None
    if outcome == "passed":
        exact = _again(body, level)
        if isinstance(exact, Divergence) or not _same(exact_body(exact), body["exactness"]):
            raise _contradiction(name, "exactness")
        tokens, ids_from = exact.tokens, _ids_from(exact)
        try:
            timing = derive(exact)
        except TimingUnreadable:
            raise _contradiction(name, "timing") from None
        if not _same(timing_body(timing), body["timing"]):
            raise _contradiction(name, "timing")
    elif outcome == "diverged":
        again = _again(body, level)
        if not isinstance(again, Divergence) or not _same(divergence_body(again), body["divergence"]):
            raise _contradiction(name, "divergence")
        divergence = again
    reason = Reason(**body["reason"]) if body["reason"] is not None else None
    if (reason is None) != (outcome in ("passed", "diverged")):
        raise _contradiction(name, "reason")
    if (body["divergence"] is None) != (divergence is None):
        raise _contradiction(name, "divergence")
    if timing is None and (body["timing"] is not None or (outcome != "void" and _has_times(body))):
        raise _contradiction(name, "timing, which is none,")
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
        reason=reason,
        level=level,
        tokens=tokens,
        timing=timing,
        divergence=divergence,
        candidate_digest=body["sides"]["candidate"]["configuration_digest"],
        reference_digest=body["sides"]["reference"]["configuration_digest"],
        candidate=_measured(body["sides"]["candidate"]),
        reference=_measured(body["sides"]["reference"]),
        code_digest=body["code"]["digest"],
        measured_at=body["at"],
        ids_from=ids_from,
    )


def _measured(side: Mapping[str, Any]) -> Measured:
    local = side.get("pin", {}).get("local", {})
    identity = side.get("identity") or {}
    build = (local.get("binary_sha256"), local.get("model_sha256"), identity.get("build"))
    if not all(isinstance(part, str | None) for part in build):
        raise TypeError(f"the build of {side['engine']} is {build!r}")
    return Measured(side["engine"], side["lane"], build)


_WHOLE = (("cell", "depth"), ("cell", "output_tokens"), ("rep",), ("attempt",), ("minimum_tokens",))
_TEXT = (
    ("session",),
    ("replay",),
    ("claim", "name"),
    ("claim", "digest"),
    ("cell", "fixture"),
    ("cell", "plan"),
    ("sides", "candidate", "engine"),
    ("sides", "candidate", "lane"),
    ("sides", "candidate", "configuration_digest"),
    ("sides", "reference", "engine"),
    ("sides", "reference", "lane"),
    ("sides", "reference", "configuration_digest"),
    ("code", "digest"),
    ("at",),
)


def _same(one: object, other: object) -> bool:
    """Equal as stored: 1, 1.0 and true are three values."""
    return canonical_bytes(one) == canonical_bytes(other)


def _has_times(body: Mapping[str, Any]) -> bool:
    return any(body["sides"][role]["clockwork"] is not None for role in ("candidate", "reference"))


def _check_types(body: Mapping[str, Any]) -> None:
    """Raise TypeError for a field of another type than this package writes."""
    for kinds, paths in (((int,), _WHOLE), ((str,), _TEXT), ((str, type(None)), (("cell", "control_of"),))):
        for path in paths:
            value: Any = body
            for step in path:
                value = value[step]
            if type(value) not in kinds:
                raise TypeError(f"{'.'.join(path)} is {value!r}")


def _again(body: Mapping[str, Any], level: Level) -> Exact | Divergence:
    ours, theirs = body["sides"]["candidate"], body["sides"]["reference"]
    nothing = {
        "sent_ns": 0,
        "events": [],
        "end_after_ns": 0,
        "stamps": "client",
        "engine": {},
        "peak_rss_bytes": None,
    }
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

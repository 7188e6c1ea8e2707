"""The reading of llama-server's answers; pure. The field names of the dialect stand at the top.

Every check of an answer that does not need another request stands here: ids, counts, stop, the prompt
that was evaluated, the settings that took effect. An answer that fails one of them is never measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_parity.core.transcript import Clockwork, Event, StopReason, Transcript, Words
from pytest_parity.engines.driver import Request
from pytest_parity.engines.http_request import RawReply
from pytest_parity.engines.llama_settings import effective_settings, ignored
from pytest_parity.errors import MalformedReply

__all__ = ["Closing", "Streamed", "read_closing", "read_ids", "read_stream", "transcript"]

STOPS: Mapping[str, StopReason | None] = {"limit": "limit", "eos": "eos", "word": "word", "none": None}
TIMINGS = "timings"
CACHED, PREFILLED, PREDICTED = "cache_n", "prompt_n", "predicted_n"
DRAFTED, ACCEPTED = "draft_n", "draft_n_accepted"
ROUNDS = ("draft_n_rounds", "n_rounds", "rounds")
"""llama.cpp itself does not tell its verification rounds; forks and the embedded engine may."""


@dataclass(frozen=True, slots=True)
class Closing:
    """What the closing event says, checked. ``announced``: number of tokens that the engine generated."""

    announced: int
    stop: StopReason | None
    evaluated: int | None
    cached: int | None
    drafted: int | None
    accepted: int | None
    rounds: int | None
    settings: Mapping[str, object]
    engine: Mapping[str, float | int]


@dataclass(frozen=True, slots=True)
class Streamed:
    """A whole stream. ``events``: arrivals that carry ids, or that do not tell whether they do.

    ``told``: (arrival in ns, the engine's running count of generated tokens or ``None``) of every arrival
    that carries ids or text.
    """

    ids: tuple[int, ...]
    text: str
    events: tuple[Event, ...]
    told: tuple[tuple[int, int | None], ...]
    end_ns: int
    final: Mapping[str, object]

    def recounted(self, announced: int) -> tuple[Event, ...]:
        """The events with the tokens that each one stands for, where ids were withheld (trap T53).

        From the engine's running count; unless that ends at ``announced``, sizes are unknown.
        """
        events: list[Event] = []
        before = 0
        for at_ns, count in self.told:
            if count is None or count < before:
                break
            if count > before:
                events.append(Event(at_ns, count - before))
            before = count
        else:
            if before == announced:
                return tuple(events)
        return tuple(Event(at_ns, None) for at_ns, _ in self.told)


def read_stream(objects: Sequence[tuple[int, Mapping[str, object]]], where: str) -> Streamed:
    """Ids, text and output events of a stream, in order. Raises MalformedReply."""
    ids: list[int] = []
    text: list[str] = []
    events: list[Event] = []
    told: list[tuple[int, int | None]] = []
    final: tuple[int, Mapping[str, object]] | None = None
    for at_ns, event in objects:
        if "error" in event:
            raise _malformed(where, "events of a completion", f"an error: {_message(event['error'])}")
        if final is not None:
            raise _malformed(where, "nothing after the closing event", _shown(event))
        if event.get("stop") is True:
            final = (at_ns, event)
        elif event.get("stop") not in (None, False):
            raise _malformed(where, "'stop' to be true or false", repr(event["stop"]))
        if "prompt_progress" in event:
            continue  # prefill is reported, nothing was generated; llama.cpp puts a placeholder id in here
        content = event.get("content", "")
        if not isinstance(content, str):
            raise _malformed(where, "'content' to be text", repr(content))
        carried = read_ids(event["tokens"], where) if "tokens" in event else None
        if not carried and not content:
            continue
        ids.extend(carried or ())
        text.append(content)
        if carried is None or carried:
            events.append(Event(at_ns, None if carried is None else len(carried)))
        told.append((at_ns, _count(event, "tokens_predicted", where)))
    if final is None:
        last = f"the last of {len(objects)} events was {_shown(objects[-1][1])}" if objects else "no event"
        raise _malformed(where, "a closing event ('stop': true)", last)
    return Streamed(tuple(ids), "".join(text), tuple(events), tuple(told), final[0], final[1])


def read_ids(value: object, where: str) -> tuple[int, ...]:
    """A list of token ids, each a whole number from 0 on. Raises MalformedReply."""
    if not isinstance(value, list):
        raise _malformed(where, "token ids to be a list", repr(value)[:80])
    for position, token in enumerate(value):
        if type(token) is not int or token < 0:
            found = f"{token!r} ({type(token).__name__}) at position {position}"
            raise _malformed(where, "token ids to be whole numbers from 0 on", found)
    return tuple(value)


def read_closing(
    final: Mapping[str, object], request: Request, body: Mapping[str, object], where: str
) -> Closing:
    """Read and check the closing event (or an unstreamed answer).

    Raises SettingsIgnored when an echoed setting is not the one that was asked for, and MalformedReply
    for counts that contradict each other, a prompt of another length, a truncated or overlong output.
    """
    timings = final.get(TIMINGS, {})
    if not isinstance(timings, Mapping):
        raise _malformed(where, f"'{TIMINGS}' to be an object", repr(timings)[:80])
    settings = effective_settings(final, body, where)
    if final.get("truncated", False) is not False:
        found = f"'truncated': {final['truncated']!r}"
        raise _malformed(where, "an output that was not truncated", found, "Raise the engine's context.")
    stop = final.get("stop_type", "none")
    if not isinstance(stop, str) or stop not in STOPS:
        raise _malformed(where, f"'stop_type' to be one of {', '.join(STOPS)}", repr(stop))
    counts = {
        "tokens_predicted": _count(final, "tokens_predicted", where),
        f"{TIMINGS}.{PREDICTED}": _count(timings, PREDICTED, where),
    }
    announced = {count for count in counts.values() if count is not None}
    if len(announced) != 1:
        raise _malformed(where, "one count of generated tokens", f"{counts}")
    (number,) = announced
    if number > request.output_tokens:
        raise _malformed(where, f"at most {request.output_tokens} generated tokens, as asked", f"{number}")
    if request.ignore_eos and stop == "eos":
        raise ignored(where, "ignore_eos", True, "false: it stopped at its end token")
    cached, prefilled = _count(timings, CACHED, where), _count(timings, PREFILLED, where)
    evaluated = _count(final, "tokens_evaluated", where)
    _check_prompt("tokens_evaluated", evaluated, request, where)
    if prefilled is not None and (cached is not None or not request.cache):
        name = f"{PREFILLED} + {CACHED}" if cached is not None else PREFILLED
        _check_prompt(name, prefilled + (cached or 0), request, where)
    if evaluated is None and prefilled is None:
        raise _malformed(where, "a count of evaluated prompt tokens", "none")
    rounds = [_count(timings, name, where) for name in ROUNDS if name in timings]
    _check_counters(_count(timings, DRAFTED, where), _count(timings, ACCEPTED, where), rounds, number, where)
    return Closing(
        announced=number,
        stop=STOPS[stop],
        evaluated=evaluated,
        cached=cached,
        drafted=_count(timings, DRAFTED, where),
        accepted=_count(timings, ACCEPTED, where),
        rounds=rounds[0] if rounds else None,
        settings=settings,
        engine={
            str(name): value
            for name, value in timings.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        },
    )


def _check_counters(
    drafted: int | None, accepted: int | None, rounds: Sequence[int | None], written: int, where: str
) -> None:
    """A draft can't be accepted more often than drafted or written, and a round writes something."""
    if accepted is not None and (accepted > written or (drafted is not None and accepted > drafted)):
        found = f"{accepted} accepted of {drafted} drafted, {written} written"
        raise _malformed(where, "no more accepted tokens than were drafted and written", found)
    if rounds and rounds[0] is not None and written > 0 and not 0 < rounds[0] <= written:
        raise _malformed(where, f"1 to {written} rounds", str(rounds[0]))


def _check_prompt(name: str, count: int | None, request: Request, where: str) -> None:
    sent = len(request.prompt_ids)
    if count is None or count == sent:
        return
    why = {
        1: "One more: the engine adds a begin token (BOS) of its own to a prompt of ids.",
        -1: "One fewer: the engine drops a begin token (BOS) that the ids begin with.",
    }.get(count - sent, "The engine evaluated another prompt.")
    raise MalformedReply(
        f"{where}, prompt", expected=f"{sent} evaluated ids, as sent", found=f"{name} = {count}", mend=why
    )


def _count(of: Mapping[str, object], name: str, where: str) -> int | None:
    value = of.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise _malformed(where, f"'{name}' to be a whole number from 0 on", repr(value))
    return value


def _message(error: object) -> str:
    told = error.get("message") if isinstance(error, Mapping) else error
    return str(told)[:300]


def _shown(event: Mapping[str, object]) -> str:
    text = repr(dict(event))
    return text if len(text) <= 120 else text[:117] + "..."


def _malformed(where: str, expected: str, found: str, mend: str = "") -> MalformedReply:
    mend = mend or "Nothing of this answer is measured; check the engine's dialect and log."
    return MalformedReply(f"answer of {where}", expected=expected, found=found, mend=mend)


def transcript(
    request: Request, streamed: Streamed, closing: Closing, raw: RawReply, repeated: tuple[int, ...] | None
) -> Transcript:
    """What was said and when. ``repeated``: the ids of an unstreamed repeat, where the stream withheld some."""
    whole = repeated is None
    words = Words(
        prompt_tokens=len(request.prompt_ids),
        output_ids=streamed.ids if repeated is None else repeated,
        text=streamed.text,
        stop=closing.stop,
        evaluated=closing.evaluated,
        cached=closing.cached,
        predicted=closing.announced,
        drafted=closing.drafted,
        accepted=closing.accepted,
        rounds=closing.rounds,
        settings=closing.settings,
        ids_from="stream" if whole else "repeat",
    )
    events = streamed.events if whole else streamed.recounted(closing.announced)
    return Transcript(
        words, Clockwork(raw.sent_ns, events, streamed.end_ns, closing.engine, stamps=raw.stamped)
    )

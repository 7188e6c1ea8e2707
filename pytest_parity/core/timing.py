"""Rates and latencies from raw events. Takes an :class:`Exact` and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_parity.core.exactness import Exact
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.transcript import Clockwork, Words
from pytest_parity.errors import ClockBackwards, TimingUnreadable

__all__ = ["PairTiming", "SideTiming", "derive", "ratio", "reconcile"]

RECONCILE_SHARE = 0.05
"""Engine and client may differ by this share: a first event and a closing event cross the wire in between."""
RECONCILE_SLACK_S = 0.02
"""… or by this much: scheduling of two processes on one core costs up to some ten milliseconds."""


@dataclass(frozen=True, slots=True)
class SideTiming:
    """One side's figures; ``None`` is unknown, never zero. Units as in the metrics table.

    ``engine_decode_n``: the engine's own decode rate as N/t, ``engine_decode_n1`` as (N-1)/t, a
    cross-check only. ``engine_barred``: why the engine's own figures may not be quoted, or ``None``.
    """

    decode_tps: float | None
    prefill_tps: float | None
    ttft_s: float
    wall_s: float
    acceptance: float | None
    tokens_per_round: float | None
    peak_rss_bytes: int | None
    engine_decode_n: float | None = None
    engine_decode_n1: float | None = None
    engine_barred: str | None = None

    def value(self, name: str) -> float | None:
        """The figure called ``name`` in the metrics table."""
        if name not in METRICS:
            raise TimingUnreadable(
                f"metric {name!r}",
                expected=f"one of {', '.join(METRICS)}",
                found=repr(name),
                mend="Use a name from the metrics table.",
            )
        found: float | None = getattr(self, name)
        return found


@dataclass(frozen=True, slots=True)
class PairTiming:
    """Both sides' figures of one exact pair."""

    candidate: SideTiming
    reference: SideTiming


def derive(exact: Exact) -> PairTiming:
    """Figures of both sides. Raises ClockBackwards and TimingUnreadable."""
    return PairTiming(
        candidate=_side("candidate", exact.candidate, exact.candidate_words),
        reference=_side("reference", exact.reference, exact.reference_words),
    )


def ratio(timing: PairTiming, name: str) -> float | None:
    """Above 1.0 the candidate wins: candidate / reference for rates, reference / candidate for times."""
    ours, theirs = timing.candidate.value(name), timing.reference.value(name)
    if ours is None or theirs is None or ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if METRICS[name].direction == "rate" else theirs / ours


def _side(role: str, clock: Clockwork, words: Words) -> SideTiming:
    _check_clock(role, clock)
    told = words.output_ids is not None  # then an event that names no tokens carries none
    carrying = [
        event for event in clock.events if (event.tokens or 0) > 0 or (event.tokens is None and not told)
    ]
    if not carrying:
        raise TimingUnreadable(
            f"timing of the {role}",
            expected="at least one event that carries tokens",
            found="none",
            mend="The engine sent its output in no event: check its streaming.",
        )
    first, last = carrying[0], carrying[-1]
    ttft = (first.at_ns - clock.sent_ns) / 1e9
    wall = (clock.end_ns - clock.sent_ns) / 1e9
    counts = [event.tokens for event in carrying]
    _check_counts(role, counts, words)
    decode: float | None = None
    total = sum(count for count in counts if count is not None)
    # An engine that holds its output back and sends most of it at once has no phase boundary to be seen.
    bounded = None not in counts and 2 * (first.tokens or 0) <= total
    if bounded and last.at_ns > first.at_ns:
        decode = (total - (first.tokens or 0)) / ((last.at_ns - first.at_ns) / 1e9)
    engine_n, engine_n1, barred = reconcile(clock.engine, decode)
    if decode is not None and _flatters(clock.engine, decode):
        decode = None
    produced = len(words.output_ids) if words.output_ids is not None else words.predicted
    return SideTiming(
        decode_tps=decode,
        prefill_tps=words.prompt_tokens / ttft if ttft > 0 else None,
        ttft_s=ttft,
        wall_s=wall,
        acceptance=words.accepted / words.drafted if words.drafted and words.accepted is not None else None,
        tokens_per_round=produced / words.rounds if words.rounds and produced is not None else None,
        peak_rss_bytes=clock.peak_rss_bytes,
        engine_decode_n=engine_n,
        engine_decode_n1=engine_n1,
        engine_barred=barred,
    )


def _flatters(engine: Mapping[str, float | int], client: float) -> bool:
    """Did the client see its decode in clearly less time than the engine says that it took?

    Then output was held back and sent in a burst: the arrivals bound no decode. (The other way round the engine's
    figure is barred, and the client's stands.)
    """
    count, took_ms = engine.get("predicted_n"), engine.get("predicted_ms")
    if count is None or took_ms is None or count < 2:
        return False
    seen_s = (count - 1) / client
    told_s = took_ms / 1e3 * (count - 1) / count  # in the convention that is kinder to the engine
    return told_s - seen_s > max(RECONCILE_SHARE * told_s, RECONCILE_SLACK_S)


def _check_counts(role: str, counts: Sequence[int | None], words: Words) -> None:
    """Events that carry another number of tokens than was said give no rate (trap T53)."""
    if words.output_ids is None or None in counts:
        return
    carried = sum(count for count in counts if count is not None)
    if carried != len(words.output_ids):
        raise TimingUnreadable(
            f"events of the {role}",
            expected=f"{len(words.output_ids)} tokens in all, as many as its output has",
            found=f"{carried}",
            mend="The stream and the output are not of one request: this pair cannot be timed.",
        )


def _check_clock(role: str, clock: Clockwork) -> None:
    previous = clock.sent_ns
    for number, event in enumerate((*clock.events,), start=1):
        if event.at_ns < previous:
            raise ClockBackwards(
                f"event {number} of the {role}",
                expected=f"a time at or after {previous} ns",
                found=f"{event.at_ns} ns",
                mend="A monotonic clock does not run backwards: this pair cannot be timed.",
            )
        previous = event.at_ns
    if clock.end_ns < previous:
        raise ClockBackwards(
            f"end of the {role}",
            expected=f"a time at or after {previous} ns",
            found=f"{clock.end_ns} ns",
            mend="A monotonic clock does not run backwards: this pair cannot be timed.",
        )


def reconcile(
    engine: Mapping[str, float | int], client: float | None
) -> tuple[float | None, float | None, str | None]:
    """The engine's own decode rate in both conventions, and why it is barred (``None``: it reconciles).

    llama.cpp divided N tokens by the time of N-1 intervals before its pull request 23828, and N-1 since;
    so the figure is recomputed here from ``predicted_n`` and ``predicted_ms``, both ways.
    """
    count, took_ms = engine.get("predicted_n"), engine.get("predicted_ms")
    if count is None or took_ms is None or took_ms <= 0 or count < 2:
        return None, None, "the engine gave no decode figures"
    by_n, by_n1 = count / (took_ms / 1e3), (count - 1) / (took_ms / 1e3)
    if client is None:
        return by_n, by_n1, "the client has no decode rate to hold it against"
    client_s = (count - 1) / client
    slack = max(RECONCILE_SHARE * client_s, RECONCILE_SLACK_S)
    if abs(took_ms / 1e3 - client_s) <= slack:
        return by_n, by_n1, None
    return by_n, by_n1, (f"the engine says {took_ms / 1e3:.4f} s for decode, the client saw {client_s:.4f} s")

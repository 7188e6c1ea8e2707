"""Rates and latencies from raw events: what is counted, by which clock, and what stays unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from factories import UNHURRIED, a_transcript
from hypothesis import given
from hypothesis import strategies as st

from pytest_parity.core.exactness import Exact, compare
from pytest_parity.core.metrics import METRICS, metric
from pytest_parity.core.timing import SideTiming, derive, ratio, reconcile
from pytest_parity.core.transcript import Clockwork, Event, Transcript, Words
from pytest_parity.errors import ClockBackwards, ConfigurationError, TimingUnreadable

MS = 1_000_000
BACKWARDS = "A monotonic clock does not run backwards: this pair cannot be timed."


def clock(*events: tuple[int, int | None], sent: int = 0, end: int | None = None, **more: Any) -> Clockwork:
    """Events as (milliseconds after the request, tokens)."""
    made = tuple(Event(sent + at * MS, tokens) for at, tokens in events)
    last = made[-1].at_ns if made else sent
    return Clockwork(sent, made, last if end is None else sent + end * MS, **more)


def exact(ours: Clockwork, theirs: Clockwork, n: int = 16, **words: Any) -> Exact:
    # By text: the events of these clocks need not carry as many tokens as were said.
    said = Words(2048, None, "abc", "limit", **{"predicted": n, **words})
    found = compare(Transcript(said, ours), Transcript(said, theirs), "text")
    assert isinstance(found, Exact)
    return found


def side(of: Clockwork, n: int = 16, **words: Any) -> SideTiming:
    return derive(exact(of, clock((1, 1), (2, 1)), n, **words)).candidate


# --- the formulas ----------------------------------------------------------------------------------------


def test_every_figure_of_one_side() -> None:
    found = side(
        clock((500, 1), (600, 0), (1000, 5), (2000, 10), end=2500, peak_rss_bytes=77),
        drafted=20,
        accepted=15,
        rounds=4,
    )
    assert found == SideTiming(
        decode_tps=10.0,
        prefill_tps=4096.0,
        ttft_s=0.5,
        wall_s=2.5,
        acceptance=0.75,
        tokens_per_round=4.0,
        peak_rss_bytes=77,
        engine_barred="the engine gave no decode figures",
    )


def rounds(n: int, per_event: int, per_token_ms: int = 10) -> Clockwork:
    """``n`` tokens in events of ``per_event``, each event after the time that its tokens took; T14."""
    return clock(*((100 + i * per_token_ms * per_event, per_event) for i in range(n // per_event)))


def test_several_tokens_in_the_first_event_are_not_decoded_tokens() -> None:
    timing = derive(exact(rounds(48, 4), rounds(48, 1), 48))
    assert timing.candidate.decode_tps == timing.reference.decode_tps == 100.0
    assert ratio(timing, "decode_tps") == 1.0


def test_what_the_wrong_denominator_would_have_read() -> None:
    four, one = (derive(exact(rounds(48, k), rounds(48, k), 48)).candidate for k in (4, 1))
    events = rounds(48, 4).events
    wrong = 47 / ((events[-1].at_ns - events[0].at_ns) / 1e9)
    assert one.decode_tps is not None and four.decode_tps is not None
    assert f"{wrong / one.decode_tps:.3f}" == "1.068", "at 48 tokens, as N - 1 reads it"


@UNHURRIED
@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 60))
def test_at_equal_speed_no_grouping_of_tokens_wins(a: int, b: int, turns: int) -> None:
    n = a * b * (turns + 1)
    assert ratio(derive(exact(rounds(n, a), rounds(n, b), n)), "decode_tps") == pytest.approx(1.0, abs=1e-12)


# --- what is unknown stays unknown (T11, T31) ------------------------------------------------------------


def test_unknown_chunk_sizes_leave_wall_time_only() -> None:
    found = side(clock((500, None), (1000, None), (2000, 3), end=2100))
    assert found.decode_tps is None
    assert (found.wall_s, found.ttft_s) == (2.1, 0.5)


def test_one_event_has_no_decode_rate() -> None:
    assert side(clock((500, 16))).decode_tps is None
    assert side(clock((500, 1), (500, 15))).decode_tps is None, (
        "all at one moment: no rate, and no division by zero"
    )


def test_a_first_token_at_the_moment_of_sending_has_no_prefill_rate() -> None:
    assert side(clock((0, 1), (10, 15))).prefill_tps is None


def test_none_is_never_zero() -> None:
    unknown = side(clock((500, None)))
    for name in ("decode_tps", "acceptance", "tokens_per_round", "peak_rss_bytes", "engine_decode_n"):
        assert getattr(unknown, name) is None, name
    assert side(clock((1, 1)), drafted=0, accepted=0).acceptance is None, "nothing was drafted"
    assert side(clock((1, 1)), drafted=5).acceptance is None
    assert side(clock((1, 1)), accepted=5).acceptance is None
    assert side(clock((1, 1)), rounds=0).tokens_per_round is None
    assert side(clock((1, 1)), drafted=5, accepted=0).acceptance == 0.0, "a known zero is zero"


def test_the_rounds_of_a_text_only_engine_use_its_own_count() -> None:
    for predicted, expected in ((12, 3.0), (None, None)):
        said = Words(5, None, "abc", "limit", rounds=4, predicted=predicted)
        transcript = Transcript(said, clock((1, None), (2, None)))
        found = compare(transcript, transcript, "text")
        assert isinstance(found, Exact)
        assert derive(found).candidate.tokens_per_round == expected


# --- what cannot be timed --------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [(), ((5, 0), (6, 0))])
def test_nothing_no_event_with_tokens_is_no_timing(events: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(TimingUnreadable) as caught:
        side(clock(*events))
    assert str(caught.value) == (
        "timing of the candidate: expected at least one event that carries tokens; found none. "
        "The engine sent its output in no event: check its streaming."
    )


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (
            clock((5, 1), (4, 1)),
            "event 2 of the candidate: expected a time at or after 5000000 ns; found 4000000 ns.",
        ),
        (clock((-1, 1)), "event 1 of the candidate: expected a time at or after 0 ns; found -1000000 ns."),
        (
            clock((5, 1), (6, 1), end=5),
            "end of the candidate: expected a time at or after 6000000 ns; found 5000000 ns.",
        ),
        (
            clock((5, 1), (9, 0), (8, 1)),
            "event 3 of the candidate: expected a time at or after 9000000 ns; found 8000000 ns.",
        ),
    ],
)
def test_a_clock_that_runs_backwards(broken: Clockwork, text: str) -> None:
    with pytest.raises(ClockBackwards) as caught:
        side(broken)
    assert str(caught.value) == f"{text} {BACKWARDS}"


def test_the_other_side_is_named_and_checked_as_well() -> None:
    with pytest.raises(ClockBackwards, match="event 2 of the reference: "):
        derive(exact(clock((1, 1)), clock((5, 1), (4, 1))))


def test_equal_times_are_no_step_backwards() -> None:
    assert side(clock((5, 1), (5, 1), (6, 14))).decode_tps == 15_000.0


# --- which way is better ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_above_one_the_candidate_wins(name: str) -> None:
    low, high = (SideTiming(v, v, v, v, v, v, v) for v in (2, 4))
    better, worse = (high, low) if metric(name).direction == "rate" else (low, high)
    pair = derive(exact(clock((1, 1)), clock((1, 1))))
    assert ratio(replace(pair, candidate=better, reference=worse), name) == 2.0
    assert ratio(replace(pair, candidate=worse, reference=better), name) == 0.5


def test_the_direction_of_each_metric() -> None:
    assert {name: m.direction for name, m in METRICS.items()} == {
        "decode_tps": "rate",
        "prefill_tps": "rate",
        "ttft_s": "time",
        "wall_s": "time",
        "acceptance": "rate",
        "tokens_per_round": "rate",
        "peak_rss_bytes": "time",
    }
    assert all(m.unit and m.formula and m.clock for m in METRICS.values())


@pytest.mark.parametrize("value", [None, 0, 0.0, -1.0])
def test_no_ratio_with_an_unknown_or_without_a_quantity(value: float | None) -> None:
    pair = derive(exact(clock((1, 1), (2, 15)), clock((1, 1), (2, 15))))
    assert ratio(pair, "decode_tps") == 1.0
    for role in ("candidate", "reference"):
        lame = replace(getattr(pair, role), decode_tps=value)
        assert ratio(replace(pair, **{role: lame}), "decode_tps") is None


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(TimingUnreadable) as caught:
        side(clock((1, 1))).value("engine_decode_n")
    names = "decode_tps, prefill_tps, ttft_s, wall_s, acceptance, tokens_per_round, peak_rss_bytes"
    assert str(caught.value) == (
        f"metric 'engine_decode_n': expected one of {names}; found 'engine_decode_n'. "
        "Use a name from the metrics table."
    )
    with pytest.raises(ConfigurationError, match="metric 'tps': expected one of decode_tps, "):
        metric("tps")


@UNHURRIED
@given(st.floats(1.0, 1000.0), st.floats(1.0, 1000.0), st.integers(2, 50))
def test_scaling_both_clocks_changes_no_ratio(ours: float, theirs: float, factor: int) -> None:
    def stretched(rate: float, by: int) -> Transcript:
        plain = a_transcript(rate=rate, sent_ns=0)
        events = tuple(Event(e.at_ns * by, e.tokens) for e in plain.clockwork.events)
        return replace(
            plain, clockwork=replace(plain.clockwork, events=events, end_ns=plain.clockwork.end_ns * by)
        )

    found = []
    for by in (1, factor):
        same = compare(stretched(ours, by), stretched(theirs, by), "tokens")
        assert isinstance(same, Exact)
        timing = derive(same)
        found.append([ratio(timing, name) for name in ("decode_tps", "prefill_tps", "ttft_s", "wall_s")])
        assert timing.candidate.decode_tps == pytest.approx(ours / by, rel=1e-6)
    assert found[1] == pytest.approx(found[0], rel=1e-12)


@UNHURRIED
@given(st.integers(0, 10**15))
def test_where_the_clock_started_changes_nothing(shift: int) -> None:
    plain = clock((500, 1), (2000, 15), end=2500)
    moved = clock((500, 1), (2000, 15), end=2500, sent=shift)
    assert side(moved) == side(plain)


# --- the engine's own figures (T04) ----------------------------------------------------------------------


def test_the_engines_figure_is_recomputed_in_both_conventions() -> None:
    assert reconcile({"predicted_n": 48, "predicted_ms": 470.0}, 100.0) == (48 / 0.47, 100.0, None)


@pytest.mark.parametrize("took_ms", [2000.0 * 0.951, 2000.0 * 1.049])
def test_figures_within_five_per_cent_reconcile(took_ms: float) -> None:
    by_n, by_n1, barred = reconcile({"predicted_n": 201, "predicted_ms": took_ms}, 100.0)
    assert (by_n, by_n1, barred) == (201 / (took_ms / 1e3), 200 / (took_ms / 1e3), None)


@pytest.mark.parametrize("took_ms", [2000.0 * 0.94, 2000.0 * 1.06, 4000.0])
def test_figures_that_do_not_reconcile_are_barred(took_ms: float) -> None:
    _, by_n1, barred = reconcile({"predicted_n": 201, "predicted_ms": took_ms}, 100.0)
    assert by_n1 == 200 / (took_ms / 1e3), "kept, and not to be quoted"
    assert barred == f"the engine says {took_ms / 1e3:.4f} s for decode, the client saw 2.0000 s"


@pytest.mark.parametrize(("took_ms", "good"), [(29.0, True), (31.0, False)])
def test_short_runs_may_differ_by_what_scheduling_costs(took_ms: float, good: bool) -> None:
    assert (reconcile({"predicted_n": 2, "predicted_ms": took_ms}, 100.0)[2] is None) is good


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"predicted_n": 48},
        {"predicted_ms": 470.0},
        {"predicted_n": 1, "predicted_ms": 470.0},
        {"predicted_n": 48, "predicted_ms": 0},
        {"predicted_n": 48, "predicted_ms": -1.0},
    ],
)
def test_an_engine_without_figures_has_none(engine: dict[str, float]) -> None:
    assert reconcile(engine, 100.0) == (None, None, "the engine gave no decode figures")


def test_an_engines_figure_alone_is_barred() -> None:
    assert reconcile({"predicted_n": 48, "predicted_ms": 470.0}, None)[2] == (
        "the client has no decode rate to hold it against"
    )
    found = side(clock((500, None), end=900, engine={"predicted_n": 48, "predicted_ms": 470.0}))
    assert found.engine_barred == "the client has no decode rate to hold it against"
    assert found.decode_tps is None, "the engine's figure never takes the place of the client's"


def test_events_that_carry_another_number_of_tokens_than_was_said_are_not_timed() -> None:
    said = Words(2048, (1, 2, 3), "abc", "limit")
    whole, short = clock((1, 1), (2, 2)), clock((1, 1), (2, 1))
    found = compare(Transcript(said, whole), Transcript(said, short), "tokens")
    assert isinstance(found, Exact)
    with pytest.raises(TimingUnreadable) as caught:
        derive(found)
    assert str(caught.value) == (
        "events of the reference: expected 3 tokens in all, as many as its output has; found 2. "
        "The stream and the output are not of one request: this pair cannot be timed."
    )
    fine = compare(Transcript(said, whole), Transcript(said, whole), "tokens")
    assert isinstance(fine, Exact)
    assert derive(fine).candidate.decode_tps == 2000.0


# --- output that was held back (found by an adversary) ----------------------------------------------------


def told(*events: tuple[int, int | None], engine: dict[str, float] | None = None) -> SideTiming:
    """A side whose ids are known, as many as its events carry."""
    n = sum(tokens or 0 for _, tokens in events)
    said = Words(2048, tuple(range(n)), "abc", "limit")
    mine = clock(*events, engine=engine or {})
    found = compare(Transcript(said, mine), Transcript(said, clock((1, n))), "tokens")
    assert isinstance(found, Exact)
    return derive(found).candidate


def test_a_burst_that_the_engines_own_figure_contradicts_is_no_decode_rate() -> None:
    burst = ((100, 1), *((101, 1) for _ in range(15)))
    assert told(*burst).decode_tps == 15_000.0
    held_back = told(*burst, engine={"predicted_n": 16, "predicted_ms": 120.0})
    assert held_back.decode_tps is None
    assert held_back.wall_s > 0


def test_an_engine_that_flatters_itself_is_barred_and_the_clients_rate_stands() -> None:
    steady = tuple((100 + 10 * n, 1) for n in range(16))
    found = told(*steady, engine={"predicted_n": 16, "predicted_ms": 15.0})
    assert found.decode_tps == 100.0
    assert found.engine_barred is not None


def test_a_first_event_with_more_than_half_of_the_output_bounds_no_decode() -> None:
    assert told((100, 9), (110, 7)).decode_tps is None
    assert told((100, 8), (110, 8)).decode_tps == 800.0


def test_text_before_the_first_id_is_not_the_first_token() -> None:
    assert told((1, None), (500, 1), (510, 1)).ttft_s == 0.5

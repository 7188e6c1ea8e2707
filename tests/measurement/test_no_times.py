"""A diverged pair leads to no time: neither its receipt, nor the log, nor what is raised, nor what is left of it."""

from __future__ import annotations

import gc
import json
import pickle
import tempfile
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workshop import Workshop, acted, bodies, body_of, claim, engine, pair, says, with_words

from pytest_parity.core.exactness import Exact
from pytest_parity.core.receipts import read_pair
from pytest_parity.core.timing import PairTiming, SideTiming, derive
from pytest_parity.core.transcript import Clockwork, Event, Transcript
from pytest_parity.engines.llama_server import LlamaServerDriver
from pytest_parity.errors import StorageFailed
from pytest_parity.measurement import conduct
from pytest_parity.measurement.pair import Diverged, MeasuredPair, Unfinished
from pytest_parity.measurement.side import SideJob, SideRun
from pytest_parity.measurement.workspace import Workspace

TIMES = (Clockwork, Event, Transcript, PairTiming, SideTiming, SideRun, Exact)


def sentinels(transcript: Transcript) -> set[float]:
    """Every time and every rate of one side: as seen on the wire, and all that can be made of it."""
    clock = transcript.clockwork
    stamps = [clock.sent_ns, *(event.at_ns for event in clock.events), clock.end_ns]
    distances = {later - earlier for n, earlier in enumerate(stamps) for later in stamps[n + 1 :]}
    found: set[float] = {*stamps, *distances} | {
        value for value in clock.engine.values() if isinstance(value, float)
    }
    found |= {distance / scale for distance in distances for scale in (1e3, 1e6, 1e9)}
    timing = derive(Exact("tokens", 1, clock, clock, transcript.words, transcript.words)).candidate
    found |= {
        value for name in ("decode_tps", "prefill_tps", "ttft_s", "wall_s") if (value := timing.value(name))
    }
    found |= {value for value in (timing.engine_decode_n, timing.engine_decode_n1) if value is not None}
    # Small whole numbers are counts of tokens as well; a time in nanoseconds is none.
    return {value for value in found if not (float(value).is_integer() and abs(value) < 10_000)}


def numbers(value: Any, place: str = "$") -> Iterator[tuple[str, float]]:
    """Every number in a JSON value, and in the texts of it, with its place."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, f"{place}.{key}")
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield from numbers(item, f"{place}[{n}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, value
    elif isinstance(value, str):
        for word in "".join(c if c in "0123456789." else " " for c in value).split():
            if word.strip(".") and word.count(".") < 2:
                yield place, float(word)


def leaks(body: Any, *sides: Transcript) -> list[tuple[str, float]]:
    """Times of these sides in a receipt."""
    forbidden = set().union(*(sentinels(side) for side in sides))
    assert len(forbidden) > 20
    return [(place, number) for place, number in numbers(body) if number in forbidden]


def reachable(*roots: object) -> set[type]:
    """Types of everything that can be reached from ``roots``, through this package's frames as well."""
    seen: set[int] = set()
    found: set[type] = set()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (type, types.ModuleType)):
            continue
        seen.add(id(thing))
        found.add(type(thing))
        if isinstance(thing, types.FrameType):
            if "/pytest_parity/" in thing.f_code.co_filename:
                waiting.append(thing.f_locals)
        elif isinstance(thing, types.TracebackType):
            waiting += [thing.tb_frame, thing.tb_next]
        elif isinstance(thing, types.FunctionType):
            waiting += [thing.__closure__, thing.__defaults__]
        elif isinstance(thing, BaseException):
            waiting += [vars(thing), thing.__traceback__, thing.__context__, thing.__cause__]
        else:
            waiting += gc.get_referents(thing)
    return found


@pytest.fixture(scope="module")
def diverged(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Workshop, Diverged, MeasuredPair, list[Transcript]]:
    """A real pair that diverged at the fifth token, and what was on the wire."""
    lane = {"wrong": {"argv": ("--fault", "diverge-at=5")}}
    shop = Workshop(
        tmp_path_factory.mktemp("diverged"), engines={"e": engine(lanes=lane)}, claim=claim(lane="wrong")
    )
    wire: list[Transcript] = []
    answer = LlamaServerDriver.generate

    def listen(self: LlamaServerDriver, *args: Any, **more: Any) -> Transcript:
        wire.append(answer(self, *args, **more))
        return wire[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaServerDriver, "generate", listen)
        measured = shop.conductor().measure(pair(shop.claim), "the replay command")
        with pytest.raises(Diverged) as caught:
            measured.exact()
    # One warm-up and one measured request a side.
    return shop, caught.value, measured, [side for side in wire if len(side.words.output_ids or ()) == 16]


Real = tuple[Workshop, Diverged, MeasuredPair, list[Transcript]]


class TestARealDivergence:
    def test_is_told_with_everything_but_a_time(self, diverged: Real) -> None:
        _, error, _, wire = diverged
        reference, candidate = (side.words.output_ids or () for side in wire)
        assert error.divergence.position == 5
        assert (error.divergence.candidate_id, error.divergence.reference_id) == (candidate[5], reference[5])
        first, *rest = str(error).splitlines()
        assert (
            first == f"first difference at output token 5: candidate {candidate[5]}, reference {reference[5]}"
        )
        assert rest[-3:] == [
            "  No timing exists: a rate over different tokens measures two different computations.",
            f"  receipt: {error.receipt.name}",
            "  replay:  the replay command",
        ]

    def test_has_a_receipt_that_keeps_both_sides_words(self, diverged: Real) -> None:
        _, error, _, wire = diverged
        body = body_of(error.receipt.path)
        assert (body["outcome"], body["timing"], body["exactness"]) == ("diverged", None, None)
        assert "held_s" not in body["lease"]
        assert [body["sides"][role]["words"]["output_ids"] for role in ("reference", "candidate")] == [
            list(side.words.output_ids or ()) for side in wire
        ]
        record = read_pair(error.receipt.name, body)
        assert (record.outcome, record.divergence, record.timing) == ("diverged", error.divergence, None)
        assert record.readings("decode_tps") is None

    def test_has_a_receipt_without_any_time_of_the_wire(self, diverged: Real) -> None:
        shop, error, _, wire = diverged
        assert leaks(body_of(error.receipt.path), *wire) == []
        for line in (shop.receipts / "log.jsonl").read_text().splitlines():
            assert leaks(json.loads(line), *wire) == []
        for side in body_of(error.receipt.path)["sides"].values():
            assert (side["clockwork"], "log_tail" in side) == (None, False)

    def test_and_the_look_for_them_finds_them_where_they_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same look at a pair that passed finds times: it isn't blind."""
        shop = Workshop(tmp_path)
        ours, theirs = says(), says(sent_ns=21_000_000_123, step_ns=1_000_013)
        acted(monkeypatch, ours, theirs)
        measured = shop.conductor().measure(pair(shop.claim), "replay").exact()
        body = body_of(measured.record().path)
        found = {place.removeprefix("$.").split("[")[0] for place, _ in leaks(body, ours, theirs)}
        assert {
            "timing.candidate.decode_tps", "timing.reference.ttft_s", "timing.candidate.engine_decode_n1",
            "sides.candidate.clockwork.events", "sides.reference.clockwork.sent_ns",
            "sides.candidate.clockwork.engine.predicted_ms",
        } <= found  # fmt: skip
        assert reachable(measured).issuperset({Clockwork, Event, PairTiming})

    def test_leaves_nothing_that_leads_to_one(self, diverged: Real) -> None:
        _, error, measured, _ = diverged
        for thing in (error, measured):
            assert reachable(thing).isdisjoint(TIMES)

    def test_shows_none_when_printed_or_pickled(self, diverged: Real) -> None:
        _, error, measured, wire = diverged
        for text in (repr(error), str(error), repr(measured), repr(vars(measured)), repr(error.divergence)):
            assert leaks(text, *wire) == []
        assert leaks(repr(vars(pickle.loads(pickle.dumps(error)))), *wire) == []

    def test_can_be_asked_for_nothing_more(self, diverged: Real) -> None:
        _, _, measured, _ = diverged
        with pytest.raises(AssertionError, match="this pair diverged, or was void: its transcripts are gone"):
            measured.exact()
        with pytest.raises(AssertionError, match=r"record\(\) before exact\(\)"):
            measured.record()
        with pytest.raises(
            AssertionError, match="this pair's receipt is written: there is nothing more to record"
        ):
            measured.abandon("the test ended before record()")
        assert not hasattr(measured, "timing")


ids = st.lists(st.integers(0, 259), min_size=2, max_size=12)
steps = st.integers(10**5, 10**8)


@st.composite
def two_sides(draw: st.DrawFn) -> tuple[Transcript, Transcript]:
    """Two sides that said different things, at times that stand nowhere else."""
    left = draw(ids)
    kind = draw(st.sampled_from(["token", "length", "stop", "count"]))
    right, words = list(left), dict[str, Any]()
    if kind == "token":
        at = draw(st.integers(0, len(left) - 1))
        right[at] = (right[at] + 1) % 260
    elif kind == "length":
        right = [*left, draw(st.integers(0, 259))]
    elif kind == "stop":
        words = {"stop": "eos"}
    else:
        words = {"predicted": len(left) + 1}
    start = draw(st.integers(10**12, 10**13))
    ours = says(left, sent_ns=start, step_ns=2 * draw(steps), predicted=len(left))
    theirs = says(right, sent_ns=start + 10**11 + 7, step_ns=2 * draw(steps) + 1, predicted=len(right))
    ours = replace(
        ours,
        clockwork=replace(
            ours.clockwork, engine={"predicted_n": 9, "predicted_ms": draw(st.floats(1.0, 1e6)) + 0.123}
        ),
    )
    return ours, with_words(theirs, **words)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sides=two_sides(), swap=st.booleans(), level=st.sampled_from(["tokens", "text"]))
def test_no_receipt_of_a_diverged_pair_holds_a_time(
    sides: tuple[Transcript, Transcript], swap: bool, level: str
) -> None:
    ours, theirs = sides if not swap else sides[::-1]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        acted(patch, ours, theirs)
        shop = Workshop(Path(folder), claim=claim(exactness=level))
        measured = shop.conductor().measure(pair(shop.claim), "replay")
        with pytest.raises(Diverged) as caught:
            measured.exact()
        (body,) = bodies(shop.receipts).values()
        assert body["outcome"] == "diverged"
        assert leaks(body, ours, theirs) == []
        assert leaks(json.loads((shop.receipts / "log.jsonl").read_text()), ours, theirs) == []
        assert reachable(caught.value, measured).isdisjoint(TIMES)


class TestAReceiptThatCannotBeWritten:
    """A full volume takes no failure away: what came of the pair is kept, and written when its test ends."""

    def test_of_a_divergence_is_written_later_and_without_times(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, theirs = says((*range(100, 115), 9)), says(sent_ns=21_000_000_123, step_ns=1_000_013)
        acted(monkeypatch, ours, theirs)
        runs = _kept(monkeypatch)
        shop = Workshop(tmp_path)
        measured = shop.conductor().measure(pair(shop.claim), "the replay command")
        with monkeypatch.context() as full:
            full.setattr(Workspace, "publish", _full)
            with pytest.raises(StorageFailed) as caught:
                measured.exact()
        assert bodies(shop.receipts) == {}
        self._no_times_are_left(runs, ours, theirs)
        assert leaks(repr(vars(measured)), ours, theirs) == []
        assert reachable(caught.value, measured).isdisjoint({*TIMES} - {SideRun, Transcript, Clockwork})
        with pytest.raises(AssertionError, match="its transcripts are gone"):
            measured.exact()
        with pytest.raises(AssertionError, match=r"record\(\) before exact\(\)"):
            measured.record()
        assert measured.abandon("the test ended before record()").outcome == "diverged"
        (body,) = bodies(shop.receipts).values()
        assert (body["outcome"], body["reason"], body["timing"]) == ("diverged", None, None)
        assert (body["divergence"]["position"], body["divergence"]["candidate_id"]) == (15, 9)
        assert [side["words"]["output_ids"][-1] for side in body["sides"].values()] == [9, 115]
        assert leaks(body, ours, theirs) == []
        assert read_pair("r", body).divergence is not None

    def test_of_a_divergence_may_be_refused_more_than_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch, says((*range(100, 115), 9)))
        shop = Workshop(tmp_path)
        measured = shop.conductor().measure(pair(shop.claim), "replay")
        with monkeypatch.context() as full:
            full.setattr(Workspace, "publish", _full)
            for attempt in (measured.exact, lambda: measured.abandon("the test ended before record()")):
                with pytest.raises(StorageFailed):
                    attempt()
        assert measured.abandon("the test ended before record()").outcome == "diverged"

    def test_of_a_pair_that_proves_too_little_is_written_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        measured = shop.conductor().measure(pair(shop.claim), "replay")
        with monkeypatch.context() as full:
            full.setattr(Workspace, "publish", _full)
            with pytest.raises(StorageFailed):
                measured.exact(minimum_tokens=17)
        assert measured.abandon("the test ended before record()").outcome == "void"
        (body,) = bodies(shop.receipts).values()
        assert body["reason"]["code"] == "nothing-compared"

    def test_of_an_exact_pair_may_be_recorded_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acted(monkeypatch)
        shop = Workshop(tmp_path)
        exact = shop.conductor().measure(pair(shop.claim), "replay").exact()
        with monkeypatch.context() as full:
            full.setattr(Workspace, "publish", _full)
            with pytest.raises(StorageFailed):
                exact.record()
        assert exact.record().outcome == "passed"

    @staticmethod
    def _no_times_are_left(runs: list[SideRun], *sides: Transcript) -> None:
        assert [run.job.role for run in runs] == ["reference", "candidate"]
        for run in runs:
            assert run.transcript is not None
            assert run.transcript.clockwork == Clockwork(0, (), 0)
            assert run.transcript.words.output_ids is not None
        assert leaks(repr(runs), *sides) == []


def _kept(monkeypatch: pytest.MonkeyPatch) -> list[SideRun]:
    """From here on every run of a side is kept in this list."""
    runs, play = list[SideRun](), vars(conduct)["run_side"]

    def keep(*args: Any) -> SideRun:
        runs.append(play(*args))
        return runs[-1]

    monkeypatch.setattr(conduct, "run_side", keep)
    return runs


def _full(*_: object) -> None:
    raise StorageFailed("receipt", expected="room", found="none", mend="Make room.")


def test_the_runs_of_a_diverged_pair_lose_their_times_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that somebody still holds: no later receipt of the same window could bring a time back."""
    ours = says((*range(100, 115), 9))
    acted(monkeypatch, ours)
    runs = _kept(monkeypatch)
    shop = Workshop(tmp_path)
    measured = shop.conductor().measure(pair(shop.claim), "replay")
    assert [run.transcript.clockwork.end_ns > 0 for run in runs if run.transcript is not None] == [True, True]
    with pytest.raises(Diverged):
        measured.exact()
    for run in runs:
        assert run.transcript is not None and run.transcript.clockwork == Clockwork(0, (), 0)
    assert [run.transcript.words for run in runs if run.transcript is not None][1] == ours.words


def test_a_side_that_said_nothing_has_nothing_to_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = list[SideJob]()
    acted(monkeypatch, seen=jobs)
    shop = Workshop(tmp_path)
    shop.conductor().measure(pair(shop.claim), "replay").exact().record()
    run = SideRun(jobs[0])
    run.forget_times()
    assert run.transcript is None


def test_an_exact_pair_hands_out_its_timing_and_no_clockwork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates come out of ``timing()`` alone, which every receipt then answers for."""
    acted(monkeypatch)
    shop = Workshop(tmp_path)
    exact = shop.conductor().measure(pair(shop.claim), "replay").exact()
    assert {name for name in dir(exact) if not name.startswith("_")} == {
        "tokens",
        "require",
        "timing",
        "record",
    }
    assert not {type(value) for name, value in vars(exact).items() if name[0] != "_"}
    assert type(exact.timing()) is PairTiming


@pytest.mark.parametrize("outcome", ["one-process", "abandoned", "cached"])
def test_a_void_pair_whose_words_differ_holds_none_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    ours, theirs = says((*range(100, 115), 9)), says(sent_ns=21_000_000_123, step_ns=1_000_013)
    if outcome == "cached":
        ours = with_words(ours, cached=7)
    acted(monkeypatch, ours, theirs, pids=(1, 1) if outcome == "one-process" else (1, 2))
    shop = Workshop(tmp_path)
    if outcome == "abandoned":
        shop.conductor().measure(pair(shop.claim), "replay").abandon("the test ended before record()")
    else:
        shop.unfinished()
    (body,) = bodies(shop.receipts).values()
    assert body["outcome"] == "void"
    assert leaks(body, ours, theirs) == []


def test_a_void_pair_whose_words_are_equal_keeps_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = says(), says(sent_ns=21_000_000_123, step_ns=1_000_013)
    acted(monkeypatch, ours, theirs, pids=(1, 1))
    shop = Workshop(tmp_path)
    with pytest.raises(Unfinished):
        shop.conductor().measure(pair(shop.claim), "replay")
    (body,) = bodies(shop.receipts).values()
    assert leaks(body, ours, theirs) != [] and body["timing"] is None

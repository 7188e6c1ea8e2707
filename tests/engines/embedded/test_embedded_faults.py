"""Every fault, over real HTTP against a real process; and that the honest engine shows none of them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from embedded_support import Json, Stream, prose, running, synthetic

from pytest_parity.engines.embedded import sabotage

PROMPT = prose(700)
COUNT = 24


@pytest.fixture(scope="module")
def honest() -> Json:
    """Ask an engine without faults."""
    with running("--ctx-size", "4096") as engine:
        return engine.complete(PROMPT, n_predict=COUNT)


def stream_of(*arguments: str, prompt: list[int] = PROMPT, **more: object) -> Stream:
    with running("--ctx-size", "4096", *arguments) as engine:
        return engine.stream(prompt, **{"n_predict": COUNT, **more})


def fault(name: str) -> tuple[str, str]:
    return ("--fault", name)


@pytest.mark.parametrize("lane", [(), ("--speculative",)])
def test_diverge_at_changes_that_id_first(honest: Json, lane: tuple[str, ...]) -> None:
    tokens = stream_of(*fault("diverge-at=5"), *lane).tokens
    assert tokens[:5] == honest["tokens"][:5]
    assert tokens[5] != honest["tokens"][5]
    assert len(tokens) == COUNT


def test_nan_logits_give_id_0(honest: Json) -> None:
    tokens = stream_of(*fault("nan-logits=3")).tokens
    assert tokens[:4] == [*honest["tokens"][:3], 0]


def test_a_silent_penalty_changes_the_ids_and_not_the_echo(honest: Json) -> None:
    stream = stream_of(*fault("silent-penalty"))
    assert stream.tokens != honest["tokens"]
    assert stream.final["generation_settings"]["repeat_penalty"] == 1.0


def test_a_loud_penalty_is_echoed(honest: Json) -> None:
    stream = stream_of(*fault("loud-penalty"))
    assert stream.tokens != honest["tokens"]
    assert stream.final["generation_settings"]["repeat_penalty"] == 1.1


@pytest.mark.parametrize("lane", [(), ("--speculative",)])
def test_stop_early_is_one_id_short_and_says_limit(honest: Json, lane: tuple[str, ...]) -> None:
    stream = stream_of(*fault("stop-early"), *lane)
    assert stream.tokens == honest["tokens"][:-1]
    assert stream.final["stop_type"] == "limit"
    assert stream.final["tokens_predicted"] == COUNT - 1


@pytest.mark.parametrize("lane", [(), ("--speculative",)])
def test_after_stop_adds_an_id(honest: Json, lane: tuple[str, ...]) -> None:
    stream = stream_of(*fault("after-stop"), *lane)
    assert stream.tokens[:COUNT] == honest["tokens"]
    assert len(stream.tokens) == stream.final["tokens_predicted"] == COUNT + 1
    ended = stream_of(*fault("after-stop"), *lane, prompt=[*PROMPT[:190], 256, *PROMPT[:509]])
    assert ended.tokens[-2] == 256
    assert len(ended.tokens) < COUNT
    assert ended.final["stop_type"] == "eos"


def test_half_draft_window_loses_acceptance_on_prose_and_no_token() -> None:
    def run(*arguments: str) -> tuple[list[int], float]:
        stream = stream_of("--speculative", *arguments, n_predict=200)
        timings = stream.final["timings"]
        return stream.tokens, timings["draft_n_accepted"] / max(1, timings["draft_n"])

    tokens, full = run()
    same, half = run(*fault("half-draft-window"))
    asked, narrow = run("--draft-window", "384")
    assert tokens == same == asked
    assert half == narrow <= full / 2


def test_extra_bos_evaluates_one_id_more() -> None:
    final = stream_of(*fault("extra-bos")).final
    assert final["tokens_evaluated"] == len(PROMPT) + 1
    assert final["timings"]["prompt_n"] == len(PROMPT) + 1


def test_wrong_prompt_shows_in_the_ids_and_not_in_the_counts(honest: Json) -> None:
    stream = stream_of(*fault("wrong-prompt"))
    assert stream.tokens != honest["tokens"]
    assert stream.tokens[:2] == honest["tokens"][:2]
    assert stream.final["tokens_evaluated"] == len(PROMPT)


@pytest.mark.parametrize(("name", "counted"), [("reuse-cache", 699), ("reuse-cache-silent", 0)])
def test_a_cache_is_reused_against_the_request(name: str, counted: int) -> None:
    with running(*fault(name)) as engine:
        prompt = [*synthetic(20_000), *PROMPT]
        first = engine.complete(prompt)
        again = engine.complete(prompt)
        counted = len(prompt) - 1 if counted else 0
        assert again["timings"]["cache_n"] == counted
        assert again["timings"]["prompt_n"] == len(prompt) - counted
        assert again["timings"]["prompt_ms"] < first["timings"]["prompt_ms"] / 4
        assert again["tokens"] == first["tokens"]


def work(*arguments: str) -> tuple[float, float]:
    """Return the processor seconds that one engine spends on a prompt, and on decoding.

    Slowness is busy work, so that it shows in processor time; wall time shows the machine's neighbours too.
    """
    with running(*arguments) as engine:
        stat = Path(f"/proc/{engine.process.pid}/stat")

        def spent() -> float:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        begun = spent()
        engine.complete(synthetic(10_000), n_predict=1, cache_prompt=True)
        prefilled = spent()
        engine.complete(synthetic(10_000), n_predict=800, cache_prompt=True, ignore_eos=True)
        return prefilled - begun, spent() - prefilled


def test_slow_does_more_work_and_slow_first_only_at_position_1() -> None:
    right, slow = work(), work(*fault("slow=70"))
    assert slow[0] > 1.8 * right[0]
    assert slow[1] > 1.8 * right[1]
    first = work(*fault("slow-first=70"), "--position", "1")
    second = work(*fault("slow-first=70"), "--position", "2")
    assert first[0] > 1.8 * second[0]
    assert first[1] > 1.8 * second[1]


def test_slow_stretches_time_by_its_percentage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.001)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    pacer = sabotage.Pacer(80.0)  # takes the time 0.000
    for _ in range(99):
        next(clock)
    pacer.pace()  # sees 0.100, and is to end at five times that
    assert next(clock) == pytest.approx(0.5, abs=0.003)


@pytest.mark.parametrize("lane", [(), ("--speculative",)])
def test_stall_at_pauses_before_that_id(lane: tuple[str, ...]) -> None:
    stream = stream_of(*fault("stall-at=9:0.5"), *lane)
    arrived = 0
    gaps = []
    for event, earlier, later in zip(stream.events[1:], stream.times, stream.times[1:], strict=False):
        arrived += len(event["tokens"])
        gaps.append((later - earlier, arrived + 1))
    longest, count = max(gaps)
    assert longest >= 0.45
    assert count >= 10
    assert len(stream.tokens) == COUNT


def test_chunk_sends_several_ids_an_event(honest: Json) -> None:
    stream = stream_of(*fault("chunk=5"))
    assert [len(event["tokens"]) for event in stream.events] == [5, 5, 5, 5, 4, 0]
    assert stream.tokens == honest["tokens"]


def test_lose_ids_streams_fewer_than_it_counts(honest: Json) -> None:
    stream = stream_of(*fault("lose-ids"))
    assert stream.tokens == [token for place, token in enumerate(honest["tokens"]) if place % 4 != 3]
    assert stream.final["tokens_predicted"] == stream.final["timings"]["predicted_n"] == COUNT
    with running(*fault("lose-ids")) as engine:
        assert engine.complete(PROMPT, n_predict=COUNT)["tokens"] == honest["tokens"]


def test_bad_token_is_a_text_in_the_stream(honest: Json) -> None:
    assert stream_of(*fault("bad-token")).tokens[:2] == [honest["tokens"][0], str(honest["tokens"][1])]
    assert stream_of(*fault("bad-token=4")).tokens[4] == str(honest["tokens"][4])


@pytest.mark.parametrize("place", [0, 6])
def test_cut_stream_ends_without_a_final_event_and_lives(honest: Json, place: int) -> None:
    with running(*fault(f"cut-stream={place}")) as engine:
        stream = engine.stream(PROMPT, n_predict=COUNT)
        assert stream.broken
        assert stream.tokens == honest["tokens"][:place]
        assert not any(event["stop"] for event in stream.events)
        with pytest.raises(httpx.RemoteProtocolError):
            engine.ask(PROMPT, n_predict=COUNT)
        assert engine.process.poll() is None
        assert engine.client.get("/health").status_code == 200


@pytest.mark.parametrize("place", [0, 6])
def test_die_at_kills_the_process_in_the_stream(honest: Json, place: int) -> None:
    with running(*fault(f"die-at={place}")) as engine:
        seen = Stream()
        with suppress(httpx.TransportError):
            seen = engine.stream(PROMPT, n_predict=COUNT)
        assert engine.process.wait(timeout=5.0) == -signal.SIGKILL
        assert seen.tokens == honest["tokens"][: len(seen.tokens)]
        assert len(seen.tokens) <= place
        assert not any(event["stop"] for event in seen.events)


def test_wrong_timings_are_twice_too_fast() -> None:
    def apart(*arguments: str) -> float:
        with running(*arguments) as engine:
            shares = []
            for _ in range(3):
                began = time.perf_counter()
                timings = engine.complete(synthetic(20_000), n_predict=1)["timings"]
                shares.append((time.perf_counter() - began) * 1e3 / timings["prompt_ms"])
            return float(min(shares))

    assert apart() < 1.7
    assert apart(*fault("wrong-timings")) > 1.9


def test_unready_forever_never_loads() -> None:
    with running(*fault("unready-forever")) as engine:
        for _ in range(3):
            assert engine.client.get("/health").status_code == 503
            time.sleep(0.1)
        assert engine.ask(PROMPT).status_code == 503


def test_ready_early_says_ok_before_it_can_answer() -> None:
    with running(*fault("ready-early"), "--load-seconds", "1.5") as engine:
        assert engine.client.get("/health").json() == {"status": "ok"}
        assert engine.ask(PROMPT).json()["error"]["message"] == "Loading model"
        deadline = time.monotonic() + 10.0
        while engine.ask(PROMPT).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_ignore_sigterm_goes_on() -> None:
    with running(*fault("ignore-sigterm")) as engine:
        engine.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            engine.process.wait(timeout=0.5)
        assert engine.client.get("/health").status_code == 200


def test_fork_child_leaves_a_child_in_the_group() -> None:
    with running(*fault("fork-child")) as engine:
        child = int(engine.lines[0].removeprefix("forked child "))
        assert os.getpgid(child) == engine.process.pid
        engine.process.terminate()
        engine.process.wait(timeout=5.0)
        assert Path(f"/proc/{child}/stat").read_text().split()[2] != "Z"
        os.killpg(engine.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5.0
        while (stat := Path(f"/proc/{child}/stat")).exists() and stat.read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_fault_is_named_in_props() -> None:
    with running(*fault("stop-early"), *fault("slow=5")) as engine:
        assert engine.client.get("/props").json()["embedded"]["faults"] == ["stop-early", "slow"]


def test_a_mutant_answers_other_tokens_over_http(honest: Json) -> None:
    with running("--mutant", "window-minus-one", "--kernels", "fused") as engine:
        assert engine.complete(PROMPT, n_predict=COUNT)["tokens"] != honest["tokens"]
        assert engine.client.get("/props").json()["embedded"]["mutant"] == "window-minus-one"

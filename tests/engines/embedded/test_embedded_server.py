"""The engine as a process over HTTP, without faults: the dialect, its errors, its beginning and its end."""

from __future__ import annotations

import concurrent.futures
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from embedded_support import MODULE, Running, prose, running, synthetic

from pytest_parity.engines.embedded.weights import build_weights

PROMPT = prose(700)


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    """Run one engine with a small context for all tests that leave no trace in it."""
    with running("--ctx-size", "4096") as started:
        yield started


@pytest.fixture(scope="module")
def speculative() -> Iterator[Running]:
    """Run one engine in its speculative lane."""
    with running("--ctx-size", "4096", "--speculative") as started:
        yield started


def test_health_and_props_say_what_it_is(engine: Running) -> None:
    assert engine.client.get("/health").json() == {"status": "ok"}
    props = engine.client.get("/props").json()
    assert props["total_slots"] == 1
    assert props["model_path"] == "embedded:seed=0"
    assert props["model_alias"] == "embedded"
    assert props["build_info"].startswith("embedded-")
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["temperature"] == 0.0
    own = props["embedded"]
    assert own["weights_sha256"] == build_weights(0).digest()
    assert own["pid"] == engine.process.pid
    assert (own["window"], own["kernels"], own["mutant"], own["faults"]) == (512, "plain", None, [])
    assert (own["speculative"], own["draft_window"], own["batch"]) == (False, 768, 256)


def test_texts_and_ids(engine: Running) -> None:
    post = engine.client.post
    assert post("/tokenize", json={"content": "aé", "add_special": True}).json() == {"tokens": [97, 195, 169]}
    pieces = post("/tokenize", json={"content": "é<|end|>", "with_pieces": True}).json()["tokens"]
    assert pieces == [
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
        {"id": 256, "piece": "<|end|>"},
    ]
    assert post("/tokenize", json={"content": "<|end|>", "parse_special": False}).json()["tokens"][0] == 60
    assert post("/detokenize", json={"tokens": [97, 195, 169, 255]}).json() == {"content": "aé\ufffd"}
    assert post("/tokenize", json={"content": 5}).status_code == 400
    assert post("/detokenize", json={"tokens": [True]}).status_code == 400


def test_an_unstreamed_completion_has_every_field(engine: Running) -> None:
    answer = engine.complete(PROMPT, seed=7, top_k=1, samplers=["top_k"], ignore_eos=True)
    assert answer["tokens"] == engine.complete(PROMPT)["tokens"]
    assert len(answer["tokens"]) == answer["tokens_predicted"] == 16
    assert answer["content"] == bytes(answer["tokens"]).decode()
    assert answer["tokens_evaluated"] == 700
    assert answer["tokens_cached"] == 700 + 15
    assert (answer["index"], answer["id_slot"], answer["stop"], answer["model"]) == (0, 0, True, "embedded")
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == ("limit", "", False)
    assert answer["prompt"] == bytes(PROMPT).decode()
    timings = answer["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, 700, 16)
    assert timings["predicted_per_second"] == pytest.approx(15e3 / timings["predicted_ms"])
    assert timings["prompt_per_second"] == pytest.approx(700e3 / timings["prompt_ms"])
    settings = answer["generation_settings"]
    expected = {
        "n_predict": 16, "seed": 7, "temperature": 0, "top_k": 1, "repeat_penalty": 1.0, "ignore_eos": True,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0, "samplers": ["top_k"],
        "stream": False, "n_probs": 0, "timings_per_token": False, "top_p": 0.95, "min_p": 0.05,
    }  # fmt: skip
    assert {name: settings[name] for name in expected} == expected
    assert engine.complete(PROMPT, return_tokens=False)["tokens"] == []


def test_a_stream_has_one_event_for_each_id_and_the_same_ids(engine: Running) -> None:
    whole = engine.complete(PROMPT)
    stream = engine.stream(PROMPT, timings_per_token=True)
    assert stream.tokens == whole["tokens"]
    assert [len(event["tokens"]) for event in stream.events] == [1] * 16 + [0]
    assert "".join(event["content"] for event in stream.events) == whole["content"]
    assert [event["tokens_predicted"] for event in stream.events] == [*range(1, 17), 16]
    assert [event["timings"]["predicted_n"] for event in stream.events] == [*range(1, 17), 16]
    assert stream.final["stop_type"] == "limit"
    assert stream.final["generation_settings"]["stream"] is True


def test_text_is_held_back_until_a_character_is_whole_but_ids_are_not(engine: Running) -> None:
    copied = list("é🙂é".encode()) * 2
    prompt = [*PROMPT[:600], *copied, *PROMPT[:496]]
    stream = engine.stream(prompt, n_predict=16)
    assert stream.tokens == copied
    assert [event["content"] for event in stream.events[:6]] == ["", "é", "", "", "", "🙂"]
    cut = engine.stream(prompt, n_predict=3)
    assert cut.tokens == copied[:3]
    assert "".join(event["content"] for event in cut.events) == "é\ufffd"
    assert engine.complete(prompt, n_predict=3)["content"] == "é\ufffd"


def test_the_speculative_lane_sends_a_round_an_event(engine: Running, speculative: Running) -> None:
    plain = engine.complete(PROMPT, n_predict=64)
    stream = speculative.stream(PROMPT, n_predict=64)
    assert stream.tokens == plain["tokens"]
    timings = stream.final["timings"]
    sizes = [len(event["tokens"]) for event in stream.events[:-1]]
    assert len(sizes) == timings["rounds"] < 64
    assert max(sizes) > 2
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    # Every round gives one id more than it accepted.
    assert sum(sizes) == timings["rounds"] + timings["draft_n_accepted"]
    assert speculative.complete(PROMPT, n_predict=64)["tokens"] == plain["tokens"]
    assert "rounds" not in plain["timings"]


def test_progress_is_streamed_when_asked_for(engine: Running) -> None:
    stream = engine.stream(PROMPT, return_progress=True)
    progress = [event["prompt_progress"] for event in stream.events if "prompt_progress" in event]
    assert [step["processed"] for step in progress] == [256, 512, 700]
    assert {(step["total"], step["cache"]) for step in progress} == {(700, 0)}
    assert len(stream.tokens) == 16


def test_probabilities_come_when_asked_for(engine: Running) -> None:
    answer = engine.complete(PROMPT, n_predict=2, n_probs=3)
    shown = answer["completion_probabilities"]
    assert [entry["id"] for entry in shown] == answer["tokens"]
    assert [len(entry["top_logprobs"]) for entry in shown] == [3, 3]
    assert shown[0]["top_logprobs"][0]["id"] == shown[0]["id"]
    assert shown[0]["logprob"] < 0
    streamed = engine.stream(PROMPT, n_predict=2, n_probs=3)
    assert [event["completion_probabilities"][0] for event in streamed.events[:2]] == shown


def test_the_cache_is_used_when_it_may_be_and_only_then() -> None:
    with running("--ctx-size", "4096") as engine:
        first = engine.complete(PROMPT, cache_prompt=True)
        assert first["timings"]["cache_n"] == 0
        again = engine.complete(PROMPT, cache_prompt=True)
        assert (again["timings"]["cache_n"], again["timings"]["prompt_n"]) == (699, 1)
        longer = engine.complete([*PROMPT, *first["tokens"], 10, 11], cache_prompt=True)
        assert longer["timings"]["cache_n"] == 700 + 15
        assert longer["tokens_evaluated"] == 718
        never = engine.complete(PROMPT)
        assert (never["timings"]["cache_n"], never["timings"]["prompt_n"]) == (0, 700)
        assert first["tokens"] == again["tokens"] == never["tokens"]


def test_the_end_id_stops_and_can_be_ignored(engine: Running, speculative: Running) -> None:
    prompt = [*PROMPT[:191], 256, *PROMPT[:508]]
    for served in (engine, speculative):
        ended = served.complete(prompt, n_predict=32)
        assert ended["stop_type"] == "eos"
        assert ended["tokens"][-1] == 256
        assert "end" not in ended["content"]
        assert served.stream(prompt, n_predict=32).tokens == ended["tokens"]
        ignored = served.complete(prompt, n_predict=32, ignore_eos=True)
        assert (ignored["stop_type"], len(ignored["tokens"])) == ("limit", 32)
        assert 256 not in ignored["tokens"]


def test_the_context_bounds_what_is_written() -> None:
    with running("--ctx-size", "720") as engine:
        answer = engine.complete(PROMPT, n_predict=-1)
        assert (len(answer["tokens"]), answer["truncated"], answer["stop_type"]) == (20, True, "limit")
        assert engine.complete(PROMPT, n_predict=20)["truncated"] is False
        assert engine.complete(PROMPT, n_predict=0)["tokens"] == []
        refused = engine.ask([1] * 720)
        assert refused.status_code == 400
        assert refused.json()["error"]["type"] == "exceed_context_size_error"


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"prompt": []}', b'{"prompt": [260]}', b"\xff"])
def test_a_malformed_request_is_answered_400(engine: Running, content: bytes) -> None:
    reply = engine.client.post("/completions", content=content)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert "expected" in error["message"]
    assert engine.client.get("/nothing").status_code == 404


def test_a_second_completion_queues_and_health_answers_meanwhile() -> None:
    with running() as engine, concurrent.futures.ThreadPoolExecutor(2) as threads:
        long = synthetic(40_000)
        both = [threads.submit(engine.complete, long, n_predict=4) for _ in range(2)]
        slowest = 0.0
        while not all(future.done() for future in both):
            began = time.perf_counter()
            assert engine.client.get("/health").status_code == 200
            slowest = max(slowest, time.perf_counter() - began)
        first, second = (future.result() for future in both)
        assert first["tokens"] == second["tokens"]
        assert second["timings"]["prompt_n"] == 40_000
        assert slowest < 0.5 * first["timings"]["prompt_ms"] / 1e3 + 0.2


def test_a_client_that_leaves_frees_the_slot() -> None:
    with running() as engine:
        long = synthetic(60_000)
        whole = engine.complete(long, n_predict=1)["timings"]["prompt_ms"] / 1e3
        with pytest.raises(httpx.ReadTimeout):
            engine.client.post(
                "/completion", json=engine.body(long, stream=True), timeout=httpx.Timeout(30.0, read=0.05)
            )
        began = time.perf_counter()
        assert len(engine.complete(PROMPT)["tokens"]) == 16
        assert time.perf_counter() - began < 0.7 * whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_prefill_ends_it_at_once(number: signal.Signals) -> None:
    with running() as engine:
        body = engine.body(synthetic(130_000))

        def ask() -> None:
            with pytest.raises(httpx.TransportError):
                engine.client.post("/completion", json=body)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.4)
        began = time.perf_counter()
        engine.process.send_signal(number)
        assert engine.process.wait(timeout=5.0) == 0
        assert time.perf_counter() - began < 2.0
        asking.join()


def test_loading_answers_503_and_ends() -> None:
    with running("--load-seconds", "0.6") as engine:
        loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
        for reply in (engine.client.get("/health"), engine.ask(PROMPT), engine.client.get("/props")):
            assert reply.status_code == 503
            assert reply.json() == loading
        deadline = time.monotonic() + 10.0
        while engine.client.get("/health").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(engine.complete(PROMPT)["tokens"]) == 16


def test_a_port_that_is_taken_is_an_error(engine: Running) -> None:
    port = str(engine.client.base_url.port)
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--port", port], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"expected a free address, found 127.0.0.1:{port}" in done.stderr
    assert "choose another --port" in done.stderr


def test_an_unknown_argument_ends_the_process_with_status_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--prot"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "unrecognized arguments: --prot" in done.stderr

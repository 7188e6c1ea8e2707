"""The driver against the embedded engine: a real process, honest and with every fault that a driver can see."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_parity.core.transcript import Transcript
from pytest_parity.engines.driver import Request
from pytest_parity.engines.llama_server import LlamaServerDriver
from pytest_parity.errors import EngineDied, EngineNotReady, MalformedReply, SettingsIgnored

pytest.importorskip("uvicorn")

TEXT = "The tide came in before the tea was cold, and nobody on the causeway had looked behind. " * 9


@contextmanager
def engine(*faults: str, more: tuple[str, ...] = ()) -> Iterator[LlamaServerDriver]:
    argv = [sys.executable, "-m", "pytest_parity.engines.embedded", "--port", "0", *more]
    for fault in faults:
        argv += ["--fault", fault]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on ")
            driver = LlamaServerDriver(f"http://{line.split()[-1]}")
            try:
                if "unready-forever" not in faults:
                    driver.wait_ready(30, lambda: None if process.poll() is None else f"{process.returncode}")
                yield driver
            finally:
                driver.close()
        finally:
            process.kill()


def ask(driver: LlamaServerDriver, output_tokens: int = 24, **more: bool) -> Transcript:
    return driver.generate(Request(driver.tokenize(TEXT), output_tokens, ignore_eos=True, **more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def honest() -> Iterator[LlamaServerDriver]:
    with engine() as driver:
        yield driver


def test_two_runs_say_the_same(honest: LlamaServerDriver) -> None:
    first, second = ask(honest), ask(honest)
    assert first.words == second.words
    words = first.words
    assert words.output_ids is not None
    assert len(words.output_ids) == words.predicted == 24
    assert (words.stop, words.cached, words.ids_from) == ("limit", 0, "stream")
    assert words.text == honest.detokenize(words.output_ids)
    assert words.settings["top_k"] == 1
    assert sum(event.tokens or 0 for event in first.clockwork.events) == 24
    assert first.clockwork.engine["predicted_n"] == 24


def test_another_process_says_the_same(honest: LlamaServerDriver) -> None:
    with engine() as driver:
        assert ask(driver).words == ask(honest).words


def test_identity(honest: LlamaServerDriver) -> None:
    identity = honest.identify()
    assert identity.build.startswith("embedded-")
    assert (identity.slots, identity.context) == (1, 131_072)


def test_tokens_of_text_go_there_and_back(honest: LlamaServerDriver) -> None:
    for text in ("Hello", "\u00e9\U0001f600", ""):
        assert honest.detokenize(honest.tokenize(text)) == text


def test_cache_is_used_when_allowed_and_only_then(honest: LlamaServerDriver) -> None:
    sent = len(honest.tokenize(TEXT))
    ask(honest)
    cached = ask(honest, cache=True)
    assert cached.words.cached == sent - 1
    assert ask(honest).words.cached == 0
    assert ask(honest).words.output_ids == cached.words.output_ids


def test_a_cache_that_was_forbidden_is_told() -> None:
    with engine("reuse-cache") as driver:
        ask(driver)
        assert (ask(driver).words.cached or 0) > 0


def test_speculative_counts() -> None:
    with engine(more=("--speculative",)) as driver:
        words = ask(driver).words
    assert words.drafted is not None
    assert words.accepted is not None
    assert words.rounds is not None
    assert 0 <= words.accepted <= words.drafted
    assert words.rounds <= 24


def test_extra_bos_is_refused() -> None:
    with engine("extra-bos") as driver, pytest.raises(MalformedReply) as error:
        ask(driver)
    sent = len(TEXT.encode())
    assert str(error.value).endswith(
        f"expected {sent} evaluated ids, as sent; found tokens_evaluated = {sent + 1}. "
        "One more: the engine adds a begin token (BOS) of its own to a prompt of ids."
    )


def test_lost_ids_come_from_the_repeat(honest: LlamaServerDriver) -> None:
    with engine("lose-ids") as driver:
        lossy = ask(driver)
    assert lossy.words.ids_from == "repeat"
    assert lossy.words.output_ids == ask(honest).words.output_ids
    assert [event.tokens for event in lossy.clockwork.events] == [1] * 24


def test_lost_ids_of_several_tokens_an_event(honest: LlamaServerDriver) -> None:
    with engine("lose-ids", "chunk=5") as driver:
        lossy = ask(driver)
    assert lossy.words.output_ids == ask(honest).words.output_ids
    assert [event.tokens for event in lossy.clockwork.events] == [5, 5, 5, 5, 4]


def test_a_loud_penalty_is_refused() -> None:
    with (
        engine("loud-penalty") as driver,
        pytest.raises(SettingsIgnored, match=r"repeat_penalty: expected 1\.0"),
    ):
        ask(driver)


def test_a_silent_penalty_is_for_exactness_to_find(honest: LlamaServerDriver) -> None:
    with engine("silent-penalty") as driver:
        words = ask(driver).words
    assert words.settings == ask(honest).words.settings
    assert words.output_ids != ask(honest).words.output_ids


def test_wrong_timings_stay_apart_from_our_clock() -> None:
    with engine("wrong-timings") as driver:
        clockwork = ask(driver, 64).clockwork
    ours_ms = (clockwork.events[-1].at_ns - clockwork.events[0].at_ns) / 1e6
    assert clockwork.engine["predicted_ms"] < 0.8 * ours_ms


def test_chunks_carry_their_number_of_tokens(honest: LlamaServerDriver) -> None:
    with engine("chunk=3") as driver:
        chunked = ask(driver)
    assert [event.tokens for event in chunked.clockwork.events] == [3] * 8
    assert chunked.words.output_ids == ask(honest).words.output_ids


@pytest.mark.parametrize("fault", ["cut-stream=5", "die-at=5"])
def test_a_stream_that_ends_early(fault: str) -> None:
    with engine(fault) as driver, pytest.raises(EngineDied, match="closed in the middle of it") as error:
        ask(driver)
    assert '"tokens_predicted":5' in str(error.value)


def test_an_id_as_text_is_refused() -> None:
    with engine("bad-token=2") as driver, pytest.raises(MalformedReply, match=r"\(str\) at position 0"):
        ask(driver)


def test_ids_after_the_end_are_refused() -> None:
    with engine("after-stop") as driver, pytest.raises(MalformedReply, match="at most 24 generated tokens"):
        ask(driver)


def test_ready_too_early_is_waited_for() -> None:
    with engine("ready-early", more=("--load-seconds", "0.5")) as driver:
        assert ask(driver).words.predicted == 24


def test_never_ready_ends_at_the_deadline() -> None:
    with engine("unready-forever") as driver, pytest.raises(EngineNotReady, match="503: Loading model"):
        driver.wait_ready(1, lambda: None)

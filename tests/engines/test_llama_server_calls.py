"""Readiness, identity and tokenising: everything of the driver that is not measured."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import pytest
from raw_server import Step, plain, raw_server

from pytest_parity.engines.llama_server import LlamaServerDriver
from pytest_parity.errors import (
    ConfigurationError,
    EngineNotReady,
    EngineStartFailed,
    ParityError,
)

OK = plain(200, {"status": "ok"})
LOADING = plain(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
TOKEN = plain(200, {"content": "a", "tokens": [5]})


def living() -> str | None:
    return None


def wait(scripts: dict[str, list[Sequence[Step]]], deadline_s: float = 5.0) -> list[str]:
    """Wait for readiness; returns the paths that were asked."""
    with raw_server(scripts) as server:
        driver = LlamaServerDriver(server.url)
        try:
            driver.wait_ready(deadline_s, living)
        finally:
            driver.close()
        return [path for path, _ in server.requests]


def test_ready_means_one_real_token() -> None:
    assert wait({"/health": [OK], "/completion": [TOKEN]}) == ["/health", "/completion"]


def test_loading_and_health_that_is_too_early_are_waited_for() -> None:
    empty = plain(200, {"content": "", "tokens": []})
    asked = wait({"/health": [LOADING, OK], "/completion": [LOADING, empty, TOKEN]})
    assert asked == ["/health", "/health", "/completion", "/health", "/completion", "/health", "/completion"]


def not_ready(scripts: dict[str, list[Sequence[Step]]], deadline_s: float = 0.6) -> str:
    started = time.monotonic()
    with pytest.raises(EngineNotReady) as error:
        wait(scripts, deadline_s)
    assert deadline_s <= time.monotonic() - started < deadline_s + 1.5
    return str(error.value).partition("; found ")[2]


MEND = "Give it a longer start time, or see its log for what it is loading."


def test_503_for_ever_ends_at_the_deadline() -> None:
    assert not_ready({"/health": [LOADING]}) == f"status 503: Loading model. {MEND}"


def test_health_without_a_token_ends_at_the_deadline() -> None:
    empty = plain(200, {"content": ""})
    found = not_ready({"/health": [OK], "/completion": [empty]})
    assert found == f"/completion answered without a token. {MEND}"


@pytest.mark.parametrize("path", ["/health", "/completion"])
def test_a_server_that_answers_nothing_ends_at_the_deadline(path: str) -> None:
    scripts: dict[str, list[Sequence[Step]]] = {"/health": [OK], "/completion": [TOKEN]}
    scripts[path] = [["hold"]]
    assert not_ready(scripts) == f"none. {MEND}"


def test_a_server_that_is_none_of_ours_ends_at_the_deadline() -> None:
    found = not_ready({"*": [[b"SSH-2.0-OpenSSH\r\n\r\n"]]})
    assert found.startswith("none (")
    assert not_ready({"*": [plain(404, {"detail": "no"})]}) == f'status 404: {{"detail": "no"}}. {MEND}'


def test_nothing_listens_until_the_deadline() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        driver = LlamaServerDriver(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(EngineNotReady) as error:
            driver.wait_ready(0.3, living)
        driver.close()
    assert str(error.value).endswith(
        "expected one generated token within 0.3 s; found no connection ([Errno 111] Connection refused). "
        + MEND
    )


def test_the_end_of_the_process_is_noticed() -> None:
    ends = iter([None, None, "exit status 3"])
    with raw_server({"/health": [LOADING]}) as server:
        driver = LlamaServerDriver(server.url)
        with pytest.raises(EngineStartFailed) as error:
            driver.wait_ready(30, lambda: next(ends))
        driver.close()
        host = server.url.removeprefix("http://")
    assert str(error.value) == (
        f"engine at {host}: expected a process that lives until it is ready; found it ended: exit status 3; "
        "status 503: Loading model. See the engine's log."
    )


PROPS = {
    "build_info": "b1-abc",
    "model_path": "/models/m.gguf",
    "total_slots": 1,
    "default_generation_settings": {"n_ctx": 4096, "params": {"top_k": 40}},
    "model_ftype": "F32",
    "media_marker": "random",
    "chat_template": "long",
    "a_forks_own": True,
}


def driver_said(scripts: dict[str, list[Sequence[Step]]], call: str, *arguments: object) -> object:
    """What ``call`` returns, or the text of its error without the address."""
    with raw_server(scripts) as server:
        driver = LlamaServerDriver(server.url)
        try:
            return getattr(driver, call)(*arguments)
        except ParityError as error:
            return f"{type(error).__name__}: {error}".replace(server.url.removeprefix("http://"), "HOST")
        finally:
            driver.close()


def test_identity() -> None:
    with raw_server({"/props": [plain(200, PROPS)], "/slots": [plain(404, {})]}) as server:
        driver = LlamaServerDriver(server.url + "/")
        identity = driver.identify()
        driver.close()
    assert (identity.build, identity.model) == ("b1-abc", "/models/m.gguf")
    assert (identity.context, identity.slots) == (4096, 1)
    assert identity.facts == {
        "default_generation_settings": {"n_ctx": 4096, "params": {"top_k": 40}},
        "model_ftype": "F32",
        "a_forks_own": True,
    }


@pytest.mark.parametrize(
    ("slots", "told"),
    [
        (plain(200, [{"id": 0, "speculative": True}]), True),
        (plain(200, [{"id": 0, "speculative": False}]), False),
        (plain(200, [{"id": 0}]), None),
        (plain(200, []), None),
        (plain(501, {"error": {"message": "no slots"}}), None),
    ],
)
def test_speculation_is_told_by_the_slots(slots: Sequence[Step], told: bool | None) -> None:
    with raw_server({"/props": [plain(200, PROPS)], "/slots": [slots]}) as server:
        driver = LlamaServerDriver(server.url)
        assert driver.identify().facts.get("speculative") is told
        driver.close()


@pytest.mark.parametrize(
    ("change", "expected", "found"),
    [
        ({"build_info": None}, "'build_info' and 'model_path' as text", "None and '/models/m.gguf'"),
        ({"total_slots": "1"}, "'total_slots' to be a whole number", "'1'"),
        ({"n_ctx": True}, "'n_ctx' to be a whole number", "True"),
    ],
)
def test_an_identity_that_is_none(change: dict[str, object], expected: str, found: str) -> None:
    assert driver_said({"/props": [plain(200, {**PROPS, **change})]}, "identify") == (
        f"MalformedReply: /props of engine at HOST: expected {expected}; found {found}. "
        "Check that a llama-server listens here."
    )


def test_tokenize_and_detokenize() -> None:
    scripts: dict[str, list[Sequence[Step]]] = {
        "/tokenize": [plain(200, {"tokens": [1, 2]})],
        "/detokenize": [plain(200, {"content": "a\ufffd"})],
    }
    with raw_server(scripts) as server:
        driver = LlamaServerDriver(server.url)
        assert driver.tokenize("a <|end|>") == (1, 2)
        assert driver.detokenize((1, 2)) == "a\ufffd"
        driver.close()
        assert server.bodies("/tokenize") == [
            {"content": "a <|end|>", "add_special": False, "parse_special": False}
        ]
        assert server.bodies("/detokenize") == [{"tokens": [1, 2]}]


def test_tokens_that_are_none() -> None:
    for answer, found in (({"tokens": ["1"]}, "'1' (str) at position 0"), ({}, "None")):
        text = driver_said({"/tokenize": [plain(200, answer)]}, "tokenize", "a")
        assert isinstance(text, str)
        assert f"found {found}. " in text
    assert driver_said({"/detokenize": [plain(200, {})]}, "detokenize", (1,)) == (
        "MalformedReply: /detokenize of engine at HOST: expected 'content' as text; found None. "
        "Check that a llama-server listens here."
    )
    assert driver_said({"/tokenize": [plain(200, b"{")]}, "tokenize", "a") == (
        "MalformedReply: /tokenize of engine at HOST: expected a JSON object; found b'{' (Expecting property name "
        "enclosed in double quotes: line 1 column 2 (char 1)). Read the engine's log."
    )


def test_calls_go_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert wait({"/health": [OK], "/completion": [TOKEN]}) == ["/health", "/completion"]


@pytest.mark.parametrize("url", ["https://127.0.0.1:80", "http://127.0.0.1", "127.0.0.1:80", "http://h:port"])
def test_addresses_of_another_kind(url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        LlamaServerDriver(url)
    assert str(error.value) == (
        f"address of llama-server: expected http://host:port; found {url!r}. "
        "Name the address that the engine listens on; a measured request does not go through TLS."
    )


def test_capabilities_need_no_engine_and_close_never_raises() -> None:
    driver = LlamaServerDriver("http://127.0.0.1:1/prefix")
    capabilities = driver.capabilities()
    assert all(getattr(capabilities, name) for name in capabilities.__slots__)
    driver.close()
    driver.close()

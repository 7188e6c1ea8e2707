"""The parts that need no process: vocabulary, drafting, faults, command line, requests, the GGUF file."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_parity.engines.embedded import gguf_file, vocabulary
from pytest_parity.engines.embedded.faults import NAMES, SWITCHES, FaultError, Faults, Stall, parse_faults
from pytest_parity.engines.embedded.generation import Draftsman, Greedy, Lookup
from pytest_parity.engines.embedded.options import parse_options
from pytest_parity.engines.embedded.request import RequestError, read_completion
from pytest_parity.engines.embedded.tally import Tally
from pytest_parity.engines.embedded.weights import build_weights

IDS = st.integers(0, vocabulary.SIZE - 1)


@given(st.text())
def test_a_text_survives_its_ids(text: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    ids = vocabulary.tokenize(text)
    assert len(ids) == len(raw)
    assert vocabulary.join(ids) == raw
    assert vocabulary.join(vocabulary.tokenize(text, parse_special=True)) == raw


@given(st.lists(st.one_of(st.integers(0, 127), st.integers(256, 259))))
def test_ids_survive_their_text_where_it_names_no_special_id_by_chance(ids: list[int]) -> None:
    text = vocabulary.join(ids).decode()
    if "<|" in vocabulary.join([token for token in ids if token < 256]).decode():
        return
    again = vocabulary.tokenize(text, parse_special=True)
    assert vocabulary.join(again).decode() == text


@given(st.integers(0, vocabulary.SIZE - 1))
def test_the_displayed_piece_is_text_or_the_bytes(token: int) -> None:
    shown = vocabulary.display_piece(token)
    raw = vocabulary.piece(token)
    assert (shown.encode() if isinstance(shown, str) else bytes(shown)) == raw
    assert isinstance(shown, str) == (token < 128 or token >= 256)


def test_an_id_beyond_the_vocabulary_is_refused() -> None:
    for token in (-1, 260):
        with pytest.raises(ValueError, match=f"expected an id from 0 to 259, found {token}"):
            vocabulary.piece(token)


def slow_draft(ids: list[int], lookup: Lookup, most: int) -> list[int]:
    """Search as the definition says, with lists."""
    recent = ids[-lookup.window :]
    for length in range(lookup.longest, lookup.shortest - 1, -1):
        if length >= len(recent):
            continue
        suffix = recent[-length:]
        for start in range(len(recent) - length - 1, -1, -1):
            if recent[start : start + length] == suffix:
                return recent[start + length : start + length + min(most, lookup.drafted)]
    return []


LOOKUPS = st.builds(Lookup, window=st.integers(8, 40), longest=st.integers(3, 6), shortest=st.integers(1, 3))


@given(st.lists(st.sampled_from([0, 1, 259]), max_size=80), LOOKUPS, st.integers(0, 10))
def test_a_draft_is_what_followed_the_newest_longest_match(ids: list[int], lookup: Lookup, most: int) -> None:
    assert Draftsman(lookup, ids).draft(most) == slow_draft(ids, lookup, most)


@given(st.lists(IDS, max_size=60), st.lists(st.lists(IDS, max_size=9), max_size=8), LOOKUPS)
def test_extending_is_the_same_as_starting_with_everything(
    ids: list[int], more: list[list[int]], lookup: Lookup
) -> None:
    draftsman = Draftsman(lookup, ids)
    for part in more:
        draftsman.extend(part)
        ids = ids + part
    assert draftsman.draft(8) == Draftsman(lookup, ids).draft(8)


def test_greedy_takes_the_largest_and_never_the_banned() -> None:
    row = np.array([0.0, 3.0, 3.0, 1.0], np.float32)
    assert Greedy()(row, 0) == 1
    assert Greedy(banned=1)(row, 0) == 2
    assert Greedy()(np.full(4, np.nan, np.float32), 0) == 0
    assert row.tolist() == [0.0, 3.0, 3.0, 1.0]


def test_every_fault_can_be_named() -> None:
    values = {"stall-at": "3:0.5", "slow": "10", "slow-first": "10", "chunk": "2"}
    for name in NAMES:
        text = name if name in SWITCHES else f"{name}={values.get(name, '3')}"
        faults = parse_faults([text])
        assert faults != Faults()
        assert faults.names() == [name]
    assert parse_faults(["stall-at=3:0.5"]).stall_at == Stall(3, 0.5)
    assert parse_faults(["bad-token"]).bad_token == 1
    assert parse_faults([]) == Faults()
    assert Faults(slow_first=20.0).slowdown(2) == 0.0
    assert Faults(slow_first=20.0).slowdown(1) == 20.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sleepy", "fault: expected one of diverge-at, .*, found 'sleepy'"),
        ("diverge-at", "fault diverge-at: expected a value, found none; write diverge-at=VALUE"),
        ("diverge-at=-1", "fault diverge-at: expected a whole number from 0 on, found '-1'"),
        ("chunk=0", "fault chunk: expected a whole number from 1 on, found '0'"),
        ("stop-early=3", "fault stop-early: expected no value, found '3'"),
        ("slow=100", "fault slow: expected a percentage between 0 and 100, found '100'"),
        ("slow=nan", "fault slow: expected a number from 0 on, found 'nan'"),
        ("stall-at=3", "fault stall-at: expected POSITION:SECONDS, found '3'"),
    ],
)
def test_a_wrong_fault_is_explained(text: str, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        parse_faults([text])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "unrecognized arguments: --prot 1"),
        (["--port", "-1"], "argument --port: expected a whole number from 0 to 65535, found '-1'"),
        (
            ["--host", "0.0.0.0"],
            "argument --host: expected a loopback address such as 127.0.0.1, found '0.0.0.0'",
        ),
        (["--host", "example.org"], "expected a loopback address"),
        (["--draft-window", "512"], "argument --draft-window: invalid choice"),
        (["--load-seconds", "inf"], "expected a number of seconds from 0 on, found 'inf'"),
        (["--fault", "sleepy"], "fault: expected one of"),
        (["--mutant", "none"], "argument --mutant: invalid choice: 'none'"),
        (["--position", "3"], "argument --position: expected a whole number from 1 to 2, found '3'"),
    ],
)
def test_a_wrong_argument_ends_with_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "run with --help for the options" in error


def test_the_command_line_is_read() -> None:
    places = ["--host", "localhost", "--port", "9", "--ctx-size", "1024", "--batch", "64", "--alias", "x"]
    lanes = ["--speculative", "--draft-window", "384", "--kernels", "fused", "--mutant", "swap-kv"]
    faults = ["--fault", "stop-early", "--fault", "slow=5", "--load-seconds", "0.5", "--seed-weights", "4"]
    options = parse_options([*places, *lanes, *faults])
    assert (options.host, options.port, options.context, options.seed) == ("localhost", 9, 1024, 4)
    assert (options.block, options.speculative, options.draft_window, options.kernels) == (
        64,
        True,
        384,
        "fused",
    )
    assert (options.load_seconds, options.mutant, options.alias) == (0.5, "swap-kv", "x")
    assert options.faults == Faults(stop_early=True, slow=5.0)
    assert parse_options([]).context == 131_072


MALFORMED = [
    ([], "body: expected a JSON object, found a list"),
    ({}, "prompt: expected a list of ids or a text, found none"),
    ({"prompt": []}, "prompt: expected at least one id, found none"),
    ({"prompt": ""}, "prompt: expected at least one id, found none"),
    ({"prompt": 7}, "prompt: expected a list of ids, found an integer"),
    ({"prompt": [1, True]}, r"prompt\[1\]: expected an integer id, found a truth value True"),
    ({"prompt": [1.0]}, r"prompt\[0\]: expected an integer id, found a number 1.0"),
    ({"prompt": ["a"]}, r"prompt\[0\]: expected an integer id, found a text 'a'"),
    ({"prompt": [260]}, r"prompt\[0\]: expected an id from 0 to 259, found 260"),
    ({"prompt": [-1]}, r"prompt\[0\]: expected an id from 0 to 259, found -1"),
    ({"prompt": "\ud800"}, "expected a text that UTF-8 can hold, found a lone surrogate"),
    ({"prompt": [1], "n_predict": "4"}, "n_predict: expected an integer from -1 on, found '4'"),
    ({"prompt": [1], "n_predict": True}, "n_predict: expected an integer from -1 on, found True"),
    ({"prompt": [1], "n_predict": -2}, "n_predict: expected an integer from -1 on, found -2"),
    ({"prompt": [1], "stream": 1}, "stream: expected true or false, found 1"),
    ({"prompt": [1], "temperature": 0.8}, "temperature: this engine is greedy only, expected 0, found 0.8"),
    ({"prompt": [1], "temperature": float("nan")}, "temperature: expected a number, found nan"),
    (
        {"prompt": [1], "repeat_penalty": 1.1},
        "repeat_penalty: this engine is greedy only, expected 1.0, found 1.1",
    ),
    ({"prompt": [1], "id_slot": 1}, "id_slot: expected 0"),
    ({"prompt": [1], "n_probs": 261}, "n_probs: expected an integer from 0 to 260, found 261"),
    ({"prompt": [1], "samplers": "k"}, "samplers: expected a list of names, found 'k'"),
    ({"prompt": [1], "stop": ["x"]}, "stop: this engine does not have it"),
]


@pytest.mark.parametrize(("body", "message"), MALFORMED)
def test_a_malformed_request_is_explained(body: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read_completion(body, 1024)
    error = caught.value.body()["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["type"]) == (400, "invalid_request_error")


def test_a_prompt_must_leave_room_for_one_id() -> None:
    assert len(read_completion({"prompt": [1] * 15}, 16).prompt) == 15
    with pytest.raises(RequestError, match=r"request \(16 tokens\) exceeds the available context") as caught:
        read_completion({"prompt": [1] * 16}, 16)
    error = caught.value.body()["error"]
    assert isinstance(error, dict)
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 16, 16)


def test_defaults_are_those_of_llama_cpp_but_for_the_temperature() -> None:
    asked = read_completion({"prompt": "ab"}, 16)
    assert (asked.prompt, asked.n_predict, asked.cache_prompt, asked.stream) == ((97, 98), -1, True, False)
    assert asked.settings["seed"] == 2**32 - 1
    assert asked.settings["temperature"] == 0.0
    named = read_completion({"prompt": "ab", "samplers": ["top_k", "unknown"], "top_k": 1, "seed": 5}, 16)
    assert (named.settings["samplers"], named.settings["top_k"], named.settings["seed"]) == (["top_k"], 1, 5)


def test_a_rate_counts_the_steps_after_the_first_id() -> None:
    tally = Tally(prompt=100, cached=20, begun=1.0, prompt_done=1.5, last=2.5, written=[1, 2, 3, 4, 5])
    timings = tally.timings(speculative=False, share=1.0)
    assert timings["cache_n"] == 20
    assert timings["prompt_n"] == 80
    assert timings["prompt_per_second"] == pytest.approx(160.0)
    assert timings["predicted_n"] == 5
    assert timings["predicted_per_second"] == pytest.approx(4.0)
    assert "draft_n" not in timings
    halved = tally.timings(speculative=True, share=0.5)
    assert halved["predicted_per_second"] == pytest.approx(8.0)
    assert halved["draft_n"] == 0


def test_the_gguf_file_holds_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "copy.gguf"
    assert gguf_file.main([str(path), "--seed", "2"]) == 0
    weights = build_weights(2)
    assert weights.digest() in capsys.readouterr().out
    reader = gguf.GGUFReader(path)
    stored = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    expected = dict(gguf_file.tensors(weights))
    assert stored.keys() == expected.keys()
    for name, matrix in expected.items():
        np.testing.assert_array_equal(stored[name], matrix)
    np.testing.assert_array_equal(stored["output.weight"].T, weights.head)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["llama.attention.key_length"] == 16
    assert fields["llama.context_length"] == 131_072
    assert fields["tokenizer.ggml.eos_token_id"] == 256
    assert len(fields["tokenizer.ggml.tokens"]) == 260
    # Every byte has a printable character of its own, as byte-level BPE files write them.
    assert len(set(gguf_file.token_texts())) == 260
    assert gguf_file.token_texts()[ord("a")] == "a"
    assert gguf_file.token_texts()[ord(" ")] == "\u0120"


def test_a_gguf_file_that_can_not_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gguf")
    assert gguf_file.main([str(tmp_path / "no" / "copy.gguf")]) == 1
    assert "error:" in capsys.readouterr().err


def test_random_texts_have_no_draft() -> None:
    ids = random.Random(0).sample(range(256), 200)
    assert Draftsman(Lookup(), ids).draft(8) == []

"""What the driver makes of every answer, right or wrong: real sockets, scripted bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from raw_server import LAST_CHUNK, STREAM_HEAD, Step, chunk, plain, raw_server, sse, stream

from pytest_parity.core.transcript import Transcript
from pytest_parity.engines.driver import Driver, Request
from pytest_parity.engines.llama_server import LlamaServerDriver
from pytest_parity.engines.llama_settings import GREEDY
from pytest_parity.errors import (
    ConfigurationError,
    EngineDied,
    EngineError,
    EngineNotReady,
    MalformedReply,
    ParityError,
)

PROMPT = (5, 6, 7)
REST = "Nothing of this answer is measured; check the engine's dialect and log."


def request(**changes: object) -> Request:
    fields: dict[str, object] = {
        "prompt_ids": PROMPT,
        "output_tokens": 4,
        "ignore_eos": True,
        "silence_s": 5.0,
    }
    return Request(**{**fields, **changes})  # type: ignore[arg-type]


def partial(ids: object, content: object = "a", told: int | None = None, **more: object) -> dict[str, object]:
    event: dict[str, object] = {"content": content, "tokens": ids, "stop": False, **more}
    return event if told is None else {**event, "tokens_predicted": told}


def final(changes: Mapping[str, object] | None = None, **timings: object) -> dict[str, object]:
    """A right closing event for ``request()``, with changes (``None`` leaves a field out)."""
    event: dict[str, object] = {
        "content": "",
        "tokens": [],
        "stop": True,
        "stop_type": "limit",
        "truncated": False,
        "tokens_predicted": 4,
        "tokens_evaluated": 3,
        "generation_settings": {"temperature": 0.0, "top_k": 1, "seed": 42, "n_predict": 4},
        "timings": {"cache_n": 0, "prompt_n": 3, "predicted_n": 4, "predicted_ms": 9.5, **timings},
    }
    event.update(changes or {})
    return {name: value for name, value in event.items() if value is not None}


FOUR = [partial([number], "abcd"[number - 1], number) for number in (1, 2, 3, 4)]


def generate(
    script: Sequence[Step],
    asked: Request | None = None,
    repeat: Sequence[Step] | None = None,
    seen: list[dict[str, object]] | None = None,
) -> Transcript:
    """What the driver makes of ``script``; the bodies that it sent go to ``seen``."""
    scripts = [script] if repeat is None else [script, repeat]
    with raw_server({"/completion": scripts}) as server:
        driver = LlamaServerDriver(server.url)
        try:
            return driver.generate(asked or request())
        finally:
            driver.close()
            if seen is not None:
                seen.extend(server.bodies("/completion"))


def said(script: Sequence[Step], asked: Request | None = None, repeat: Sequence[Step] | None = None) -> str:
    with pytest.raises(ParityError) as error:
        generate(script, asked, repeat)
    text = f"{type(error.value).__name__}: {error.value}"
    start = text.find("127.0.0.1:")
    if start < 0:
        return text
    end = start + len("127.0.0.1:")
    while end < len(text) and text[end].isdigit():
        end += 1
    return text[:start] + "HOST" + text[end:]


def test_a_right_answer_becomes_a_transcript() -> None:
    progress = partial([-1], "", 0, prompt_progress={"total": 3, "cache": 0, "processed": 3})
    transcript = generate(stream(progress, *FOUR, final()))
    words, clockwork = transcript.words, transcript.clockwork
    assert (words.output_ids, words.text, words.stop, words.ids_from) == (
        (1, 2, 3, 4),
        "abcd",
        "limit",
        "stream",
    )
    assert (words.prompt_tokens, words.evaluated, words.cached, words.predicted) == (3, 3, 0, 4)
    assert (words.drafted, words.accepted, words.rounds) == (None, None, None)
    assert words.settings == {"temperature": 0.0, "top_k": 1, "seed": 42, "n_predict": 4}
    assert [event.tokens for event in clockwork.events] == [1, 1, 1, 1]
    assert clockwork.engine == {"cache_n": 0, "prompt_n": 3, "predicted_n": 4, "predicted_ms": 9.5}
    times = [clockwork.sent_ns, *(event.at_ns for event in clockwork.events), clockwork.end_ns]
    assert times == sorted(times)
    assert clockwork.peak_rss_bytes is None


def test_what_is_asked() -> None:
    seen: list[dict[str, object]] = []
    generate(stream(*FOUR, final()), request(extra={"min_keep": 2}), seen=seen)
    (body,) = seen
    assert body == {
        "prompt": [5, 6, 7],
        "n_predict": 4,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "timings_per_token": False,
        "cache_prompt": False,
        "id_slot": 0,
        "ignore_eos": True,
        "temperature": 0.0,
        "top_k": 1,
        "samplers": ["top_k"],
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "logit_bias": [],
        "seed": 42,
        "min_keep": 2,
    }


def test_progress_tells_prefill_from_decode() -> None:
    script: list[Step] = [STREAM_HEAD]
    for done in (1, 2, 3):
        progress = {"total": 3, "cache": 0, "processed": done}
        script += [chunk(sse(partial([-1], "", 0, prompt_progress=progress))), 0.12]
    for event in FOUR:
        script += [chunk(sse(event)), 0.12]
    told: list[tuple[str, int, int]] = []
    with raw_server([*script, chunk(sse(final())), LAST_CHUNK]) as server:
        driver: Driver = LlamaServerDriver(server.url)
        driver.generate(request(), lambda *step: told.append(step))
        driver.close()
    assert told[-1] == ("decode", 4, 4)
    assert ("prefill", 3, 3) in told
    assert all(0 <= done <= total == {"prefill": 3, "decode": 4}[phase] for phase, done, total in told)
    counts = [done for phase, done, _ in told if phase == "decode"]
    assert counts == sorted(counts)


def test_speculative_counts_and_rounds_where_told() -> None:
    words = generate(stream(*FOUR, final(draft_n=8, draft_n_accepted=2, rounds=2))).words
    assert (words.drafted, words.accepted, words.rounds) == (8, 2, 2)


def test_two_tokens_in_an_event_role_only_and_empty_events() -> None:
    events = [
        {"role": "assistant"},
        partial([], ""),
        partial([1, 2], "ab"),
        {},
        partial([3, 4], "cd"),
        final(),
    ]
    transcript = generate(stream(*events))
    assert transcript.words.output_ids == (1, 2, 3, 4)
    assert [event.tokens for event in transcript.clockwork.events] == [2, 2]


def test_other_line_ends_comments_and_no_space() -> None:
    script: list[Step] = [STREAM_HEAD, chunk(b": ping\r\n\r\n")]
    for event in (*FOUR, final()):
        script.append(chunk(b"data:" + json.dumps(event).encode() + b"\r\n\r\n"))
    assert generate([*script, LAST_CHUNK]).words.output_ids == (1, 2, 3, 4)


def test_an_engine_that_closes_with_done() -> None:
    script = [STREAM_HEAD, *(chunk(sse(event)) for event in (*FOUR, final())), chunk(b"data: [DONE]\n\n")]
    assert generate([*script, LAST_CHUNK]).words.output_ids == (1, 2, 3, 4)


def test_settings_that_are_not_echoed_are_kept_out() -> None:
    words = generate(stream(*FOUR, final({"generation_settings": {"top_k": 1, "more": 3}}))).words
    assert words.settings == {"top_k": 1}
    assert generate(stream(*FOUR, final({"generation_settings": None}))).words.settings == {}


def test_numbers_are_compared_as_engines_keep_them() -> None:
    settings = {"top_n_sigma": 0.10000000149011612, "temperature": 0, "top_k": 1.0}
    words = generate(
        stream(*FOUR, final({"generation_settings": settings})), request(extra={"top_n_sigma": 0.1})
    ).words
    assert words.settings == settings


def test_the_end_token_barred_by_a_bias_is_what_was_asked() -> None:
    bans = {"logit_bias": [{"token": 2, "bias": None}]}
    assert generate(stream(*FOUR, final({"generation_settings": bans}))).words.settings == bans


@pytest.mark.parametrize(
    ("echo", "asked", "text"),
    [
        ({"repeat_penalty": 1.1}, {}, "setting repeat_penalty: expected 1.0, as asked; found 1.1"),
        ({"temperature": 0.8}, {}, "setting temperature: expected 0.0, as asked; found 0.8"),
        ({"top_k": True}, {}, "setting top_k: expected 1, as asked; found True"),
        ({"ignore_eos": 1}, {}, "setting ignore_eos: expected True, as asked; found 1"),
        ({"seed": None}, {}, "setting seed: expected 42, as asked; found None"),
        ({"samplers": ["penalties", "top_k"]}, {}, ("setting samplers: expected ['top_k'], as asked; found "
         "['penalties', 'top_k']")),
        ({"logit_bias": [{"token": 2, "bias": 1.5}]}, {}, ("setting logit_bias: expected [], as asked; found "
         "[{'token': 2, 'bias': 1.5}]")),
        ({"logit_bias": [{"token": 2, "bias": None}]}, {"ignore_eos": False}, ("setting logit_bias: expected [], "
         "as asked; found [{'token': 2, 'bias': None}]")),
        ({"min_keep": 0}, {"extra": {"min_keep": 2}}, "setting min_keep: expected 2, as asked; found 0"),
        ({"min_p": 1e300}, {}, "setting min_p: expected 0.0, as asked; found 1e+300"),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_named(
    echo: dict[str, object], asked: dict[str, object], text: str
) -> None:
    assert said(stream(*FOUR, final({"generation_settings": echo})), request(**asked)) == (
        f"SettingsIgnored: engine at HOST, {text}, as the engine says. "
        "The engine or its command line overrides the request: remove what does."
    )


def test_an_end_token_that_was_to_be_ignored() -> None:
    assert said(stream(*FOUR, final({"stop_type": "eos"}))) == (
        "SettingsIgnored: engine at HOST, setting ignore_eos: expected True, as asked; found false: it stopped "
        "at its end token, as the engine says. The engine or its command line overrides the request: remove what does."
    )
    assert generate(stream(*FOUR, final({"stop_type": "eos"})), request(ignore_eos=False)).words.stop == "eos"


def test_stop_reasons() -> None:
    assert generate(stream(*FOUR, final({"stop_type": "word"}))).words.stop == "word"
    assert generate(stream(*FOUR, final({"stop_type": "none"}))).words.stop is None
    assert generate(stream(*FOUR, final({"stop_type": None}))).words.stop is None


IDS = "token ids to be whole numbers from 0 on"
MALFORMED: list[tuple[str, list[object], str, str]] = [
    ("id as text", [partial(["1"])], IDS, "'1' (str) at position 0"),
    ("id as float", [partial([1, 2.0])], IDS, "2.0 (float) at position 1"),
    ("id as truth value", [partial([True])], IDS, "True (bool) at position 0"),
    ("id negative", [partial([-1])], IDS, "-1 (int) at position 0"),
    ("id null", [partial([None])], IDS, "None (NoneType) at position 0"),
    ("ids no list", [partial({"1": 2})], "token ids to be a list", "{'1': 2}"),
    ("content no text", [partial([1], 5)], "'content' to be text", "5"),
    ("stop no truth value", [{"stop": 1}], "'stop' to be true or false", "1"),
    ("error event", [*FOUR[:2], {"error": {"message": "out of memory"}}], "events of a completion",
     "an error: out of memory"),
    ("error text", [{"error": "no"}], "events of a completion", "an error: no"),
    ("closing event twice", [*FOUR, final(), {"stop": True}], "nothing after the closing event", "{'stop': True}"),
    ("more after the end", [*FOUR, final(), {"usage": 1}], "nothing after the closing event", "{'usage': 1}"),
    ("no closing event", [{"content": ""}], "a closing event ('stop': true)",
     "the last of 1 events was {'content': ''}"),
    ("no event", [], "a closing event ('stop': true)", "no event"),
    ("too many ids", [*FOUR, partial([5]), final()], "4 streamed ids, as the closing event counts", "5"),
    ("counts differ", [*FOUR, final({"tokens_predicted": 3})], "one count of generated tokens",
     "{'tokens_predicted': 3, 'timings.predicted_n': 4}"),
    ("no count", [*FOUR, final({"tokens_predicted": None, "timings": None})], "one count of generated tokens",
     "{'tokens_predicted': None, 'timings.predicted_n': None}"),
    ("count as float", [*FOUR, final({"tokens_predicted": 4.0})], "'tokens_predicted' to be a whole number from 0 on",
     "4.0"),
    ("count negative", [*FOUR, final(cache_n=-1)], "'cache_n' to be a whole number from 0 on", "-1"),
    ("longer than asked", [*FOUR, partial([5]), final({"tokens_predicted": 5}, predicted_n=5)],
     "at most 4 generated tokens, as asked", "5"),
    ("unknown stop", [*FOUR, final({"stop_type": "tired"})], "'stop_type' to be one of limit, eos, word, none",
     "'tired'"),
    ("timings no object", [*FOUR, final({"timings": 3})], "'timings' to be an object", "3"),
    ("settings no object", [*FOUR, final({"generation_settings": []})], "'generation_settings' to be an object", "[]"),
    ("prompt not counted", [*FOUR, final({"tokens_evaluated": None, "timings": None})],
     "a count of evaluated prompt tokens", "none"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("events", "expected", "found"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED]
)
def test_an_answer_that_breaks_the_dialect(events: list[object], expected: str, found: str) -> None:
    assert said(stream(*events)) == (
        f"MalformedReply: answer of engine at HOST: expected {expected}; found {found}. {REST}"
    )


def test_a_truncated_output() -> None:
    assert said(stream(*FOUR, final({"truncated": True}))) == (
        "MalformedReply: answer of engine at HOST: expected an output that was not truncated; "
        "found 'truncated': True. Raise the engine's context."
    )


@pytest.mark.parametrize(
    ("change", "timings", "found", "mend"),
    [
        ({"tokens_evaluated": 4}, {}, "tokens_evaluated = 4",
         "One more: the engine adds a begin token (BOS) of its own to a prompt of ids."),
        ({"tokens_evaluated": 2}, {}, "tokens_evaluated = 2",
         "One fewer: the engine drops a begin token (BOS) that the ids begin with."),
        ({}, {"prompt_n": 4}, "prompt_n + cache_n = 4",
         "One more: the engine adds a begin token (BOS) of its own to a prompt of ids."),
        ({}, {"prompt_n": 3, "cache_n": 9}, "prompt_n + cache_n = 12", "The engine evaluated another prompt."),
        ({}, {"prompt_n": 1, "cache_n": None}, "prompt_n = 1", "The engine evaluated another prompt."),
    ],
)  # fmt: skip
def test_another_prompt_was_evaluated(
    change: dict[str, object], timings: dict[str, object], found: str, mend: str
) -> None:
    assert said(stream(*FOUR, final(change, **timings))) == (
        f"MalformedReply: engine at HOST, prompt: expected 3 evaluated ids, as sent; found {found}. {mend}"
    )


def test_a_cached_prefix_is_left_for_the_pair_to_void() -> None:
    words = generate(stream(*FOUR, final(prompt_n=1, cache_n=2))).words
    assert (words.cached, words.evaluated) == (2, 3)


def test_fields_that_the_driver_sets_are_not_the_lanes() -> None:
    with pytest.raises(ConfigurationError) as error:
        LlamaServerDriver("http://127.0.0.1:1").generate(request(extra={"stream": False, "prompt": []}))
    assert str(error.value) == (
        "request fields of the lane: expected none of prompt, n_predict, stream, return_tokens, return_progress, "
        "ignore_eos, cache_prompt, id_slot, temperature, top_k, samplers, top_p, min_p, typical_p, xtc_probability, "
        "dynatemp_range, mirostat, repeat_penalty, presence_penalty, frequency_penalty, dry_multiplier, logit_bias, "
        "seed; found prompt, stream. These are set from the claim; leave them out of the lane."
    )
    with pytest.raises(ConfigurationError, match="Mend the lane's request table"):
        LlamaServerDriver("http://127.0.0.1:1").generate(request(extra={"top_n_sigma": float("nan")}))


@pytest.mark.parametrize("field", sorted(GREEDY))
def test_what_makes_it_greedy_is_not_the_lanes(field: str) -> None:
    """Also not with the value that it has anyway: two lanes that sample alike would count as different."""
    with pytest.raises(ConfigurationError, match=f"^request fields of the lane: .*; found {field}\\. "):
        LlamaServerDriver("http://127.0.0.1:1").generate(request(extra={field: GREEDY[field]}))


# Withheld ids (trap T53): events 1 and 4 of four tokens carry an id, as llama.cpp does inside an emoji.

WITHHELD = [partial([1], "a", 1), partial([4], "\U0001f600", 4)]


def whole(changes: Mapping[str, object] | None = None, **timings: object) -> dict[str, object]:
    said_whole = {"content": "a\U0001f600", "tokens": [1, 2, 3, 4], **(changes or {})}
    return final(said_whole, **timings)


def test_withheld_ids_come_from_an_unstreamed_repeat() -> None:
    seen: list[dict[str, object]] = []
    transcript = generate(stream(*WITHHELD, final()), request(cache=True), plain(200, whole()), seen)
    assert transcript.words.output_ids == (1, 2, 3, 4)
    assert transcript.words.ids_from == "repeat"
    assert [event.tokens for event in transcript.clockwork.events] == [1, 3]
    measured, repeated = seen
    changed = {name: repeated[name] for name in repeated if repeated[name] != measured[name]}
    assert changed == {"stream": False, "return_progress": False, "cache_prompt": False}


def test_sizes_are_unknown_when_the_engine_does_not_count_along() -> None:
    for told in ((None, None), (3, 1), (1, 3)):
        events = [partial([1], "a", told[0]), partial([4], "\U0001f600", told[1])]
        transcript = generate(stream(*events, final()), repeat=plain(200, whole()))
        assert [event.tokens for event in transcript.clockwork.events] == [None, None]


def test_an_engine_that_streams_text_only_is_repeated() -> None:
    events = [{"content": "a", "stop": False}, {"content": "\U0001f600", "stop": False}]
    transcript = generate(stream(*events, final()), repeat=plain(200, whole()))
    assert transcript.words.ids_from == "repeat"
    assert [event.tokens for event in transcript.clockwork.events] == [None, None]


REPEAT = "unstreamed repeat of engine at HOST (the stream carried 2 of 4 ids)"


@pytest.mark.parametrize(
    ("repeat", "text"),
    [
        (plain(200, whole({"content": "b"})), (f"MalformedReply: {REPEAT}: expected 4 ids and the text that was "
         "streamed; found 4 ids (4 counted) and another text, ending 'b'. "
         "The ids are not to be had: compare at level 'text'.")),
        (plain(200, whole({"tokens": [1, 4]})), (f"MalformedReply: {REPEAT}: expected 4 ids and the text that was "
         "streamed; found 2 ids (4 counted) and the same text. "
         "The ids are not to be had: compare at level 'text'.")),
        (plain(200, whole({"tokens_predicted": 3}, predicted_n=3)), (f"MalformedReply: {REPEAT}: expected 4 ids and "
         "the text that was streamed; found 4 ids (3 counted) and the same text. "
         "The ids are not to be had: compare at level 'text'.")),
        (plain(200, whole({"content": "a\U0001f600\ufffd"})), (f"MalformedReply: {REPEAT}: expected 4 ids and the "
         "text that was streamed; found 4 ids (4 counted) and another text, ending 'a\U0001f600\ufffd'. "
         "The output ends inside a character: ask for a token more or fewer, or compare at level 'text'.")),
        (plain(200, whole({"tokens": [1, 2, 3, 5]})), (f"MalformedReply: {REPEAT}: expected the streamed ids among "
         "its ids, in order; found another sequence with the same text. "
         "The engine does not repeat itself: the ids of the measured answer are not to be had.")),
        (plain(200, whole({"tokens": [4, 2, 3, 1]})), (f"MalformedReply: {REPEAT}: expected the streamed ids among "
         "its ids, in order; found another sequence with the same text. "
         "The engine does not repeat itself: the ids of the measured answer are not to be had.")),
        (plain(503, {"error": {"message": "busy"}}), ("EngineNotReady: /completion of engine at HOST: expected status "
         "200; found status 503: busy. The engine refused the request: mend what it names.")),
        (plain(200, whole({"tokens": None})), ("MalformedReply: answer of engine at HOST: expected token ids to be a "
         f"list; found None. {REST}")),
    ],
)  # fmt: skip
def test_a_repeat_that_is_none(repeat: Sequence[Step], text: str) -> None:
    assert said(stream(*WITHHELD, final()), repeat=repeat) == text


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([STREAM_HEAD, chunk(sse(FOUR[0]))], EngineDied),
        ([STREAM_HEAD, chunk(b'data: {"content": "\xf0\x9f'), LAST_CHUNK], MalformedReply),
        ([STREAM_HEAD, chunk(b"data: {]}\n\n"), LAST_CHUNK], MalformedReply),
        (plain(503, {"error": {"message": "Loading model"}}), EngineNotReady),
        (plain(400, {"error": {"message": "too long"}}), MalformedReply),
        (plain(200, final()), MalformedReply),
        ([], EngineDied),
    ],
)
def test_broken_streams_end_in_one_of_our_errors(script: Sequence[Step], kind: type[EngineError]) -> None:
    with pytest.raises(kind):
        generate(script)


@pytest.mark.parametrize(
    ("counters", "found"),
    [
        ({"draft_n": 2, "draft_n_accepted": 1000}, "1000 accepted of 2 drafted, 4 written"),
        ({"draft_n": 9, "draft_n_accepted": 5}, "5 accepted of 9 drafted, 4 written"),
        ({"draft_n": 2, "draft_n_accepted": 3}, "3 accepted of 2 drafted, 4 written"),
    ],
)
def test_counters_that_cannot_be_are_refused(counters: dict[str, Any], found: str) -> None:
    with pytest.raises(MalformedReply) as caught:
        generate(stream(*FOUR, final(**counters)))
    assert "no more accepted tokens than were drafted and written" in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize("rounds", [0, 5])
def test_rounds_that_cannot_be_are_refused(rounds: int) -> None:
    with pytest.raises(MalformedReply, match="expected 1 to 4 rounds; found"):
        generate(stream(*FOUR, final(rounds=rounds)))

"""The recorded engine: right from its files, and wrong in every way that it can be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_parity.core.transcript import Clockwork, Event, Transcript, Words
from pytest_parity.engines.driver import Driver, Identity, Request
from pytest_parity.engines.replay import Misbehaviour, Recording, ReplayDriver, record
from pytest_parity.errors import (
    ConfigurationError,
    EngineDied,
    EngineNotReady,
    EngineSilent,
    EngineStartFailed,
    MalformedReply,
    Unsupported,
)

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "transcripts"
FILES = sorted(FOLDER.glob("*.json"))

REQUEST = Request((7, 8), 4, ignore_eos=True)
WORDS = Words(2, (1, 2, 3, 4), "abcd", "limit", 2, 0, 4, 6, 3, 2, {"top_k": 1})
CLOCK = Clockwork(100, (Event(200, 1), Event(300, 3)), 310, {"predicted_ms": 0.1 + 0.2})
MADE = Recording(
    about="made by hand",
    identity=Identity("b1", "m.gguf", 64, 1, {"fact": [1, None]}),
    boundary="first to last",
    request=REQUEST,
    transcript=Transcript(WORDS, CLOCK),
    pieces={1: "a", 2: "b", 3: "c", 4: "d", 7: "x"},
    texts={"xy": (7, 8)},
)


def made(kind: str, at: int = 2) -> ReplayDriver:
    return ReplayDriver([MADE], Misbehaviour(kind, at))  # type: ignore[arg-type]


def test_there_are_recordings() -> None:
    assert len(FILES) >= 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recording_is_whole_and_reads_back_byte_for_byte(path: Path, tmp_path: Path) -> None:
    recording = Recording.load(path)
    recording.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    words, clockwork = recording.transcript.words, recording.transcript.clockwork
    assert words.output_ids is not None
    assert len(words.output_ids) == words.predicted == recording.request.output_tokens
    assert sum(event.tokens or 0 for event in clockwork.events) == words.predicted
    times = [clockwork.sent_ns, *(event.at_ns for event in clockwork.events), clockwork.end_ns]
    assert times == sorted(times)
    assert "/" not in recording.identity.model


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recording_is_served_as_it_was(path: Path) -> None:
    recording = Recording.load(path)
    driver: Driver = ReplayDriver([recording])
    driver.wait_ready(1, lambda: None)
    assert driver.generate(recording.request) == recording.transcript
    assert driver.identify() == recording.identity
    ((text, ids),) = recording.texts.items()
    assert driver.tokenize(text) == ids == recording.request.prompt_ids
    driver.close()


def test_two_processes_said_the_same() -> None:
    a, b = (Recording.load(FOLDER / f"llama-prose-{which}.json") for which in "ab")
    assert a.transcript.words == b.transcript.words
    assert a.transcript.clockwork != b.transcript.clockwork


def test_a_recording_of_a_replay_is_equal() -> None:
    again = record(ReplayDriver([MADE]), "made by hand", "xy", REQUEST)
    assert again == replace(MADE, pieces={**MADE.pieces, 8: "\ufffd"})


def test_from_folder() -> None:
    driver = ReplayDriver.from_folder(FOLDER, "llama-prose-*.json")
    request = Recording.load(FOLDER / "llama-prose-a.json").request
    assert driver.generate(request).words.predicted == 32


def test_nothing_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        ReplayDriver.from_folder(tmp_path)
    assert str(error.value) == ("replay: expected at least one recorded transcript; found none. Name a file.")


def test_a_shorter_output_is_the_beginning(tmp_path: Path) -> None:
    transcript = ReplayDriver([MADE]).generate(replace(REQUEST, output_tokens=2))
    assert transcript.words == Words(2, (1, 2), "ab", "limit", 2, 0, 2, settings={"top_k": 1})
    assert transcript.clockwork == Clockwork(100, (Event(200, 1), Event(300, 1)), 300, {})
    assert ReplayDriver([MADE]).generate(replace(REQUEST, output_tokens=1)).clockwork.end_ns == 200


def test_a_beginning_needs_sizes() -> None:
    unsized = replace(
        MADE, transcript=Transcript(WORDS, replace(CLOCK, events=(Event(200, None), Event(300, None))))
    )
    assert ReplayDriver([unsized]).generate(REQUEST).words == WORDS
    with pytest.raises(Unsupported):
        ReplayDriver([unsized]).generate(replace(REQUEST, output_tokens=2))


@pytest.mark.parametrize(
    "asked",
    [
        replace(REQUEST, prompt_ids=(7,)),
        replace(REQUEST, output_tokens=5),
        replace(REQUEST, ignore_eos=False),
        replace(REQUEST, cache=True),
        replace(REQUEST, extra={"min_p": 0.1}),
    ],
)
def test_what_was_not_recorded_is_refused(asked: Request) -> None:
    with pytest.raises(Unsupported) as error:
        ReplayDriver([MADE]).generate(asked)
    assert str(error.value) == (
        f"replay: expected a request that was recorded (1 are); found {len(asked.prompt_ids)} prompt ids, "
        f"{asked.output_tokens} output tokens, ignore_eos {asked.ignore_eos}, cache {asked.cache}, "
        f"extra {asked.extra}. Record it, or ask for a recorded prompt."
    )


def test_texts_that_were_not_recorded_are_refused() -> None:
    driver = ReplayDriver([MADE])
    assert driver.detokenize((1, 99)) == "a\ufffd"
    with pytest.raises(Unsupported) as error:
        driver.tokenize("other")
    assert str(error.value) == "replay: expected one of 1 recorded texts; found 'other'. Record that text."


def test_truncate() -> None:
    words = made("truncate").generate(REQUEST).words
    assert (words.output_ids, words.text, words.predicted) == ((1, 2), "ab", 2)
    assert made("truncate", 0).generate(REQUEST).words.output_ids == ()


def test_repeat() -> None:
    transcript = made("repeat").generate(REQUEST)
    assert (transcript.words.output_ids, transcript.words.text) == ((1, 2, 2, 2), "abbb")
    assert transcript.clockwork == CLOCK


def test_diverge() -> None:
    words = made("diverge").generate(REQUEST).words
    assert (words.output_ids, words.text) == ((1, 2, 1, 4), "abad")
    alone = ReplayDriver([replace(MADE, pieces={})], Misbehaviour("diverge", 0))
    assert alone.generate(REQUEST).words.output_ids == (2, 2, 3, 4)


def test_silent() -> None:
    with pytest.raises(EngineSilent) as error:
        made("silent").generate(replace(REQUEST, silence_s=0.5))
    assert str(error.value) == (
        "replay: expected an event at least every 0.5 s; found silence after 2 ids. Take the misbehaviour away."
    )


def test_die() -> None:
    with pytest.raises(EngineDied) as error:
        made("die").generate(REQUEST)
    assert str(error.value) == (
        "replay: expected a complete answer; found the connection closed after 2 ids. Take the misbehaviour away."
    )


def test_unready() -> None:
    with pytest.raises(EngineNotReady) as error:
        made("unready").wait_ready(3, lambda: None)
    assert str(error.value) == (
        "replay: expected one generated token within 3 s; found status 503: told to misbehave. "
        "Take the misbehaviour away."
    )
    with pytest.raises(EngineStartFailed, match="found it ended: status 1"):
        ReplayDriver([MADE]).wait_ready(3, lambda: "status 1")


def test_a_misbehaviour_after_the_end_is_none() -> None:
    with pytest.raises(MalformedReply) as error:
        made("diverge", 4).generate(REQUEST)
    assert str(error.value) == (
        "replay: expected an output longer than the misbehaviour's position 4; found 4 ids. Misbehave earlier."
    )


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("{", "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ('{"format": 2}', "ValueError: format 2, and this version reads 1"),
        ('{"format": 1}', "KeyError: 'transcript'"),
        ("[]", "TypeError: list indices must be integers or slices, not str"),
    ],
)
def test_a_file_that_is_no_recording(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError) as error:
        Recording.load(path)
    assert str(error.value) == (
        f"recorded transcript bad.json: expected a file of format 1; found {found}. Record it again."
    )


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    ReplayDriver([MADE]).generate(REQUEST, lambda *step: told.append(step))
    assert told == [("decode", 4, 4)]

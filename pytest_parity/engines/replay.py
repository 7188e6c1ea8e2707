"""An engine from a file: recorded transcripts behind the driver's protocol.

The in-memory test double for everything above the seam, and the first engine that a newcomer meets: it
needs no process, no model and no GPU, and its times are those of the recording. It can be told to
misbehave. ``fixtures/transcripts/README.md`` describes the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_parity.core.transcript import Clockwork, Event, Transcript, Words
from pytest_parity.engines.driver import Capabilities, Driver, Identity, Progress, Request
from pytest_parity.errors import (
    ConfigurationError,
    EngineDied,
    EngineNotReady,
    EngineSilent,
    EngineStartFailed,
    MalformedReply,
    Unsupported,
)

__all__ = ["Misbehaviour", "Recording", "ReplayDriver", "record"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """What the engine does wrong at output position ``at`` (from 0).

    ``truncate``: the output ends before it. ``repeat``: the id before it is written again and again.
    ``diverge``: another id stands there. ``silent``: nothing comes any more. ``die``: the process is gone.
    ``unready``: never ready.
    """

    kind: Literal["truncate", "repeat", "diverge", "silent", "die", "unready"]
    at: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """One request and what was said. ``pieces``: text of each id of its vocabulary that it knows.

    ``about``: where it comes from. ``texts``: prompt texts with their ids, for ``tokenize``.
    """

    about: str
    identity: Identity
    boundary: str
    request: Request
    transcript: Transcript
    pieces: Mapping[int, str] = field(default_factory=dict)
    texts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a file. Raises ConfigurationError when it is missing or no recording of this format."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError(f"format {told['format']!r}, and this version reads {FORMAT}")
            return _recording(told)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"recorded transcript {path.name}",
                expected=f"a file of format {FORMAT}",
                found=f"{type(error).__name__}: {error}",
                mend="Record it again.",
            ) from error

    def save(self, path: Path) -> None:
        """Write a file that ``load`` reads back equal."""
        told = asdict(self)
        told["pieces"] = {str(token): text for token, text in self.pieces.items()}
        clockwork = told["transcript"]["clockwork"]
        clockwork["events"] = [[event["at_ns"], event["tokens"]] for event in clockwork["events"]]
        lines = [
            f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
            for name, value in {"format": FORMAT, **told}.items()
        ]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def record(driver: Driver, about: str, text: str, request: Request) -> Recording:
    """Ask ``driver`` for ``request``, whose prompt ids are those of ``text``, and keep all that it says."""
    transcript = driver.generate(request)
    tokens = {*request.prompt_ids, *(transcript.words.output_ids or ())}
    return Recording(
        about=about,
        identity=driver.identify(),
        boundary=driver.boundary,
        request=request,
        transcript=transcript,
        pieces={token: driver.detokenize((token,)) for token in sorted(tokens)},
        texts={text: request.prompt_ids},
    )


def _recording(told: Mapping[str, Any]) -> Recording:
    words, clockwork = told["transcript"]["words"], told["transcript"]["clockwork"]
    ids = words["output_ids"]
    events = tuple(Event(at_ns, tokens) for at_ns, tokens in clockwork["events"])
    request = told["request"]
    return Recording(
        about=told["about"],
        identity=Identity(**told["identity"]),
        boundary=told["boundary"],
        request=Request(**{**request, "prompt_ids": tuple(request["prompt_ids"])}),
        transcript=Transcript(
            Words(**{**words, "output_ids": None if ids is None else tuple(ids)}),
            Clockwork(**{**clockwork, "events": events}),
        ),
        pieces={int(token): text for token, text in told["pieces"].items()},
        texts={text: tuple(prompt) for text, prompt in told["texts"].items()},
    )


class ReplayDriver:
    """Serves ``recordings`` (of one engine). A request is answered by the recording with its prompt ids.

    A shorter output of a recorded prompt is the beginning of the recorded one: the engine is greedy.
    Raises ConfigurationError without recordings.
    """

    name = "replay"

    def __init__(self, recordings: Iterable[Recording], misbehaviour: Misbehaviour | None = None) -> None:
        self._recordings = tuple(recordings)
        if not self._recordings:
            raise ConfigurationError(
                "replay", expected="at least one recorded transcript", found="none", mend="Name a file."
            )
        self.boundary = self._recordings[0].boundary
        self._wrong = misbehaviour

    @classmethod
    def from_folder(cls, folder: Path, pattern: str = "*.json") -> ReplayDriver:
        """A driver of every recording in ``folder`` whose file name matches ``pattern``, by name."""
        return cls(Recording.load(path) for path in sorted(folder.glob(pattern)))

    def capabilities(self) -> Capabilities:
        """Those of llama-server: what was not recorded is refused when it is asked for."""
        return Capabilities(True, True, True, True, True, True, True)

    def wait_ready(self, deadline_s: float, alive: Callable[[], str | None]) -> None:
        """Ready at once, unless told otherwise."""
        ended = alive()
        if ended is not None:
            raise EngineStartFailed(
                "replay",
                expected="a living process",
                found=f"it ended: {ended}",
                mend="See the engine's log.",
            )
        if self._wrong is not None and self._wrong.kind == "unready":
            raise EngineNotReady(
                "replay",
                expected=f"one generated token within {deadline_s:g} s",
                found="status 503: told to misbehave",
                mend="Take the misbehaviour away.",
            )

    def identify(self) -> Identity:
        """The identity that was recorded."""
        return self._recordings[0].identity

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Ids of a text that was recorded. Raises Unsupported for any other."""
        for recording in self._recordings:
            if text in recording.texts:
                return recording.texts[text]
        known = sum(len(recording.texts) for recording in self._recordings)
        raise Unsupported(
            "replay",
            expected=f"one of {known} recorded texts",
            found=repr(text[:60]),
            mend="Record that text.",
        )

    def detokenize(self, ids: tuple[int, ...]) -> str:
        """Text of ``ids``, U+FFFD for an id whose text was not recorded."""
        known: dict[int, str] = {}
        for recording in self._recordings:
            known.update(recording.pieces)
        return "".join(known.get(token, "\ufffd") for token in ids)

    def generate(self, request: Request, progress: Progress | None = None) -> Transcript:
        """The recorded transcript of this request, its beginning, or what the misbehaviour makes of it."""
        recorded = self._find(request).transcript
        ids = recorded.words.output_ids
        if ids is not None and request.output_tokens < len(ids):
            recorded = self._beginning(recorded, request.output_tokens)
        transcript = self._misbehave(recorded, request)
        if progress is not None:
            progress("decode", transcript.words.predicted or 0, request.output_tokens)
        return transcript

    def close(self) -> None:
        """Nothing is open."""

    def _find(self, request: Request) -> Recording:
        for recording in self._recordings:
            asked = recording.request
            if (
                (asked.prompt_ids, asked.ignore_eos, asked.cache, dict(asked.extra))
                == (request.prompt_ids, request.ignore_eos, request.cache, dict(request.extra))
            ) and request.output_tokens <= asked.output_tokens:
                return recording
        raise Unsupported(
            "replay",
            expected=f"a request that was recorded ({len(self._recordings)} are)",
            found=f"{len(request.prompt_ids)} prompt ids, {request.output_tokens} output tokens, "
            f"ignore_eos {request.ignore_eos}, cache {request.cache}, extra {dict(request.extra)}",
            mend="Record it, or ask for a recorded prompt.",
        )

    def _beginning(self, whole: Transcript, count: int) -> Transcript:
        """The first ``count`` ids; the closing event then comes with the last of them."""
        events: list[Event] = []
        left = count
        for event in whole.clockwork.events:
            if event.tokens is None:
                raise Unsupported(
                    "replay",
                    expected="events that tell their tokens",
                    found="one that does not",
                    mend="Record it.",
                )
            if left <= 0:
                break
            events.append(replace(event, tokens=min(event.tokens, left)))
            left -= event.tokens
        ids = whole.words.output_ids or ()
        words = replace(
            whole.words,
            output_ids=ids[:count],
            text=self._text(whole, ids[:count]),
            stop="limit",
            predicted=count,
            drafted=None,
            accepted=None,
            rounds=None,
        )
        end_ns = events[-1].at_ns if events else whole.clockwork.sent_ns
        # The engine's own figures are of the whole output, so none is left.
        return Transcript(words, replace(whole.clockwork, events=tuple(events), end_ns=end_ns, engine={}))

    def _text(self, whole: Transcript, ids: tuple[int, ...]) -> str:
        return whole.words.text if ids == whole.words.output_ids else self.detokenize(ids)

    def _misbehave(self, right: Transcript, request: Request) -> Transcript:
        wrong = self._wrong
        if wrong is None or wrong.kind == "unready":
            return right
        if wrong.kind == "silent":
            raise EngineSilent(
                "replay",
                expected=f"an event at least every {request.silence_s:g} s",
                found=f"silence after {wrong.at} ids",
                mend="Take the misbehaviour away.",
            )
        if wrong.kind == "die":
            raise EngineDied(
                "replay",
                expected="a complete answer",
                found=f"the connection closed after {wrong.at} ids",
                mend="Take the misbehaviour away.",
            )
        ids = right.words.output_ids
        if ids is None or not 0 <= wrong.at < len(ids):
            raise MalformedReply(
                "replay",
                expected=f"an output longer than the misbehaviour's position {wrong.at}",
                found=f"{0 if ids is None else len(ids)} ids",
                mend="Misbehave earlier.",
            )
        if wrong.kind == "truncate":
            return self._beginning(right, wrong.at)
        if wrong.kind == "repeat":
            again = ids[max(0, wrong.at - 1)]
            changed = (*ids[: wrong.at], *(again for _ in ids[wrong.at :]))
        else:
            changed = (*ids[: wrong.at], self._other(ids[wrong.at]), *ids[wrong.at + 1 :])
        return replace(right, words=replace(right.words, output_ids=changed, text=self._text(right, changed)))

    def _other(self, token: int) -> int:
        """Another id, of known text where there is one."""
        known = sorted({other for recording in self._recordings for other in recording.pieces} - {token})
        return known[0] if known else token + 1

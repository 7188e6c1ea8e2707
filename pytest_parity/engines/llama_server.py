"""The driver for llama-server, its forks, and the embedded engine.

Only the measured request goes over the bare socket of :mod:`pytest_parity.engines.http_request`;
everything else goes over :mod:`pytest_parity.engines.http_call`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from pytest_parity.core.transcript import Transcript
from pytest_parity.engines.driver import Capabilities, Identity, Progress, Request
from pytest_parity.engines.http_call import Caller, json_bytes
from pytest_parity.engines.http_request import Watch, exchange, prepare
from pytest_parity.engines.llama_reply import (
    Closing,
    Streamed,
    read_closing,
    read_ids,
    read_stream,
    transcript,
)
from pytest_parity.engines.llama_settings import body_for
from pytest_parity.engines.stream import parse_response, stream_objects
from pytest_parity.errors import (
    ConfigurationError,
    EngineError,
    EngineNotReady,
    EngineSilent,
    EngineStartFailed,
    MalformedReply,
)

__all__ = ["LlamaServerDriver"]

_PROBE_ID = 1  # any id of any vocabulary: readiness asks for a token, not for sense
_POLL_S = 0.01
_HEALTH_S = 2.0
_FIRST_PROBE_S = 5.0
_NO_FACTS = (  # of /props: shown elsewhere, different in every process, or of the web pages only
    "build_info",
    "model_path",
    "total_slots",
    "n_ctx",
    "chat_template",
    "chat_template_caps",
    "chat_template_tool_use",
    "cors_proxy_enabled",
    "endpoint_metrics",
    "endpoint_props",
    "endpoint_slots",
    "is_sleeping",
    "media_marker",
    "ui",
    "ui_settings",
    "webui",
    "webui_settings",
)
_PREFILLED = re.compile(rb'"processed":\s*(\d+)')


class LlamaServerDriver:
    """One llama-server at ``base_url`` (``http://host:port``, a path may follow).

    Raises ConfigurationError for an address of another kind.
    """

    name = "llama-server"
    boundary = (
        "prefill: request sent to first event that carries ids; decode: first such event to last such "
        "event; arrivals are kernel receive stamps where Linux gives them, else the client's clock"
    )

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None:
            raise ConfigurationError(
                "address of llama-server",
                expected="http://host:port",
                found=repr(base_url),
                mend="Name the address that the engine listens on; a measured request does not go through TLS.",
            )
        self._address = (parts.hostname, port)
        self._host = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._where = f"engine at {self._host}"
        self._call = Caller(f"http://{self._host}{self._prefix}", self._where)

    def capabilities(self) -> Capabilities:
        """Everything: this dialect takes and gives ids, its own times, and obeys cache and end token."""
        return Capabilities(
            ids_in=True,
            ids_out=True,
            engine_timings=True,
            tokenize=True,
            ignore_eos=True,
            cache_control=True,
            streams_ids=True,
        )

    def wait_ready(self, deadline_s: float, alive: Callable[[], str | None]) -> None:
        """Return once ``/health`` is 200 and ``/completion`` gave one token. See the protocol."""
        end = time.monotonic() + deadline_s
        patience = _FIRST_PROBE_S
        last = "no answer yet"
        while True:
            ended = alive()
            if ended is not None:
                raise EngineStartFailed(
                    self._where,
                    expected="a process that lives until it is ready",
                    found=f"it ended: {ended}; {last}",
                    mend="See the engine's log.",
                )
            left = end - time.monotonic()
            if left <= 0:
                raise EngineNotReady(
                    self._where,
                    expected=f"one generated token within {deadline_s:g} s",
                    found=last,
                    mend="Give it a longer start time, or see its log for what it is loading.",
                )
            try:
                self._call("GET", "/health", timeout_s=min(_HEALTH_S, left))
                # Patience doubles: an engine that needs long for its first token (kernels compiled on
                # first use) is not started over for ever by requests that are given up.
                if self._probe(min(patience, max(end - time.monotonic(), 0.001))):
                    return
                last = "/completion answered without a token"
            except EngineSilent as error:
                last = error.found
                patience *= 2
            except EngineError as error:
                last = error.found
            time.sleep(max(0.0, min(_POLL_S, end - time.monotonic())))

    def _probe(self, timeout_s: float) -> bool:
        asked = {"prompt": [_PROBE_ID], "n_predict": 1, "cache_prompt": False, "return_tokens": True}
        answer = self._call("POST", "/completion", asked, timeout_s=timeout_s)
        return bool(answer.get("content")) or bool(read_ids(answer.get("tokens", []), self._where))

    def identify(self) -> Identity:
        """What ``/props`` says; its facts are whatever else there fixes the engine's behaviour.

        ``speculative`` is added from ``/slots`` where that exists: ``/props`` of llama.cpp says that
        nothing is drafted even when something is.
        """
        props = self._call("GET", "/props")
        defaults = props.get("default_generation_settings")
        context = props.get("n_ctx", defaults.get("n_ctx") if isinstance(defaults, Mapping) else None)
        slots = props.get("total_slots")
        build, model = props.get("build_info"), props.get("model_path")
        if not isinstance(build, str) or not isinstance(model, str):
            raise MalformedReply(
                f"/props of {self._where}",
                expected="'build_info' and 'model_path' as text",
                found=f"{build!r} and {model!r}",
                mend="Check that a llama-server listens here.",
            )
        for name, value in (("n_ctx", context), ("total_slots", slots)):
            if value is not None and type(value) is not int:
                raise MalformedReply(
                    f"/props of {self._where}",
                    expected=f"'{name}' to be a whole number",
                    found=repr(value),
                    mend="Check that a llama-server listens here.",
                )
        facts = {name: value for name, value in props.items() if name not in _NO_FACTS}
        speculative = self._speculative()
        if speculative is not None:
            facts["speculative"] = speculative
        return Identity(
            build=build,
            model=model,
            context=context if isinstance(context, int) else None,
            slots=slots if isinstance(slots, int) else None,
            facts=facts,
        )

    def _speculative(self) -> bool | None:
        """Whether the first slot drafts; ``None`` where the engine shows no slots."""
        try:
            slots = self._call.listing("/slots")
        except MalformedReply:
            return None
        first = slots[0] if isinstance(slots, list) and slots else None
        told = first.get("speculative") if isinstance(first, Mapping) else None
        return told if isinstance(told, bool) else None

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Ids of ``text`` as plain text: nothing added, and no marker in it read as a special token."""
        asked = {"content": text, "add_special": False, "parse_special": False}
        return read_ids(self._call("POST", "/tokenize", asked).get("tokens"), self._where)

    def detokenize(self, ids: tuple[int, ...]) -> str:
        """Text of ``ids``."""
        text = self._call("POST", "/detokenize", {"tokens": list(ids)}).get("content")
        if not isinstance(text, str):
            raise MalformedReply(
                f"/detokenize of {self._where}",
                expected="'content' as text",
                found=repr(text),
                mend="Check that a llama-server listens here.",
            )
        return text

    def generate(self, request: Request, progress: Progress | None = None) -> Transcript:
        """One streamed request; where its stream withheld ids, an untimed repeat gives them (trap T53)."""
        body = body_for(request)
        raw = exchange(
            self._address,
            prepare(self._host, f"{self._prefix}/completion", json_bytes(body)),
            silence_s=request.silence_s,
            # A stream that never ends must end here; text may hold "data:" too, hence the room.
            most_events=4 * request.output_tokens + len(request.prompt_ids) + 1000,
            watch=None if progress is None else _watch(progress, request),
        )
        response = parse_response(raw.reads, closed=raw.closed, where=self._where)
        streamed = read_stream(stream_objects(response, where=self._where), self._where)
        closing = read_closing(streamed.final, request, body, self._where)
        if len(streamed.ids) > closing.announced:
            raise MalformedReply(
                f"answer of {self._where}",
                expected=f"{closing.announced} streamed ids, as the closing event counts",
                found=f"{len(streamed.ids)}",
                mend="Nothing of this answer is measured; check the engine's dialect and log.",
            )
        repeated = None
        if len(streamed.ids) < closing.announced:
            took_s = (streamed.end_ns - raw.sent_ns) / 1e9
            repeated = self._repeat(request, streamed, closing, request.silence_s + 10 * took_s)
        if progress is not None:
            progress("decode", closing.announced, request.output_tokens)
        return transcript(request, streamed, closing, raw, repeated)

    def _repeat(
        self, request: Request, streamed: Streamed, closing: Closing, timeout_s: float
    ) -> tuple[int, ...]:
        body = body_for(request, stream=False)
        answer = self._call("POST", "/completion", body, timeout_s=timeout_s)
        again = read_closing(answer, request, body, self._where)
        ids, text = read_ids(answer.get("tokens"), self._where), answer.get("content")
        lost = f"the stream carried {len(streamed.ids)} of {closing.announced} ids"
        if text != streamed.text or not len(ids) == again.announced == closing.announced:
            same = "the same text" if text == streamed.text else f"another text, ending {str(text)[-40:]!r}"
            # llama.cpp keeps back what it can't decode when it streams, and writes U+FFFD when it doesn't.
            cut = text != streamed.text and str(text).rstrip("\ufffd") == streamed.text
            advice = "ask for a token more or fewer, or " if cut else ""
            raise MalformedReply(
                f"unstreamed repeat of {self._where} ({lost})",
                expected=f"{closing.announced} ids and the text that was streamed",
                found=f"{len(ids)} ids ({again.announced} counted) and {same}",
                mend=("The output ends inside a character: " if cut else "The ids are not to be had: ")
                + f"{advice}compare at level 'text'.",
            )
        rest = iter(ids)
        if not all(token in rest for token in streamed.ids):
            raise MalformedReply(
                f"unstreamed repeat of {self._where} ({lost})",
                expected="the streamed ids among its ids, in order",
                found="another sequence with the same text",
                mend="The engine does not repeat itself: the ids of the measured answer are not to be had.",
            )
        return ids

    def close(self) -> None:
        """Close what is open. Never raises."""
        self._call.close()


def _watch(progress: Progress, request: Request) -> Watch:
    """Tell ``progress`` where the request stands, from the newest bytes alone."""
    prefilling = 0

    def look(seen: int, newest: bytes) -> None:
        nonlocal prefilling
        reports = _PREFILLED.findall(newest)
        prefilling += len(reports)
        if reports and newest.count(b"data:") == len(reports):
            prompt = len(request.prompt_ids)
            progress("prefill", min(int(reports[-1]), prompt), prompt)
        else:
            progress("decode", max(0, min(seen - prefilling, request.output_tokens)), request.output_tokens)

    return look

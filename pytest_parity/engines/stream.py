"""Bytes with their arrival times -> events with their arrival times; pure, run after the request.

HTTP is parsed by h11, Server-Sent Events by a full line parser: CR, LF and CRLF, comments, a byte
order mark, ``data:`` with and without a space, data over several lines, anything split anywhere
across reads. **An event's time is the arrival of its last byte**: of the byte that ends its blank
line, as a body byte. The framing that follows it (the LF of a CRLF, the end of an HTTP chunk) adds nothing.

Stricter than a browser on purpose: an unfinished event, an unknown field and bytes that are no UTF-8
raise here, because a measurement must not pass on an answer that was cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import h11

from pytest_parity.engines.http_request import describe_last
from pytest_parity.errors import EngineDied, EngineNotReady, MalformedReply, ParityError

__all__ = [
    "JsonObject",
    "Response",
    "SseEvent",
    "json_events",
    "parse_json_object",
    "parse_response",
    "refusal",
    "server_sent_events",
    "stream_objects",
]

JsonObject = Mapping[str, object]
Reads = Sequence[tuple[int, bytes]]

_LINE_END = re.compile(rb"\r\n?|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DONE = "[DONE]"
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Response:
    """A whole HTTP response. ``headers``: lower-case names. ``pieces``: (arrival in ns, body bytes)."""

    status: int
    headers: Mapping[str, str]
    pieces: Reads

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: ``at_ns`` arrival of its last byte, ``data`` its data lines joined with LF."""

    at_ns: int
    data: str


def parse_response(reads: Reads, *, closed: bool, where: str) -> Response:
    """Parse one HTTP response from its reads; every body piece keeps the time of its read.

    ``closed``: the peer closed after the last read. Raises EngineDied when it did so before the
    response was complete, and MalformedReply when the bytes are no HTTP response, when the response is
    incomplete on an open connection, or when bytes follow its end.
    """
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "engine")]))
    connection.send(h11.EndOfMessage())
    head: h11.Response | None = None
    pieces: list[tuple[int, bytes]] = []
    complete = False
    arrivals = [*reads, (reads[-1][0] if reads else 0, b"")] if closed else reads
    for at_ns, data in arrivals:
        if complete and not data:
            break
        try:
            connection.receive_data(data)
            while not complete:
                event = connection.next_event()
                if isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    pieces.append((at_ns, bytes(event.data)))
                elif isinstance(event, h11.EndOfMessage):
                    complete = True
                elif not isinstance(event, h11.InformationalResponse):
                    break
        except h11.ProtocolError as error:
            raise _broken_http(where, error, _joined(reads), at_end=not data) from error
    if not complete and closed:
        raise _broken_http(where, None, _joined(reads), at_end=True)
    if not complete or head is None:
        raise _broken_http(where, None, _joined(reads), at_end=False)
    if connection.trailing_data[0]:
        raise MalformedReply(
            where,
            expected="nothing after the end of the response",
            found=repr(connection.trailing_data[0][:_SHOWN]),
            mend="The engine or a proxy in front of it frames its answers wrongly.",
        )
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return Response(head.status_code, headers, tuple(pieces))


def _joined(reads: Reads) -> bytes:
    return b"".join(data for _, data in reads)


def _broken_http(where: str, error: Exception | None, data: bytes, *, at_end: bool) -> ParityError:
    why = f" ({error})" if error else ""
    if at_end:
        return EngineDied(
            where,
            expected="a complete answer",
            found=f"the connection closed in the middle of it{why}; {describe_last(data)}",
            mend="See the engine's log for why it ended.",
        )
    return MalformedReply(
        where,
        expected="an HTTP/1.1 response",
        found=f"bytes that are none{why}; {describe_last(data)}",
        mend="Check that an engine of this dialect listens at this address.",
    )


def server_sent_events(pieces: Iterable[tuple[int, bytes]], *, where: str) -> Iterator[SseEvent]:
    """Split body bytes into events. Raises MalformedReply (unknown field, no UTF-8, cut event)."""
    partial: list[bytes] = []
    data: list[bytes] = []
    first = True
    after_cr = False
    for at_ns, piece in pieces:
        start = 1 if after_cr and piece.startswith(b"\n") else 0
        after_cr = piece.endswith(b"\r") or (after_cr and not piece)
        for match in _LINE_END.finditer(piece, start):
            partial.append(piece[start : match.start()])
            line = b"".join(partial)
            partial.clear()
            start = match.end()
            if first:
                line, first = line.removeprefix(_BYTE_ORDER_MARK), False
            if line:
                _take_field(line, data, where)
            elif data:
                yield SseEvent(at_ns, _text(b"\n".join(data), where))
                data.clear()
        partial.append(piece[start:])
    rest = b"".join(partial)
    if data or rest.removeprefix(_BYTE_ORDER_MARK if first else b""):
        raise MalformedReply(
            f"event stream of {where}",
            expected="a blank line after the last event",
            found=f"an end in the middle of an event: {(rest or data[-1])[-_SHOWN:]!r}",
            mend="The engine or a proxy cut the stream; nothing of it is measured.",
        )


def _take_field(line: bytes, data: list[bytes], where: str) -> None:
    name, colon, value = line.partition(b":")
    if colon and not name:
        return  # a comment: keep-alive
    if name == b"data":
        data.append(value.removeprefix(b" "))
    elif name not in (b"event", b"id", b"retry"):
        raise MalformedReply(
            f"event stream of {where}",
            expected="the fields data, event, id and retry",
            found=repr(line[:_SHOWN]),
            mend="An engine's error arrives this way in some dialects: read the line.",
        )


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedReply(
            f"event stream of {where}",
            expected="UTF-8",
            found=f"{data[max(0, error.start - 20) : error.end + 20]!r} ({error.reason})",
            mend="The engine cut a character in two, or does not write UTF-8.",
        ) from error


def parse_json_object(text: str | bytes, *, where: str) -> dict[str, object]:
    """One JSON object, strictly (no NaN, no Infinity). Raises MalformedReply."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(
            value, ensure_ascii=False, allow_nan=False
        ).encode()  # no 1e999, no half of a surrogate pair
    except (ValueError, RecursionError) as error:
        shown = text[:_SHOWN]
        raise MalformedReply(
            where, expected="a JSON object", found=f"{shown!r} ({error})", mend="Read the engine's log."
        ) from error
    if not isinstance(value, dict):
        raise MalformedReply(
            where, expected="a JSON object", found=repr(text[:_SHOWN]), mend="Read the engine's log."
        )
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def json_events(events: Iterable[SseEvent], *, where: str) -> list[tuple[int, dict[str, object]]]:
    """The events as (arrival in ns, JSON object); ``[DONE]`` may close them and is left out.

    Raises MalformedReply when data is no JSON object or when an event follows ``[DONE]``.
    """
    objects: list[tuple[int, dict[str, object]]] = []
    done = False
    for event in events:
        if done:
            raise MalformedReply(
                f"event stream of {where}",
                expected=f"nothing after {_DONE}",
                found=repr(event.data[:_SHOWN]),
                mend="The engine closed its stream and went on: nothing of it is measured.",
            )
        if event.data.strip() == _DONE:
            done = True
            continue
        objects.append((event.at_ns, parse_json_object(event.data, where=f"event of {where}")))
    return objects


def stream_objects(response: Response, *, where: str) -> list[tuple[int, dict[str, object]]]:
    """The JSON events of a streamed answer. Raises ``refusal`` unless it is 200 and an event stream."""
    if response.status != 200:
        raise refusal(response.status, response.body, where=where)
    kind = response.headers.get("content-type", "none")
    if kind.partition(";")[0].strip().lower() != "text/event-stream":
        raise MalformedReply(
            where,
            expected="an answer of type text/event-stream",
            found=f"type {kind}: {response.body[:_SHOWN]!r}",
            mend="The engine did not stream: check that it knows the field 'stream'.",
        )
    return json_events(server_sent_events(response.pieces, where=where), where=where)


def refusal(status: int, body: bytes, *, where: str) -> ParityError:
    """The error for an answer that is not 200: EngineNotReady for 503, else MalformedReply."""
    message = body[:300].decode("utf-8", "replace")
    try:
        told = parse_json_object(body, where=where).get("error")
    except MalformedReply:
        told = None
    if isinstance(told, Mapping) and isinstance(told.get("message"), str):
        message = str(told["message"])
    elif isinstance(told, str):
        message = told
    kind: type[ParityError] = EngineNotReady if status == 503 else MalformedReply
    return kind(
        where,
        expected="status 200",
        found=f"status {status}: {message or 'an empty body'}",
        mend="The engine refused the request: mend what it names.",
    )

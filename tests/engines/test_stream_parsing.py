"""The pure half of a measured request: bytes with arrival times -> events with arrival times."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_parity.engines.stream import (
    SseEvent,
    json_events,
    parse_json_object,
    parse_response,
    server_sent_events,
    stream_objects,
)
from pytest_parity.errors import EngineDied, EngineNotReady, MalformedReply, ParityError

WHERE = "engine"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def events_of(*pieces: bytes) -> list[SseEvent]:
    return list(server_sent_events(enumerate(pieces), where=WHERE))


def split(data: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    """``data`` in reads that end at ``cuts``; the time of a read is its number."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [(number, data[start:end]) for number, (start, end) in enumerate(pairwise(edges))]


def read_of(reads: list[tuple[int, bytes]], position: int) -> int:
    """The number of the read that holds the byte at ``position``."""
    end = 0
    for number, piece in reads:
        end += len(piece)
        if position < end:
            return number
    raise AssertionError("no such byte")


def test_data_with_and_without_space_comments_and_named_fields() -> None:
    body = b": ping\n\ndata:one\n\n:\n\nevent: message\nid: 7\nretry: 5\ndata: two\ndata:  three\ndata\n\n"
    assert [event.data for event in events_of(body)] == ["one", "two\n three\n"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end(end: bytes) -> None:
    assert [event.data for event in events_of(b"data: a" + end * 2 + b"data: b" + end * 2)] == ["a", "b"]


def test_byte_order_mark_is_dropped_even_when_split() -> None:
    assert [event.data for event in events_of(b"\xef", b"\xbb", b"\xbfdata: a\n\n")] == ["a"]


def test_a_line_feed_in_the_next_read_belongs_to_the_carriage_return_before() -> None:
    assert events_of(b"data: a\r", b"", b"\n\r", b"\n", b"data: b\r\n\r\n") == [
        SseEvent(2, "a"),
        SseEvent(4, "b"),
    ]


def test_a_carriage_return_is_remembered_over_an_empty_read() -> None:
    assert events_of(b"data: a\r", b"", b"\ndata: b\r\n\r\n") == [SseEvent(2, "a\nb")]


LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, str]]]:
    """A body, and its events as (position of the byte that ends the blank line, data)."""
    body = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    wanted: list[tuple[int, str]] = []
    for lines in draw(st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=6)):
        end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
        if draw(st.booleans()):
            body += b": ping" + end + draw(st.sampled_from([b"", end]))
        for line in lines:
            space = b" " if line.startswith(" ") or draw(st.booleans()) else b""
            body += b"data:" + space + line.encode() + end
        # A lone CR before a LF is one line end, so the next line must not begin with LF: end is constant.
        wanted.append((len(body), "\n".join(lines)))
        body += end
    return body, wanted


@given(streams(), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_same_events_at_the_right_times(
    made: tuple[bytes, list[tuple[int, str]]], cuts: list[int]
) -> None:
    body, wanted = made
    reads = split(body, cuts)
    expected = [SseEvent(read_of(reads, position), data) for position, data in wanted]
    assert list(server_sent_events(reads, where=WHERE)) == expected


@given(streams(), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.lists(st.integers(0, 10_000)))
def test_any_chunking_and_any_split_of_the_response_gives_the_same_events(
    made: tuple[bytes, list[tuple[int, str]]], sizes: list[int], cuts: list[int]
) -> None:
    body, wanted = made
    raw, places, start, turn = HEAD, [0] * len(body), 0, 0
    while start < len(body):
        piece = body[start : start + sizes[turn % len(sizes)]]
        raw += b"%x\r\n" % len(piece)
        places[start : start + len(piece)] = range(len(raw), len(raw) + len(piece))
        raw += piece + b"\r\n"
        start, turn = start + len(piece), turn + 1
    raw += b"0\r\n\r\n"
    reads = split(raw, cuts)
    response = parse_response(reads, closed=False, where=WHERE)
    assert response.body == body
    found = list(server_sent_events(response.pieces, where=WHERE))
    assert found == [SseEvent(read_of(reads, places[position]), data) for position, data in wanted]


EVENT = b'data: {"content": "\xf0\x9f\x98\x80"}\n\n'
RESPONSE = HEAD + b"%x\r\n%s\r\n" % (2 * len(EVENT), 2 * EVENT) + b"0\r\n\r\n"


@pytest.mark.parametrize("closed", [True, False])
def test_no_cut_response_passes(closed: bool) -> None:
    for end in range(len(RESPONSE)):
        with pytest.raises(EngineDied if closed else MalformedReply):
            parse_response([(0, RESPONSE[:end])] if end else [], closed=closed, where=WHERE)


def test_no_cut_event_stream_passes() -> None:
    whole = [len(EVENT), 2 * len(EVENT), 0]
    for end in range(2 * len(EVENT)):
        if end not in whole:
            with pytest.raises(MalformedReply):
                events_of((2 * EVENT)[:end])


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5), st.booleans())
@settings(max_examples=300)
def test_arbitrary_bytes_raise_our_errors_only(data: bytes, cuts: list[int], closed: bool) -> None:
    for raw in (data, HEAD + data, RESPONSE[: len(data)] + data):
        try:
            response = parse_response(split(raw, cuts), closed=closed, where=WHERE)
            stream_objects(response, where=WHERE)
        except ParityError:
            pass


@given(st.binary(max_size=80))
def test_arbitrary_event_streams_raise_our_errors_only(data: bytes) -> None:
    try:
        json_events(events_of(data, b"data: {}\n\n", data), where=WHERE)
    except MalformedReply:
        pass


def failure(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


def test_closed_in_the_middle_names_what_arrived_last() -> None:
    with pytest.raises(EngineDied) as error:
        parse_response([(0, RESPONSE[:-9])], closed=True, where=WHERE)
    assert failure(error) == (
        "engine: expected a complete answer; found the connection closed in the middle of it (peer closed "
        "connection without sending complete message body (incomplete chunked read)); 136 bytes arrived, "
        f"the last of them {RESPONSE[:-9][-60:]!r}. "
        "See the engine's log for why it ended."
    )


def test_closed_at_once() -> None:
    with pytest.raises(EngineDied) as error:
        parse_response([], closed=True, where=WHERE)
    assert "nothing arrived. See the engine's log" in failure(error)


def test_bytes_that_are_no_http() -> None:
    with pytest.raises(MalformedReply) as error:
        parse_response([(0, b"SSH-2.0-OpenSSH\r\n\r\n")], closed=False, where=WHERE)
    assert failure(error) == (
        "engine: expected an HTTP/1.1 response; found bytes that are none (illegal status line: "
        "bytearray(b'SSH-2.0-OpenSSH')); 19 bytes arrived, the last of them b'SSH-2.0-OpenSSH\\r\\n\\r\\n'. "
        "Check that an engine of this dialect listens at this address."
    )


def test_bytes_after_the_end_of_the_response() -> None:
    with pytest.raises(MalformedReply) as error:
        parse_response([(0, RESPONSE), (1, b"more")], closed=True, where=WHERE)
    assert failure(error) == (
        "engine: expected nothing after the end of the response; found b'more'. "
        "The engine or a proxy in front of it frames its answers wrongly."
    )


def test_interim_responses_are_skipped() -> None:
    reads = [(0, b"HTTP/1.1 100 Continue\r\n\r\n"), (1, RESPONSE)]
    assert parse_response(reads, closed=False, where=WHERE).status == 200


def test_an_answer_that_ends_with_the_connection_keeps_its_times() -> None:
    reads = [(5, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"), (6, EVENT), (7, EVENT)]
    response = parse_response(reads, closed=True, where=WHERE)
    assert [at for at, _ in stream_objects(response, where=WHERE)] == [6, 7]


def test_cut_inside_a_character() -> None:
    with pytest.raises(MalformedReply) as error:
        events_of(b'data: "\xf0\x9f\n\n')
    assert failure(error) == (
        "event stream of engine: expected UTF-8; found b'\"\\xf0\\x9f' (unexpected end of data). "
        "The engine cut a character in two, or does not write UTF-8."
    )


@pytest.mark.parametrize("rest", [b'data: {"a": 1}\n', b'data: {"a": 1}', b"da"])
def test_cut_inside_an_event(rest: bytes) -> None:
    with pytest.raises(MalformedReply) as error:
        events_of(b"data: {}\n\n" + rest)
    shown = rest.strip() if not rest.endswith(b"\n") else b'{"a": 1}'
    assert failure(error) == (
        "event stream of engine: expected a blank line after the last event; found an end in the middle "
        f"of an event: {shown!r}. The engine or a proxy cut the stream; nothing of it is measured."
    )


def test_unknown_field_is_shown_whole() -> None:
    with pytest.raises(MalformedReply) as error:
        events_of(b'error: {"code": 500}\n\n')
    assert failure(error) == (
        "event stream of engine: expected the fields data, event, id and retry; found "
        "b'error: {\"code\": 500}'. An engine's error arrives this way in some dialects: read the line."
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "'{' (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        ("[1]", "'[1]'"),
        ('{"a": NaN}', "'{\"a\": NaN}' (NaN is not JSON)"),
        ("", "'' (Expecting value: line 1 column 1 (char 0))"),
    ],
)
def test_bad_json(text: str, found: str) -> None:
    with pytest.raises(MalformedReply) as error:
        parse_json_object(text, where=WHERE)
    assert failure(error) == f"engine: expected a JSON object; found {found}. Read the engine's log."


def test_json_nested_too_deep() -> None:
    with pytest.raises(MalformedReply):
        parse_json_object('{"a":' * 100_000, where=WHERE)


def test_done_closes_the_stream() -> None:
    assert json_events([SseEvent(1, "{}"), SseEvent(2, "[DONE]")], where=WHERE) == [(1, {})]
    with pytest.raises(MalformedReply) as error:
        json_events([SseEvent(1, "[DONE]"), SseEvent(2, "{}")], where=WHERE)
    assert failure(error) == (
        "event stream of engine: expected nothing after [DONE]; found '{}'. "
        "The engine closed its stream and went on: nothing of it is measured."
    )


def answer(status: int, body: bytes, kind: str = "application/json") -> list[tuple[int, bytes]]:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [(0, head.encode() + body)]


@pytest.mark.parametrize(
    ("status", "body", "error_type", "message"),
    [
        (503, {"error": {"message": "Loading model", "code": 503}}, EngineNotReady, "503: Loading model"),
        (400, {"error": {"message": "too long"}}, MalformedReply, "400: too long"),
        (400, {"error": "no"}, MalformedReply, "400: no"),
        (500, None, MalformedReply, "500: an empty body"),
        (404, {"detail": 1}, MalformedReply, '404: {"detail": 1}'),
    ],
)
def test_refused(status: int, body: object, error_type: type[ParityError], message: str) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    response = parse_response(answer(status, data), closed=False, where=WHERE)
    with pytest.raises(error_type) as error:
        stream_objects(response, where=WHERE)
    assert failure(error) == (
        f"engine: expected status 200; found status {message}. The engine refused the request: mend what it names."
    )


def test_an_answer_that_was_not_streamed() -> None:
    response = parse_response(answer(200, b'{"content": ""}'), closed=False, where=WHERE)
    with pytest.raises(MalformedReply) as error:
        stream_objects(response, where=WHERE)
    assert failure(error) == (
        "engine: expected an answer of type text/event-stream; found type application/json: "
        "b'{\"content\": \"\"}'. The engine did not stream: check that it knows the field 'stream'."
    )

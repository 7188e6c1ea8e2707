"""The measured half: one request over a real socket against a server of bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from raw_server import LAST_CHUNK, STREAM_HEAD, Step, chunk, plain, raw_server, sse, stream

from pytest_parity.engines import http_request
from pytest_parity.engines.http_request import RawReply, exchange, prepare
from pytest_parity.engines.stream import parse_response, stream_objects
from pytest_parity.errors import EngineDied, EngineSilent, MalformedReply

BODY = b'{"prompt": [1]}'


def ask(script: Sequence[Step], silence_s: float = 5.0, **more: object) -> RawReply:
    with raw_server(script) as server:
        request = prepare("127.0.0.1", "/completion", BODY)
        return exchange(server.address, request, silence_s=silence_s, **more)  # type: ignore[arg-type]


def said(script: Sequence[Step], silence_s: float = 5.0, **more: object) -> str:
    """The text of the error that ``ask`` ends in, without the address."""
    with pytest.raises((EngineDied, EngineSilent, MalformedReply)) as error:
        ask(script, silence_s, **more)
    name, _, rest = str(error.value).partition(": ")
    assert name.startswith("engine at 127.0.0.1:")
    return f"{type(error.value).__name__}: {rest}"


def events(reply: RawReply) -> list[tuple[int, dict[str, object]]]:
    response = parse_response(reply.reads, closed=reply.closed, where="engine")
    return stream_objects(response, where="engine")


def test_request_is_sent_whole_and_asks_to_close() -> None:
    with raw_server(stream({"a": 1})) as server:
        exchange(server.address, prepare("h:1", "/x", BODY), silence_s=5)
        assert server.requests == [("/x", BODY)]
    assert b"\r\nconnection: close\r\n" in prepare("h:1", "/x", BODY).lower()
    assert prepare("h:1", "/x", BODY).endswith(b"\r\n\r\n" + BODY)


def test_a_body_larger_than_any_buffer_arrives() -> None:
    body = b"[" + b"1," * 2_000_000 + b"1]"
    with raw_server(plain(200, {})) as server:
        exchange(server.address, prepare("h:1", "/x", body), silence_s=5)
        assert server.requests == [("/x", body)]


def test_arrivals_follow_the_sendings() -> None:
    script: list[Step] = [0.05, STREAM_HEAD]
    for number in range(5):
        script += [chunk(sse({"n": number})), 0.03]
    before = time.monotonic_ns()
    reply = ask([*script, LAST_CHUNK])
    times = [at_ns for at_ns, _ in events(reply)]
    assert before < reply.sent_ns <= times[0] - 45_000_000
    gaps = [(late - early) / 1e6 for early, late in pairwise(times)]
    assert all(gap > 10 for gap in gaps)
    assert times[-1] < time.monotonic_ns()


def test_kernel_stamps_are_used_where_they_exist() -> None:
    first = [ask(stream({"n": 0})).stamped for _ in range(5)]
    assert set(first) <= {"kernel", "client"}
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, http_request._SO_TIMESTAMPNS, 1)
        except OSError:
            pytest.skip("no receive stamps here")
    assert "kernel" in first


STAMPS = [http_request._TIMESPEC.pack(10, 500), http_request._TIMESPEC.pack(10, 700)]
HELD = [4_000_000_600, 4_000_000_900]
OFFSET = 6_000_000_000


def test_kernel_stamps_are_put_on_the_monotonic_clock() -> None:
    arrivals = http_request._kernel_arrivals(STAMPS, HELD, 4_000_000_000, OFFSET, OFFSET + 50)
    assert arrivals == [4_000_000_500, 4_000_000_700]


@pytest.mark.parametrize(
    ("stamps", "held", "sent_ns", "after"),
    [
        pytest.param(STAMPS, HELD, 4_000_000_000, OFFSET + 10**9, id="the wall clock was set"),
        pytest.param([STAMPS[0], b""], HELD, 4_000_000_000, OFFSET, id="a stamp is missing"),
        pytest.param(STAMPS, [3_999_000_000, HELD[1]], 0, OFFSET, id="stamped after it was held"),
        pytest.param(STAMPS[::-1], HELD, 4_000_000_000, OFFSET, id="stamps run backwards"),
        pytest.param(STAMPS, HELD, 4_000_500_000, OFFSET, id="stamped before the request"),
    ],
)
def test_kernel_stamps_that_cannot_be_trusted_are_not_used(
    stamps: list[bytes], held: list[int], sent_ns: int, after: int
) -> None:
    assert http_request._kernel_arrivals(stamps, held, sent_ns, OFFSET, after) is None


def test_client_stamps_take_over_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = iter([0, 10**12])
    monkeypatch.setattr(http_request, "_clock_offset", lambda: next(offsets))
    reply = ask(stream({"n": 0}))
    assert reply.stamped == "client"
    assert reply.sent_ns < reply.reads[0][0] <= time.monotonic_ns()


def test_a_chunk_cut_anywhere_is_read_whole() -> None:
    whole = b"".join(step for step in stream({"text": "\U0001f600"}) if isinstance(step, bytes))
    script: list[Step] = []
    for place in range(0, len(whole), 7):
        script += [whole[place : place + 7], 0.002]
    assert [event for _, event in events(ask(script))] == [{"text": "\U0001f600"}]


@pytest.mark.parametrize("ending", ["hold", b""])
def test_the_end_is_seen_with_and_without_a_closed_connection(ending: Step) -> None:
    started = time.monotonic()
    assert len(events(ask([*stream({"n": 0}), ending]))) == 1
    assert ask([*plain(400, {"error": "no"}), ending]).reads
    assert time.monotonic() - started < 2


def test_an_answer_without_any_length_ends_with_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    reply = ask([head, sse({"n": 0}), 0.02, sse({"n": 1})])
    assert reply.closed
    assert [event for _, event in events(reply)] == [{"n": 0}, {"n": 1}]


def test_two_events_in_a_chunk_share_their_arrival() -> None:
    reply = ask([STREAM_HEAD, chunk(sse({"n": 0}) + sse({"n": 1})), LAST_CHUNK])
    (first, _), (second, _) = events(reply)
    assert first == second


def test_a_slow_head_is_waited_for() -> None:
    script: list[Step] = [step for byte in STREAM_HEAD[:40] for step in (bytes([byte]), 0.002)]
    reply = ask([*script, STREAM_HEAD[40:], chunk(sse({"n": 0})), LAST_CHUNK])
    assert len(events(reply)) == 1


def test_a_line_larger_than_the_first_buffer() -> None:
    text = "x" * (3 << 20)
    reply = ask(stream({"text": text}, {"n": 1}))
    assert [event for _, event in events(reply)] == [{"text": text}, {"n": 1}]


def test_closed_at_once() -> None:
    reply = ask([])
    assert (reply.reads, reply.closed) == ((), True)


def test_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
        with pytest.raises(EngineDied) as error:
            exchange(address, b"GET", silence_s=1)
    assert str(error.value) == (
        f"engine at 127.0.0.1:{address[1]}: expected a listening engine; found no connection "
        "([Errno 111] Connection refused). See the engine's log."
    )


def test_reset_in_the_middle() -> None:
    assert said([STREAM_HEAD, chunk(sse({"n": 0})), "reset"]) == (
        "EngineDied: expected a complete answer; found connection lost ([Errno 104] Connection reset by peer); "
        "121 bytes arrived, the last of them "
        "b'coding: chunked\\r\\nConnection: close\\r\\n\\r\\n10\\r\\ndata: {\"n\": 0}\\n\\n\\r\\n'. "
        "See the engine's log."
    )


def test_reset_while_the_request_is_sent() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        connection, _ = listener.accept()
        connection.recv(10)
        connection.close()  # with unread bytes: the peer is reset

    thread = threading.Thread(target=refuse)
    thread.start()
    try:
        with pytest.raises(EngineDied) as error:
            exchange(listener.getsockname(), b"x" * (64 << 20), silence_s=5)
    finally:
        thread.join()
        listener.close()
    found = str(error.value).partition("; found ")[2]
    assert found.startswith("connection lost while sending ([Errno ")
    assert found.endswith(". See the engine's log.")


def test_a_peer_that_takes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(EngineSilent) as error:
        exchange(listener.getsockname(), b"x" * (64 << 20), silence_s=0.2)
    assert "found silence for longer; nothing arrived" in str(error.value)


def test_silence_before_the_first_byte() -> None:
    assert said(["hold"], 0.2) == (
        "EngineSilent: expected an event at least every 0.2 s; found silence for longer; nothing arrived. "
        "Raise silence_s if the engine needs longer, else see its log for what it is doing."
    )


def test_silence_in_the_middle_names_what_arrived_last() -> None:
    assert said([STREAM_HEAD, chunk(sse({"n": 0})), "hold"], 0.2) == (
        "EngineSilent: expected an event at least every 0.2 s; found silence for longer; 121 bytes arrived, "
        "the last of them b'coding: chunked\\r\\nConnection: close\\r\\n\\r\\n10\\r\\ndata: {\"n\": 0}\\n\\n\\r\\n'. "
        "Raise silence_s if the engine needs longer, else see its log for what it is doing."
    )


def test_keep_alive_comments_do_not_hide_silence() -> None:
    pings: list[Step] = [step for _ in range(50) for step in (chunk(b":\n\n"), 0.1)]
    started = time.monotonic()
    text = said([STREAM_HEAD, chunk(sse({"n": 0})), *pings], 0.5)
    assert text.startswith("EngineSilent: expected an event at least every 0.5 s; found silence for longer;")
    assert time.monotonic() - started < 2


def test_keep_alive_comments_do_not_end_a_live_stream() -> None:
    script: list[Step] = [STREAM_HEAD]
    for number in range(6):
        script += [chunk(sse({"n": number})), 0.15, chunk(b":\n\n"), 0.15]
    assert len(events(ask([*script, LAST_CHUNK], 0.5))) == 6


def test_an_answer_that_never_stops_is_ended() -> None:
    endless: list[Step] = [step for _ in range(200) for step in (chunk(sse({"n": 0}) * 50), 0.01)]
    text = said([STREAM_HEAD, *endless], most_events=100)
    assert text.startswith(
        "MalformedReply: expected an answer of at most 100 events; found more, and no end; "
    )
    assert text.endswith("The engine does not stop: check that it obeys the number of tokens asked for.")
    text = said([STREAM_HEAD, *endless], most_bytes=2000)
    assert text.startswith(
        "MalformedReply: expected an answer of at most 2000 bytes; found more, and no end; "
    )


def test_progress_is_told_rarely_and_counts_events() -> None:
    script: list[Step] = [STREAM_HEAD]
    for number in range(60):
        script += [chunk(sse({"n": number})), 0.01]
    told: list[tuple[int, bytes]] = []
    started = time.monotonic()
    ask([*script, LAST_CHUNK], watch=lambda seen, newest: told.append((seen, newest)))
    took = time.monotonic() - started
    counts = [seen for seen, _ in told]
    assert 2 <= len(told) <= took / 0.1 + 1
    assert counts == sorted(counts)
    assert 0 < counts[0] <= counts[-1] <= 60
    assert all(b"data:" in newest for _, newest in told)


def test_a_field_cut_between_two_looks_is_counted_once() -> None:
    head = STREAM_HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"")
    told: list[int] = []
    script: list[Step] = [head, 0.2, b"da", 0.2, b"ta: 1\n\ndata:", 0.2, b" 2\n\n", 0.2, b":\n\n"]
    ask(script, watch=lambda seen, newest: told.append(seen))
    assert told == [0, 2, 2, 2]


def test_what_progress_raises_is_not_taken_for_the_engines_fault() -> None:
    def watch(seen: int, newest: bytes) -> None:
        raise BrokenPipeError("the terminal is gone")

    with pytest.raises(BrokenPipeError):
        ask([STREAM_HEAD, 0.12, chunk(sse({"n": 0})), 0.12, LAST_CHUNK], watch=watch)

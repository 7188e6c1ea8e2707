"""One measured HTTP request over a plain socket, with as little Python as possible while it runs.

The request is made ready before the clock starts. While the answer arrives the loop does one system
call per read and keeps two numbers and sixteen bytes; HTTP, SSE and JSON are read afterwards, in
:mod:`pytest_parity.engines.stream`: a client that thinks between two tokens takes an engine's core.

Arrivals are the kernel's receive stamps where Linux gives them (``SO_TIMESTAMPNS``): a reading of ours
was seen 5 ms late on two busy cores. All times are nanoseconds of ``CLOCK_MONOTONIC``.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NoReturn

import h11

from pytest_parity.errors import EngineDied, EngineSilent, MalformedReply

__all__ = ["RawReply", "Watch", "describe_last", "exchange", "prepare"]

Watch = Callable[[int, bytes], None]
"""Called at most ten times a second with the number of ``data:`` fields so far and the newest bytes."""

_SO_TIMESTAMPNS = 35  # Linux; the socket module does not name it
_TIMESPEC = struct.Struct("qq")  # what a 64-bit kernel puts into the control message
_STAMPING_STARTS_S = 0.01  # the kernel switches stamping on in a work queue; the first reads lacked stamps

_LOOK_EVERY_NS = 100_000_000
_FIRST_BUFFER = 1 << 20
_LEAST_ROOM = 1 << 16
_FAR = 1 << 62
_SEE_LOG = "See the engine's log."
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_CLOCK_TOLERANCE_NS = 20_000


@dataclass(frozen=True, slots=True)
class RawReply:
    """What came back, as it came.

    ``sent_ns``: the last byte of the request is handed to the kernel. ``reads``: (arrival in ns, bytes)
    in order. ``closed``: the peer closed the connection. ``stamped``: whose clock reading the arrivals
    are, ``kernel`` or ``client``; both on ``CLOCK_MONOTONIC``, never mixed within one reply.
    """

    sent_ns: int
    reads: tuple[tuple[int, bytes], ...]
    closed: bool
    stamped: Literal["kernel", "client"]


def prepare(host: str, path: str, body: bytes) -> bytes:
    """The whole bytes of a JSON ``POST`` that asks for the connection to be closed afterwards."""
    connection = h11.Connection(h11.CLIENT)
    head = connection.send(
        h11.Request(
            method="POST",
            target=path,
            headers=[
                ("Host", host),
                ("Content-Type", "application/json"),
                ("Accept", "text/event-stream"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ],
        )
    )
    content = connection.send(h11.Data(data=body))
    return (head or b"") + (content or b"")


def describe_last(data: bytes) -> str:
    """The last bytes that arrived, for an error message."""
    return f"{len(data)} bytes arrived, the last of them {data[-60:]!r}" if data else "nothing arrived"


def exchange(
    address: tuple[str, int],
    request: bytes,
    *,
    silence_s: float,
    most_bytes: int = 1 << 28,
    most_events: int = _FAR,
    watch: Watch | None = None,
) -> RawReply:
    """Send ``request`` and record the answer until it is complete or the peer closes.

    ``silence_s``: seconds without a byte, or without a ``data:`` field while bytes (keep-alive comments)
    go on arriving, before the request is given up. ``most_bytes`` and ``most_events`` end an answer
    that never stops.

    Raises EngineDied (nothing listens, connection reset), EngineSilent, MalformedReply (runaway).
    """
    silence_s = min(max(silence_s, 1e-3), 1e8)
    where = f"engine at {address[0]}:{address[1]}"
    try:
        sock = socket.create_connection(address, timeout=silence_s)
    except OSError as error:
        raise EngineDied(
            where,
            expected="a listening engine",
            found=f"no connection ({error})",
            mend=_SEE_LOG,
        ) from error
    with sock:
        try:
            _set_up(sock, silence_s)
            before = _clock_offset()
            # The clock is read before the last byte goes, not after: the engine that it wakes may take our
            # core at once, and a reading after the call was seen 8 ms late (an answer before the question).
            sock.sendall(request[:-1])
            sent_ns = time.monotonic_ns()
            sock.sendall(request[-1:])
        except BlockingIOError as error:
            _raise_silent(where, silence_s, b"", error)
        except OSError as error:
            raise EngineDied(
                where,
                expected=f"{len(request)} bytes of request taken",
                found=f"connection lost while sending ({error})",
                mend=_SEE_LOG,
            ) from error
        return _Receiver(sock, where, silence_s, most_bytes, most_events, watch).run(sent_ns, before)


def _set_up(sock: socket.socket, silence_s: float) -> None:
    # The kernel's own timeouts: a Python timeout costs one poll() more for every read.
    sock.setblocking(True)
    limit = struct.pack("ll", int(silence_s), max(1, int(silence_s % 1 * 1e6)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return  # no such option here: the client's own readings are used, and the reply says so
    time.sleep(_STAMPING_STARTS_S)


@dataclass(slots=True)
class _Receiver:
    """The state of one reception; ``run`` is the measured loop."""

    sock: socket.socket
    where: str
    silence_s: float
    most_bytes: int
    most_events: int
    watch: Watch | None
    buffer: bytearray = field(default_factory=lambda: bytearray(_FIRST_BUFFER))
    seen: int = 0
    counted_to: int = 0
    event_ns: int = 0

    def run(self, sent_ns: int, offset_before: int) -> RawReply:
        self.event_ns = sent_ns
        buffer = self.buffer
        view = memoryview(buffer)
        full = len(buffer) - _LEAST_ROOM
        end = stop = 0
        look_at = sent_ns + _LOOK_EVERY_NS
        closed = False
        # Three flat lists of ints and bytes: nothing that the garbage collector tracks, so that no
        # collection of a large pytest process falls between two tokens.
        arrivals: list[int] = []
        ends: list[int] = []
        stamps: list[bytes] = []
        receive, clock = self.sock.recvmsg_into, time.monotonic_ns
        while True:
            try:
                count, control, _, _ = receive((view[end:],), 64)
            except BlockingIOError as error:
                _raise_silent(self.where, self.silence_s, bytes(view[:end]), error)
            except OSError as error:
                raise EngineDied(
                    self.where,
                    expected="a complete answer",
                    found=f"connection lost ({error}); {describe_last(bytes(view[:end]))}",
                    mend=_SEE_LOG,
                ) from error
            now = clock()
            if not count:
                closed = True
                break
            end += count
            arrivals.append(now)
            ends.append(end)
            stamps.append(control[0][2] if control else b"")
            if end >= stop:
                stop = _expected_end(buffer, end)
                if end >= stop:
                    break
            if buffer.endswith(_LAST_CHUNK, 0, end):
                break
            if now >= look_at:
                self._look(now, end)
                look_at = now + _LOOK_EVERY_NS
            if end > full:
                view.release()
                buffer.extend(bytes(len(buffer)))
                view = memoryview(buffer)
                full = len(buffer) - _LEAST_ROOM
        pieces = [bytes(view[start:to]) for start, to in pairwise([0, *ends])]
        kernel = _kernel_arrivals(stamps, arrivals, sent_ns, offset_before, _clock_offset())
        return RawReply(
            sent_ns=sent_ns,
            reads=tuple(zip(kernel or arrivals, pieces, strict=True)),
            closed=closed,
            stamped="client" if kernel is None else "kernel",
        )

    def _look(self, now: int, end: int) -> None:
        """The rare look at what arrives: runaway, silence behind keep-alive comments, progress."""
        start = max(0, self.counted_to - 4)  # a field name may be cut by the end of the last look
        fresh = self.buffer.count(b"data:", start, end)
        self.counted_to = end
        self.seen += fresh
        if end > self.most_bytes or self.seen > self.most_events:
            limit = f"{self.most_bytes} bytes" if end > self.most_bytes else f"{self.most_events} events"
            raise MalformedReply(
                self.where,
                expected=f"an answer of at most {limit}",
                found=f"more, and no end; {describe_last(bytes(self.buffer[max(0, end - 4096) : end]))}",
                mend="The engine does not stop: check that it obeys the number of tokens asked for.",
            )
        if fresh:
            self.event_ns = now
        elif now - self.event_ns > self.silence_s * 1e9:
            _raise_silent(self.where, self.silence_s, bytes(self.buffer[:end]), None)
        if self.watch is not None:
            self.watch(self.seen, bytes(self.buffer[max(start, end - 8192) : end]))


def _expected_end(buffer: bytearray, end: int) -> int:
    """Where an answer with a content length ends; beyond ``end`` while the head is incomplete.

    Only a hint to stop reading: the HTTP parser judges afterwards whether the answer is whole.
    """
    head_end = buffer.find(b"\r\n\r\n", 0, end)
    if head_end < 0:
        return end + 1
    for line in bytes(buffer[:head_end]).split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return head_end + 4 + int(value.strip()[:18])
    return _FAR


def _clock_offset() -> int:
    """``CLOCK_REALTIME`` minus ``CLOCK_MONOTONIC`` in ns, from the tightest of seven readings.

    Both clocks are slewed alike, so the difference moves only when somebody sets the time.
    """
    best, width = 0, _FAR
    for _ in range(7):
        first = time.monotonic_ns()
        wall = time.time_ns()
        last = time.monotonic_ns()
        if last - first < width:
            best, width = wall - (first + last) // 2, last - first
    return best


def _kernel_arrivals(
    stamps: list[bytes], arrivals: list[int], sent_ns: int, before: int, after: int
) -> list[int] | None:
    """The kernel's stamps on the monotonic clock, or ``None`` where any of them can't be trusted.

    Untrusted: a stamp is missing, the wall clock was set during the request, or a stamp lies after the
    moment at which this process held the bytes, before the one of the read before, or before the request.
    """
    if abs(after - before) > _CLOCK_TOLERANCE_NS or any(len(stamp) != _TIMESPEC.size for stamp in stamps):
        return None
    kernel: list[int] = []
    earliest = sent_ns - _CLOCK_TOLERANCE_NS
    for stamp, held in zip(stamps, arrivals, strict=True):
        seconds, nanoseconds = _TIMESPEC.unpack(stamp)
        at_ns = seconds * 1_000_000_000 + nanoseconds - before
        if not earliest <= at_ns <= held + _CLOCK_TOLERANCE_NS:
            return None
        at_ns = min(at_ns, held)
        kernel.append(at_ns)
        earliest = at_ns
    return kernel


def _raise_silent(where: str, silence_s: float, data: bytes, cause: BaseException | None) -> NoReturn:
    raise EngineSilent(
        where,
        expected=f"an event at least every {silence_s:g} s",
        found=f"silence for longer; {describe_last(data)}",
        mend="Raise silence_s if the engine needs longer, else see its log for what it is doing.",
    ) from cause

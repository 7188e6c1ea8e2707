"""What watching a stream costs: our client against http.client and httpx, interleaved, in one run.

Run it with ``python bench/client_cost.py [--reps N]``. A server process sends events of llama-server's
shape on a schedule and reports when it sent each; every client reads the same stream in turn. Columns:

* CPU us/token: processor time of this process while the stream runs, per token, median of the reps
  ("then": for reading SSE and JSON afterwards, outside the measured time; ours includes HTTP there)
* first token: arrival of the first event as the client reads it, minus its sending, in ms
* rate error: decode rate from the client's arrivals against the same from the sendings, in per cent;
  (N - n_first) / (t_last - t_first) on both sides; "worst" is the largest of the reps
* ratio: CPU of this client divided by ours

The loops of http.client (``read1``) and httpx are as lean as those libraries allow: they stamp raw bytes
and parse later. ``lines`` is the loop that most programs write. At 2 ms most of the processor time of the
lean loops is the kernel waking the process, once an event, whoever reads.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_parity.engines.http_request import exchange, prepare
from pytest_parity.engines.llama_reply import read_stream
from pytest_parity.engines.stream import Response, json_events, parse_response, server_sent_events

TOKENS = 2048
PREFILL_S = 0.05
CASES = ((2.0, 1), (0.2, 1), (2.0, 2), (0.2, 2))
"""(milliseconds between events, tokens in an event)."""

Pieces = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Row:
    """One request of one client: CPU in us a token while reading and afterwards, excess ms, error %."""

    reading_us: float
    after_us: float
    first_ms: float
    error_percent: float


def event_bytes(index: int, tokens: int) -> bytes:
    event = {
        "index": 0,
        "content": " word" * tokens,
        "tokens": [1000 + (index * tokens + offset) % 5000 for offset in range(tokens)],
        "stop": False,
        "id_slot": 0,
        "tokens_predicted": (index + 1) * tokens,
        "tokens_evaluated": 2048,
    }
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve() -> None:
    """Answer each request on its schedule, then print the times of the sendings as one JSON line."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            while not received.endswith(b"}"):
                received += connection.recv(65536)
            asked = json.loads(received[received.index(b"{") :])
            tokens, gap_ns = asked["tokens"], int(asked["gap_ms"] * 1e6)
            chunks = [chunk(event_bytes(index, tokens)) for index in range(TOKENS // tokens)]
            closing = {"content": "", "tokens": [], "stop": True, "tokens_predicted": TOKENS}
            last = chunk(b"data: " + json.dumps(closing).encode() + b"\n\n") + b"0\r\n\r\n"
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            )
            sent: list[int] = []
            due = time.monotonic_ns() + int(PREFILL_S * 1e9)
            for data in chunks:
                wait = due - time.monotonic_ns()
                if wait > 0:
                    time.sleep(wait / 1e9)
                sent.append(time.monotonic_ns())
                connection.sendall(data)
                due += gap_ns
            connection.sendall(last)
        print(json.dumps(sent), flush=True)


def ours(port: int, body: bytes) -> Callable[[], Pieces]:
    raw = exchange(("127.0.0.1", port), prepare(f"127.0.0.1:{port}", "/completion", body), silence_s=60)

    def parse() -> Pieces:
        response: Response = parse_response(raw.reads, closed=raw.closed, where="bench")
        return list(response.pieces)

    return parse


def with_http_client(port: int, body: bytes) -> Callable[[], Pieces]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    pieces: Pieces = []
    while data := response.read1(65536):
        pieces.append((time.monotonic_ns(), data))
    connection.close()
    return lambda: pieces


def with_lines(port: int, body: bytes) -> Callable[[], Pieces]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    pieces: Pieces = []
    for line in response:
        pieces.append((time.monotonic_ns(), line))
    connection.close()
    return lambda: pieces


def with_httpx(port: int, body: bytes) -> Callable[[], Pieces]:
    pieces: Pieces = []
    headers = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/completion"
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", url, content=body, headers=headers) as response,
    ):
        for data in response.iter_raw():
            pieces.append((time.monotonic_ns(), data))
    return lambda: pieces


CLIENTS = {
    "ours": ours,
    "http.client read1": with_http_client,
    "http.client lines": with_lines,
    "httpx raw": with_httpx,
}


def measure(client: str, port: int, gap_ms: float, tokens: int, sent: Callable[[], list[int]]) -> Row:
    body = json.dumps({"gap_ms": gap_ms, "tokens": tokens}).encode()
    start = time.process_time_ns()
    parse = CLIENTS[client](port, body)
    read = time.process_time_ns()
    objects = json_events(server_sent_events(parse(), where="bench"), where="bench")
    streamed = read_stream(objects, "bench")
    done = time.process_time_ns()
    times = sent()
    if len(streamed.ids) != TOKENS or len(times) * tokens != TOKENS:
        raise SystemExit(f"{client}: expected {TOKENS} ids, found {len(streamed.ids)}; the bench is broken")
    events = streamed.events
    first = events[0].tokens
    if first is None:
        raise SystemExit(f"{client}: the first event does not tell its tokens; the bench is broken")
    seen_rate = (TOKENS - first) / (events[-1].at_ns - events[0].at_ns)
    true_rate = (TOKENS - tokens) / (times[-1] - times[0])
    return Row(
        reading_us=(read - start) / 1e3 / TOKENS,
        after_us=(done - read) / 1e3 / TOKENS,
        first_ms=(events[0].at_ns - times[0]) / 1e6,
        error_percent=(seen_rate / true_rate - 1) * 100,
    )


def table(gap_ms: float, tokens: int, rows: dict[str, list[Row]]) -> str:
    def median(of: Callable[[Row], float], among: list[Row]) -> float:
        return statistics.median(abs(of(row)) for row in among)

    heads = ("client", "CPU us/token", "then", "first token ms", "rate error %", "worst", "ratio")
    widths = (18, 13, 6, 15, 13, 9, 6)
    lines = [
        f"\n{TOKENS} tokens, {tokens} an event, {gap_ms:g} ms between events, {len(rows['ours'])} reps",
        heads[0].ljust(widths[0])
        + "".join(head.rjust(width) for head, width in zip(heads[1:], widths[1:], strict=True)),
    ]
    base = median(lambda row: row.reading_us, rows["ours"])
    for client, among in rows.items():
        reading = median(lambda row: row.reading_us, among)
        cells = (
            f"{reading:.1f}",
            f"{median(lambda row: row.after_us, among):.1f}",
            f"{median(lambda row: row.first_ms, among):.3f}",
            f"{median(lambda row: row.error_percent, among):.4f}",
            f"{max(abs(row.error_percent) for row in among):.4f}",
            f"{reading / base:.2f}",
        )
        lines.append(
            client.ljust(widths[0])
            + "".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What watching a stream costs, client against client.")
    parser.add_argument("--reps", type=int, default=5, help="requests a client and case")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = server.stdout
        try:
            port = int(lines.readline())
            for client in CLIENTS:  # imports and first-use costs are nobody's
                measure(client, port, 0.05, 1, lambda: json.loads(lines.readline()))
            for gap_ms, tokens in CASES:
                rows: dict[str, list[Row]] = {client: [] for client in CLIENTS}
                for rep in range(options.reps):
                    turn = rep % len(CLIENTS)
                    order = list(CLIENTS)[turn:] + list(CLIENTS)[:turn]
                    for client in order:
                        row = measure(client, port, gap_ms, tokens, lambda: json.loads(lines.readline()))
                        rows[client].append(row)
                print(table(gap_ms, tokens, rows), flush=True)
        finally:
            server.kill()


if __name__ == "__main__":
    main()

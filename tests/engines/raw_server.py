"""A server of bytes: sends what a script says, when it says so, over real sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Step = bytes | float | str
"""Bytes to send, seconds to wait, or ``hold`` (keep the connection open), ``reset`` (cut it with RST),
``early`` (first step only: answer before the request was read)."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def sse(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def stream(*events: object) -> list[Step]:
    """The steps of a whole chunked stream, one event a chunk."""
    return [STREAM_HEAD, *(chunk(sse(event)) for event in events), LAST_CHUNK]


def plain(status: int, body: object, kind: str = "application/json") -> list[Step]:
    """The steps of an answer with a content length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
    return [f"{head}Connection: close\r\n\r\n".encode() + data]


@dataclass
class RawServer:
    """``scripts``: path -> the scripts of its requests in order, the last one repeated."""

    listener: socket.socket
    scripts: dict[str, list[Sequence[Step]]]
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.getsockname()
        return host, port

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def bodies(self, path: str) -> list[dict[str, object]]:
        """The JSON bodies of the requests for ``path``, in order."""
        return [json.loads(body) for asked, body in self.requests if asked == path]

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                path, body = _read_request(connection)
                self.requests.append((path, body))
                scripts = self.scripts[path if path in self.scripts else "*"]
                script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
                for step in script:
                    self.take(connection, step)
            except OSError:
                pass  # the client went away: its own affair

    def take(self, connection: socket.socket, step: Step) -> None:
        if isinstance(step, bytes):
            connection.sendall(step)
        elif isinstance(step, float):
            self.finished.wait(step)
        elif step == "hold":
            self.finished.wait(30)
        elif step == "reset":
            time.sleep(0.05)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()


def _read_request(connection: socket.socket) -> tuple[str, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += connection.recv(65536)
    return head.split(b" ")[1].decode(), body


@contextmanager
def raw_server(scripts: dict[str, list[Sequence[Step]]] | Sequence[Step]) -> Iterator[RawServer]:
    """A server with ``scripts`` by path, or with one script for everything."""
    by_path = scripts if isinstance(scripts, dict) else {"*": [scripts]}
    listener = socket.create_server(("127.0.0.1", 0))
    server = RawServer(listener, by_path)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.finished.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)

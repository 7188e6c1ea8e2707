"""The engine over HTTP, in the dialect of llama.cpp's server."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import os
import signal
import socket
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pytest_parity.engines.embedded import vocabulary
from pytest_parity.engines.embedded.model import EmbeddedModel
from pytest_parity.engines.embedded.request import (
    Completion,
    RequestError,
    default_settings,
    loading,
    read_completion,
    read_ids,
)
from pytest_parity.engines.embedded.sabotage import StreamCutError
from pytest_parity.engines.embedded.slot import Event, Slot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from types import FrameType

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from pytest_parity.engines.embedded.options import Options

_encode = json.JSONEncoder(separators=(",", ":")).encode


class _Answer(Response):
    """A completion's reply: server-sent events, or one JSON object at the end.

    It is written straight to the connection, an event for each send, and stops working when nobody listens.
    """

    def __init__(self, events: AsyncGenerator[Event], *, stream: bool) -> None:
        super().__init__()
        self._events = events
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        work = asyncio.ensure_future(self._send_events(send) if self._stream else self._send_object(send))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The process is ending: the connection closes, which is all that a client can be told.
            work.cancel()
            if not self._stream:
                await _begin(send, b"application/json", (b"content-length", b"1"))
            return
        finally:
            gone.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))
        elif (error := work.exception()) is not None:
            raise error

    async def _send_events(self, send: Send) -> None:
        await _begin(send, b"text/event-stream", (b"cache-control", b"no-cache"))
        try:
            # Closed here and not by the collector: the slot must be free as soon as nobody listens.
            async with aclosing(self._events) as events:
                async for event in events:
                    body = f"data: {_encode(event)}\n\n".encode()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except StreamCutError:
            # To return without the end of the body is how an application has the server drop the connection.
            return
        await send({"type": "http.response.body", "body": b""})

    async def _send_object(self, send: Send) -> None:
        final: Event = {}
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    final = event
        except StreamCutError:
            await _begin(send, b"application/json", (b"content-length", b"1"))
            return
        body = _encode(final).encode()
        await _begin(send, b"application/json", (b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.body", "body": body})


async def _begin(send: Send, kind: bytes, header: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", kind), header]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Engine:
    """The endpoints, and what they answer from."""

    def __init__(self, options: Options) -> None:
        """Make the model that ``options`` describe; loading counts from now."""
        self._options = options
        self._ready_at = time.monotonic() + options.load_seconds
        self._model = EmbeddedModel.load(options.seed, kernels=options.kernels, mutant=options.mutant)
        self._digest = self._model.weights.digest()
        self._build = f"embedded-{_source_digest()[:12]}"
        self._slot = Slot(self._model, options)

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/health", self._guarded(self.health), methods=["GET"]),
            Route("/props", self._guarded(self.props), methods=["GET"]),
            Route("/tokenize", self._guarded(self.tokenize), methods=["POST"]),
            Route("/detokenize", self._guarded(self.detokenize), methods=["POST"]),
            Route("/completion", self._guarded(self.completion), methods=["POST"]),
            Route("/completions", self._guarded(self.completion), methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def _guarded(
        self, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                if not self._ready(request):
                    raise loading()
                return await endpoint(request)
            except RequestError as error:
                return JSONResponse(error.body(), error.status)

        return answer

    def _ready(self, request: Request) -> bool:
        faults = self._options.faults
        if faults.unready_forever:
            return False
        if faults.ready_early and request.url.path == "/health":
            return True
        return time.monotonic() >= self._ready_at

    async def health(self, _request: Request) -> Response:
        """Say that the engine is ready."""
        return JSONResponse({"status": "ok"})

    async def props(self, _request: Request) -> Response:
        """Say what engine this is and what it runs with."""
        options = self._options
        own = {
            "weights_sha256": self._digest,
            "seed": options.seed,
            "window": self._model.geometry.window,
            "kernels": options.kernels,
            "mutant": options.mutant,
            "faults": options.faults.names(),
            "speculative": options.speculative,
            "draft_window": options.draft_window,
            "batch": options.block,
            "pid": os.getpid(),
            "predicted_per_second": "(predicted_n - 1) / predicted_ms",
        }
        return JSONResponse(
            {
                "default_generation_settings": {"params": default_settings(), "n_ctx": options.context},
                "total_slots": 1,
                "model_alias": options.alias,
                "model_path": f"embedded:seed={options.seed}",
                "bos_token": vocabulary.SPECIAL_NAMES[vocabulary.BEGIN],
                "eos_token": vocabulary.SPECIAL_NAMES[vocabulary.END],
                "build_info": self._build,
                "embedded": own,
            }
        )

    async def tokenize(self, request: Request) -> Response:
        """Turn a text into ids. ``add_special`` adds nothing: no special id begins a prompt of this model."""
        body = await _json_object(request)
        content = body.get("content", "")
        if not isinstance(content, str):
            message = f"content: expected a text, found {content!r}; send a string"
            raise RequestError(message)
        ids = vocabulary.tokenize(content, parse_special=body.get("parse_special", True) is not False)
        if body.get("with_pieces"):
            pieces = [{"id": token, "piece": vocabulary.display_piece(token)} for token in ids]
            return JSONResponse({"tokens": pieces})
        return JSONResponse({"tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """Turn ids into a text; bytes that are no UTF-8 become replacement characters."""
        body = await _json_object(request)
        ids = read_ids(body.get("tokens", []), "tokens")
        return JSONResponse({"content": vocabulary.join(ids).decode("utf-8", errors="replace")})

    async def completion(self, request: Request) -> Response:
        """Complete a prompt."""
        asked: Completion = read_completion(await _json_object(request), self._options.context)
        return _Answer(self._slot.complete(asked), stream=asked.stream)


async def _json_object(request: Request) -> dict[str, object]:
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        message = f"body: expected JSON, found something else ({error}); send a JSON object"
        raise RequestError(message) from None
    if not isinstance(body, dict):
        message = f"body: expected a JSON object, found {type(body).__name__}; send an object"
        raise RequestError(message)
    return body


def _source_digest() -> str:
    """Return the SHA-256 over the engine's own source files: what ``build_info`` identifies it by."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


class _Server(uvicorn.Server):
    """Ends at the first signal, whatever is still being written."""

    ignore_sigterm = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take SIGTERM and SIGINT: end at once. Nothing is kept, and uvicorn's own way out takes 0.2 s."""
        del sig, frame
        if not self.ignore_sigterm:
            sys.stdout.flush()
            os._exit(0)


def serve(options: Options) -> int:
    """Listen, print ``listening on HOST:PORT``, and serve until a signal; return the exit status."""
    if options.faults.fork_child:
        _fork_sleeper()
    try:
        listener = socket.create_server((options.host, options.port), backlog=64)
    except OSError as error:
        found = f"{options.host}:{options.port}: {error.strerror or error}"
        sys.stderr.write(f"embedded engine: expected a free address, found {found}; choose another --port\n")
        return 1
    application = Engine(options).application()
    config = uvicorn.Config(
        application, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, loop="asyncio"
    )
    # A connection that is dropped on purpose is not worth a line; what else goes wrong is.
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: "without completing" not in record.getMessage()
    )
    server = _Server(config)
    server.ignore_sigterm = options.faults.ignore_sigterm
    # Uvicorn takes the signals when it runs; whoever reads the line below may send one before that.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"listening on {host}:{port}\n")
    sys.stdout.flush()
    # What exists by now stays: the collector needn't look at it again between two ids.
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])
    return 0


def _fork_sleeper() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(600.0)
        os._exit(0)
    sys.stdout.write(f"forked child {child}\n")
    sys.stdout.flush()

"""Unmeasured calls of an engine's HTTP interface: readiness, identity, tokenising.

Over httpx, without proxies from the environment (a proxy would answer in the engine's place) and without
connections that stay open beside a measurement.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

import httpx

from pytest_parity.engines.stream import parse_json_object, refusal
from pytest_parity.errors import ConfigurationError, EngineDied, EngineSilent, MalformedReply

__all__ = ["Caller", "json_bytes"]

_SEE_LOG = "See the engine's log."


class Caller:
    """Calls paths below ``base_url`` and returns JSON objects. ``where`` names the engine in errors."""

    def __init__(self, base_url: str, where: str) -> None:
        self._where = where
        self._client = httpx.Client(
            base_url=base_url,
            trust_env=False,
            verify=False,  # plain http only: there are no certificates to load and to check
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __call__(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, timeout_s: float = 60.0
    ) -> dict[str, object]:
        """One call. ``timeout_s``: seconds for all of it, however slowly bytes drip in.

        Raises EngineDied (no connection, or lost), EngineSilent (timed out), EngineNotReady (503) and
        MalformedReply (another status, no HTTP, no JSON object).
        """
        where = f"{path} of {self._where}"
        return parse_json_object(self._content(method, path, body, timeout_s, where), where=where)

    def listing(self, path: str, *, timeout_s: float = 60.0) -> object:
        """What a GET that answers a JSON list answers. Raises as a call does."""
        where = f"{path} of {self._where}"
        content = self._content("GET", path, None, timeout_s, where)
        return parse_json_object(b'{"list":' + content + b"}", where=where)["list"]

    def _content(
        self, method: str, path: str, body: Mapping[str, object] | None, timeout_s: float, where: str
    ) -> bytes:
        content = None if body is None else json_bytes(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            reply = self._within(
                timeout_s,
                lambda: self._client.request(
                    method, path, content=content, headers=headers, timeout=timeout_s
                ),
            )
        except httpx.TimeoutException as error:
            raise EngineSilent(
                where, expected=f"an answer within {timeout_s:.3g} s", found="none", mend=_SEE_LOG
            ) from error
        except httpx.RemoteProtocolError as error:
            raise MalformedReply(
                where, expected="an HTTP answer", found=f"none ({error})", mend=_SEE_LOG
            ) from error
        except (httpx.HTTPError, OSError) as error:
            raise EngineDied(
                where, expected="an answer", found=f"no connection ({error})", mend=_SEE_LOG
            ) from error
        if reply.status_code != 200:
            raise refusal(reply.status_code, reply.content, where=where)
        return reply.content

    @staticmethod
    def _within(timeout_s: float, call: Callable[[], httpx.Response]) -> httpx.Response:
        """``call``, given up after ``timeout_s``: httpx bounds the wait for each read, not for an answer.

        A call that is given up ends with the engine, whose process is ended next.
        """
        outcome: list[httpx.Response | BaseException] = []

        def run() -> None:
            try:
                outcome.append(call())
            except BaseException as error:  # handed to the caller below
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(timeout_s + 0.5)
        if not outcome:
            raise httpx.ReadTimeout(f"no whole answer within {timeout_s:.3g} s")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def close(self) -> None:
        """Close what is open. Never raises."""
        try:
            self._client.close()
        except (httpx.HTTPError, OSError, RuntimeError):
            pass  # nothing is lost: there is no connection that anybody reads from


def json_bytes(body: Mapping[str, object]) -> bytes:
    """A request's body as compact JSON. Raises ConfigurationError for values that JSON can't write."""
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            "request fields of the lane",
            expected="values that JSON can write",
            found=str(error),
            mend="Mend the lane's request table.",
        ) from error

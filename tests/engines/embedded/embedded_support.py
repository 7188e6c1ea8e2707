"""What the tests of the embedded engine share: prompts, and real processes that are always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pydoc_data.topics import topics
from typing import Any

import httpx

# The test modules import this one before numpy: the model in their process has one BLAS thread as well.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

MODULE = "pytest_parity.engines.embedded"
SYNTHETIC_HEAD = 257
SYNTHETIC_CYCLE = tuple(b"parity, ")

Json = dict[str, Any]


def synthetic(count: int) -> list[int]:
    """Return a head id and then eight ids repeating, ``count`` in all."""
    return [SYNTHETIC_HEAD, *(SYNTHETIC_CYCLE * (count // 8 + 1))][:count]


def prose(count: int, start: int = 0) -> list[int]:
    """Return ``count`` ids of English prose: the documentation topics, runs of spaces closed up."""
    text = " ".join(" ".join(topics[name] for name in sorted(topics)).split()).encode()
    assert len(text) >= start + count, "the topics of this Python are too short for the test"
    return list(text[start : start + count])


@dataclass
class Stream:
    """What a streamed completion gave."""

    events: list[Json] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    broken: bool = False

    @property
    def tokens(self) -> list[Any]:
        """The streamed ids, in order."""
        return [token for event in self.events for token in event["tokens"]]

    @property
    def final(self) -> Json:
        """The final event; fails where the stream has none."""
        assert self.events, "the stream carried no event"
        assert self.events[-1]["stop"] is True, f"the stream ended without a final event: {self.events[-1]}"
        return self.events[-1]


class Running:
    """A running engine process."""

    def __init__(self, process: subprocess.Popen[str], url: str, lines: list[str]) -> None:
        """Talk to ``process`` at ``url``; ``lines`` is what it printed until it listened."""
        self.process = process
        self.lines = lines
        self.client = httpx.Client(base_url=url, timeout=30.0, trust_env=False)

    def ask(self, prompt: list[int] | str, **more: object) -> httpx.Response:
        """Post an unstreamed completion."""
        return self.client.post("/completion", json=self.body(prompt, **more))

    def complete(self, prompt: list[int] | str, **more: object) -> Json:
        """Post an unstreamed completion that must succeed."""
        reply = self.ask(prompt, **more)
        assert reply.status_code == 200, reply.text
        answer: Json = reply.json()
        return answer

    def stream(self, prompt: list[int] | str, **more: object) -> Stream:
        """Post a streamed completion and read it to its end, whole or broken."""
        seen = Stream()
        body = self.body(prompt, stream=True, **more)
        try:
            with self.client.stream("POST", "/completion", json=body) as reply:
                assert reply.status_code == 200, reply.read()
                for line in reply.iter_lines():
                    if line.startswith("data: "):
                        seen.events.append(json.loads(line.removeprefix("data: ")))
                        seen.times.append(time.perf_counter())
        except httpx.RemoteProtocolError:
            seen.broken = True
        return seen

    @staticmethod
    def body(prompt: list[int] | str, **more: object) -> Json:
        """Return the body of a greedy, uncached request of 16 ids, changed by ``more``."""
        return {
            "prompt": prompt,
            "n_predict": 16,
            "temperature": 0,
            "return_tokens": True,
            "cache_prompt": False,
            **more,
        }


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    """Start an engine on a free port in a process group of its own, and end the whole group afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        while not lines or not lines[-1].startswith("listening on "):
            lines.append(process.stdout.readline().strip())
            assert lines[-1], f"the engine ended before it listened: {lines}"
        engine = Running(process, f"http://{lines[-1].removeprefix('listening on ')}", lines)
        with engine.client:
            yield engine
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()

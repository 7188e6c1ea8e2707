"""The seam to an engine: everything that the measurement asks of one.

A driver speaks one dialect to one running engine at a base URL. It never starts, stops or times a
process; foreign exceptions end here, wrapped in :mod:`pytest_parity.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pytest_parity.core.transcript import Transcript

__all__ = ["Capabilities", "Driver", "Identity", "Progress", "Request"]

Progress = Callable[[str, int, int], None]
"""Called as (phase, done, total) with phase ``prefill`` or ``decode``; must return at once."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a driver's engine can do (DESIGN.md classes A to D)."""

    ids_in: bool
    ids_out: bool
    engine_timings: bool
    tokenize: bool
    ignore_eos: bool
    cache_control: bool
    streams_ids: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """What answers at the address: the engine's own words about itself.

    ``build``: the engine's build id. ``model``: path or name of the model it serves. ``context``: tokens.
    ``slots``: number of parallel sequences. ``facts``: anything else that fixes the engine's behaviour.
    """

    build: str
    model: str
    context: int | None
    slots: int | None
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One greedy request.

    ``prompt_ids``: token ids. ``output_tokens``: how many to generate at most. ``ignore_eos``: go on past
    the end token. ``cache``: may a cached prefix be used. ``silence_s``: seconds without any event before
    the request is given up; ``extra``: fields of the lane, added to the body as they are.
    """

    prompt_ids: tuple[int, ...]
    output_tokens: int
    ignore_eos: bool
    cache: bool = False
    silence_s: float = 600.0
    extra: Mapping[str, object] = field(default_factory=dict)


class Driver(Protocol):
    """One dialect, bound to one address."""

    name: str
    boundary: str
    """Which events bound prefill and decode, in one sentence that stands in the receipt."""

    def capabilities(self) -> Capabilities:
        """What this dialect offers. Needs no running engine."""

    def wait_ready(self, deadline_s: float, alive: Callable[[], str | None]) -> None:
        """Return once one real token was generated.

        ``alive`` returns ``None`` while the process lives, else how it ended.
        Raises EngineNotReady after ``deadline_s`` seconds (also while 503 is answered for ever) and
        EngineStartFailed when the process ended.
        """

    def identify(self) -> Identity:
        """Ask the engine what it is. Raises MalformedReply, EngineDied."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of ``text`` without special tokens added."""

    def detokenize(self, ids: tuple[int, ...]) -> str:
        """Text of ``ids``; undecodable bytes become U+FFFD."""

    def generate(self, request: Request, progress: Progress | None = None) -> Transcript:
        """Send one streamed request and return what was said and when; raw bytes first, parsing after.

        Raises EngineDied, EngineSilent, MalformedReply, SettingsIgnored.
        """

    def close(self) -> None:
        """Close connections. Never raises."""

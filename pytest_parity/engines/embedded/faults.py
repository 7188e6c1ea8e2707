"""Faults that the engine can be told to have: each is a thing that real engines have done to a measurement.

A fault is named on the command line as ``--fault NAME`` or ``--fault NAME=VALUE``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Stall:
    """A pause before an output id."""

    position: int
    seconds: float


@dataclass(frozen=True)
class Faults:
    """What is wrong with the engine; nothing, by default. Positions count output ids from 0."""

    diverge_at: int | None = None
    """Another id stands at this position."""
    nan_logits: int | None = None
    """The logits of this position are not numbers: the greedy choice falls on id 0."""
    silent_penalty: bool = False
    """A repetition penalty before the choice; the echoed settings stay neutral."""
    loud_penalty: bool = False
    """The same penalty, and the echoed settings say so."""
    stop_early: bool = False
    """One id fewer than asked for, and still "limit"."""
    after_stop: bool = False
    """One id more after the end."""
    half_draft_window: bool = False
    """The speculative lane looks for drafts in half of its window."""
    extra_bos: bool = False
    """A begin id before the prompt that was sent."""
    wrong_prompt: bool = False
    """One id of the prompt is changed before it is read."""
    reuse_cache: bool = False
    """A cached prefix is reused though the request forbids it; the reply counts it."""
    reuse_cache_silent: bool = False
    """The same, and the reply does not count it."""
    slow: float | None = None
    """Rates drop by this percentage."""
    slow_first: float | None = None
    """The same, only in the engine that was told ``--position 1``."""
    stall_at: Stall | None = None
    """A pause before one output id."""
    chunk: int | None = None
    """This many ids an event in the plain lane."""
    lose_ids: bool = False
    """Every fourth id is missing from the events, the final counts are whole."""
    bad_token: int | None = None
    """The id at this position is written as text."""
    cut_stream: int | None = None
    """The connection closes after this many ids, without a final event; the process lives on."""
    die_at: int | None = None
    """The process is gone after this many ids."""
    wrong_timings: bool = False
    """The engine's own times are half of what they were."""
    unready_forever: bool = False
    """Loading never ends."""
    ready_early: bool = False
    """/health says ok while the model is still loading."""
    ignore_sigterm: bool = False
    """SIGTERM changes nothing."""
    fork_child: bool = False
    """A child that sleeps, and outlives the engine unless its process group is ended."""

    def slowdown(self, position: int | None) -> float:
        """Return the percentage that rates drop by in the engine at ``position`` of its pair."""
        if self.slow_first is not None and position == 1:
            return self.slow_first
        return self.slow if self.slow is not None else 0.0

    def names(self) -> list[str]:
        """Return the faults that are set, as they are named on the command line."""
        defaults = Faults()
        return [
            field.name.replace("_", "-")
            for field in fields(self)
            if getattr(self, field.name) != getattr(defaults, field.name)
        ]


POSITIONS = ("diverge-at", "nan-logits", "cut-stream", "die-at")
PERCENTAGES = ("slow", "slow-first")
VALUED = (*POSITIONS, *PERCENTAGES, "stall-at", "chunk")
DEFAULT_BAD_TOKEN = 1
NAMES = tuple(field.name.replace("_", "-") for field in fields(Faults))
SWITCHES = tuple(name for name in NAMES if name not in (*VALUED, "bad-token"))


class FaultError(ValueError):
    """A fault was named that does not exist, or with a value that it can't take."""


def parse_faults(texts: Iterable[str]) -> Faults:
    """Read ``NAME`` and ``NAME=VALUE`` texts. Raises FaultError with what was expected and what was found."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in NAMES:
            message = f"fault: expected one of {', '.join(NAMES)}, found {name!r}; choose one of them"
            raise FaultError(message)
        if name in SWITCHES and equals:
            message = f"fault {name}: expected no value, found {value!r}; leave out the value"
            raise FaultError(message)
        if name in VALUED and not equals:
            message = f"fault {name}: expected a value, found none; write {name}=VALUE"
            raise FaultError(message)
        values[name.replace("-", "_")] = _value(name, value)
    return Faults(**values)


def _value(name: str, value: str) -> object:
    if name in SWITCHES:
        return True
    if name in PERCENTAGES:
        percentage = _number(name, value)
        if not 0.0 < percentage < 100.0:
            message = f"fault {name}: expected a percentage between 0 and 100, found {value!r}; change it"
            raise FaultError(message)
        return percentage
    if name == "stall-at":
        position, colon, seconds = value.partition(":")
        if not colon:
            message = f"fault stall-at: expected POSITION:SECONDS, found {value!r}; write both"
            raise FaultError(message)
        return Stall(_count(name, position), _number(name, seconds))
    if name == "bad-token" and not value:
        return DEFAULT_BAD_TOKEN
    return _count(name, value, least=1 if name == "chunk" else 0)


def _count(name: str, value: str, least: int = 0) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < least:
        message = f"fault {name}: expected a whole number from {least} on, found {value!r}; change it"
        raise FaultError(message)
    return int(value)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < float("inf"):
        message = f"fault {name}: expected a number from 0 on, found {value!r}; change it"
        raise FaultError(message)
    return number

"""What one side said, and when, kept apart so that time can be withheld.

``Words`` is everything that exactness looks at. ``Clockwork`` is everything from which a rate could be
derived. A pair whose words differ keeps its words and loses its clockwork (see ``exactness``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Clockwork", "Event", "Settings", "StopReason", "Transcript", "Words"]

StopReason = Literal["limit", "eos", "word"]
Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Event:
    """One arrival on the wire.

    ``at_ns``: arrival on the client's monotonic clock, nanoseconds.
    ``tokens``: number of token ids carried; ``None`` when the engine does not tell.
    """

    at_ns: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Words:
    """What one side said: no times in here, and nothing that a rate can be made of.

    ``output_ids``: ids in order, ``None`` for an engine that gives text only.
    ``text``: the decoded text as the engine gave it.
    ``stop``: why it ended, ``None`` when the engine did not say.
    ``evaluated``, ``cached``, ``predicted``: the engine's own counts of prompt tokens evaluated, prompt
    tokens taken from a cache, and tokens generated; ``None`` where it did not tell.
    ``drafted``, ``accepted``, ``rounds``: of a speculative lane, ``None`` where the engine does not tell.
    ``settings``: the sampler and request settings that the engine says took effect.
    ``ids_from``: where the ids came from, ``stream`` or ``repeat`` (an unstreamed repeat, trap T53).
    """

    prompt_tokens: int
    output_ids: tuple[int, ...] | None
    text: str
    stop: StopReason | None
    evaluated: int | None = None
    cached: int | None = None
    predicted: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    settings: Settings = field(default_factory=dict)
    ids_from: Literal["stream", "repeat"] = "stream"


@dataclass(frozen=True, slots=True)
class Clockwork:
    """When one side said it, on one monotonic clock of the client, in nanoseconds.

    ``sent_ns``: the last byte of the request is handed to the kernel. ``events``: arrivals that carry
    output, in order. ``end_ns``: the closing event arrived. ``engine``: the engine's own figures as it
    gave them (a cross-check, never the source of a verdict). ``peak_rss_bytes``: of the whole process tree.
    ``stamps``: who stamped the arrivals, the ``kernel`` on receipt or the ``client`` when it was woken.
    """

    sent_ns: int
    events: tuple[Event, ...]
    end_ns: int
    engine: Mapping[str, float | int] = field(default_factory=dict)
    peak_rss_bytes: int | None = None
    stamps: Literal["kernel", "client"] = "client"


@dataclass(frozen=True, slots=True)
class Transcript:
    """One measured request of one side."""

    words: Words
    clockwork: Clockwork

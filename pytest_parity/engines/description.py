"""What ``parity.toml`` says about an engine: how it is started, and which lanes it has."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pytest_parity.core.canonical import canonical_bytes

__all__ = ["PLACEHOLDERS", "EngineDescription", "Lane", "Pin"]

PLACEHOLDERS = ("{python}", "{binary}", "{model}", "{port}", "{context}", "{position}")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lane(_Model):
    """A configuration that is measured on its own: additions to argv and to the request's body.

    ``cache``: the engine may reuse a cached prompt prefix. ``speculative``: claims on this lane need
    natural text and a stated minimum length. ``prime``: before the measured request the whole prompt is
    sent once (so that a cached lane has something to reuse).
    """

    argv: tuple[str, ...] = ()
    request: Mapping[str, Any] = Field(default_factory=dict)
    cache: bool = False
    prime: bool = False
    speculative: bool = False
    effective: Mapping[str, Any] = Field(default_factory=dict)
    """Facts of the engine's identity that must hold once it runs: a setting asked for must take effect."""


class Pin(_Model):
    """The portable half of a pin."""

    binary_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    model_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    source: str | None = None
    expires: date | None = None


class Estimate(_Model):
    """Rough figures for planning on a machine that has measured nothing yet: seconds and tokens/s."""

    start_s: float = Field(gt=0)
    prefill_tps: float = Field(gt=0)
    decode_tps: float = Field(gt=0)


class EngineDescription(_Model):
    """One engine of ``parity.toml``."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)
    driver: Literal["llama-server"] = "llama-server"
    argv: tuple[str, ...] = Field(min_length=1)
    context: int = Field(ge=8, strict=True)
    binary: str | None = None
    """A path, or ``built:NAME`` for what ``parity engine build NAME`` made."""
    model: str | None = None
    """A path, or ``provided:NAME:VARIANT`` for what ``parity engine model NAME`` made."""
    vocabulary: str | None = None
    """A name for the vocabulary where no model file stands for it; engines of one name share prompts."""
    lanes: Mapping[str, Lane] = Field(default_factory=lambda: {"plain": Lane()})
    cpus: tuple[int, ...] | None = None
    environment: Mapping[str, str] = Field(default_factory=dict)
    warmup_tokens: int = Field(default=2048, ge=1, strict=True)
    start_s: float = Field(default=60.0, gt=0)
    silence_s: float = Field(default=600.0, gt=0)
    grace_s: float = Field(default=5.0, ge=0)
    memory_limit_bytes: int | None = Field(default=None, ge=1)
    pin: Pin = Field(default_factory=Pin)
    estimate: Estimate | None = None

    @field_validator("argv")
    @classmethod
    def _placeholders(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        joined = " ".join(value)
        if "{port}" not in joined:
            raise ValueError("argv needs {port}: the port is chosen for each start")
        return value

    @model_validator(mode="after")
    def _complete(self) -> EngineDescription:
        joined = " ".join(self.argv)
        for field in ("binary", "model"):
            used, given = f"{{{field}}}" in joined, getattr(self, field) is not None
            if used and not given:
                raise ValueError(f"argv uses {{{field}}}, but {field!r} is not given")
            if given and not used:
                raise ValueError(
                    f"{field!r} is given, but argv does not use {{{field}}}: its pin would speak of nothing"
                )
        for part in (*self.argv, *(part for lane in self.lanes.values() for part in lane.argv)):
            unknown = sorted(set(re.findall(r"\{[a-z_]+\}", part)) - set(PLACEHOLDERS))
            if unknown:
                raise ValueError(f"argv has {unknown[0]}; the placeholders are {', '.join(PLACEHOLDERS)}")
        if "plain" not in self.lanes:
            raise ValueError("lanes need one called 'plain'")
        return self

    def configuration(self, lane: str) -> dict[str, Any]:
        """Everything that decides how this engine behaves on ``lane``; equal means the same engine."""
        chosen = self.lanes[lane]
        return {
            "driver": self.driver,
            "argv": [*self.argv, *chosen.argv],
            "request": dict(chosen.request),
            "cache": chosen.cache,
            "prime": chosen.prime,
            "speculative": chosen.speculative,
            "binary": self.binary,
            "model": self.model,
            "context": self.context,
            "environment": dict(self.environment),
            "cpus": list(self.cpus) if self.cpus is not None else None,
            "memory_limit_bytes": self.memory_limit_bytes,
        }

    def behaviour(self, lane: str) -> dict[str, Any]:
        """:meth:`configuration` without where it runs: equal means that comparing the two cannot fail."""
        machine = ("cpus", "memory_limit_bytes")
        return {key: value for key, value in self.configuration(lane).items() if key not in machine}

    def digest(self, lane: str) -> str:
        """SHA-256 of :meth:`configuration`."""
        return "sha256:" + hashlib.sha256(canonical_bytes(self.configuration(lane))).hexdigest()

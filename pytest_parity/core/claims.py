"""The register: what is claimed, for which cells, and by which rule it would hold."""

from __future__ import annotations

import hashlib
import math
import string
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.core.exactness import Level
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.prompts import NATURAL, check_class
from pytest_parity.errors import ConfigurationError, ParityError

__all__ = ["KINDS", "PLANS", "Claim", "DepthEntry", "Expected", "Kind", "parse_claim"]

Kind = Literal["exact", "parity", "at-least", "point", "reported"]
KINDS: tuple[Kind, ...] = ("exact", "parity", "at-least", "point", "reported")
PLANS: dict[str, tuple[int, ...]] = {"2": (2,), "5": (5,), "6": (6,), "6+6": (6, 12)}
"""Pairs at each look. ``2`` (R C | C R) is the plan of exact claims: exactness needs no statistics."""
Statistic = Literal["ratio-of-medians", "ratio-of-means", "median-of-pairs", "minimum-of-pairs"]
Word = Literal["PASS", "MISS", "UNRESOLVED", "FAIL", "UNSUPPORTED", "RECORDED", "PASS(point)"]
"""What may be expected: words that something measured, or a driver, gives. Nothing measured is never met."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DepthEntry(_Model):
    """A depth (prompt tokens) that carries its own output length or plan."""

    depth: int = Field(ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    pairs: str | None = None

    @field_validator("pairs")
    @classmethod
    def _known_plan(cls, value: str | None) -> str | None:
        return value if value is None else _plan(value)


class Expected(_Model):
    """What is known to come out, and why: per cell, or for every cell where depth and fixture are absent."""

    verdict: Word
    because: str = Field(min_length=12)
    depth: int | None = None
    fixture: str | None = None

    def covers(self, depth: int, fixture: str) -> bool:
        """Does this entry speak of that cell?"""
        return self.depth in (None, depth) and self.fixture in (None, fixture)


class Claim(_Model):
    """One row of the register. Field by field as in docs/claims.md."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=80)
    wording: str = Field(min_length=1)
    candidate: str
    reference: str
    lane: str = Field(default="plain", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)
    reference_lane: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)
    kind: Kind
    metric: str | None = None
    margin: float | None = Field(default=None, ge=0, lt=1)
    threshold: float | None = Field(default=None, gt=0)
    statistic: Statistic | None = None
    exactness: Level = "tokens"
    because: str | None = None
    minimum_tokens: int = Field(default=1, ge=1)
    depths: tuple[DepthEntry, ...] = Field(min_length=1)
    fixtures: tuple[str, ...] = Field(min_length=1)
    output_tokens: int = Field(default=256, ge=1)
    pairs: str
    floors: Mapping[str, float] = Field(default_factory=dict)
    review: Literal["required", "approved"] = "required"
    on_divergence: Literal["stop", "continue"] = "stop"
    expected: tuple[Expected, ...] = ()

    @field_validator("pairs")
    @classmethod
    def _known_plan(cls, value: str) -> str:
        return _plan(value)

    @field_validator("fixtures")
    @classmethod
    def _known_fixtures(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            check_class(name)
        if len(set(value)) != len(value):
            raise ValueError("each fixture class once")
        return value

    @field_validator("depths")
    @classmethod
    def _distinct_depths(cls, value: tuple[DepthEntry, ...]) -> tuple[DepthEntry, ...]:
        if len({entry.depth for entry in value}) != len(value):
            raise ValueError("each depth once")
        return value

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Claim:
        wanted: dict[Kind, set[str]] = {
            "exact": set(),
            "parity": {"metric", "margin"},
            "at-least": {"metric", "threshold"},
            "point": {"metric", "threshold", "statistic"},
            "reported": {"metric"},
        }
        for field in ("metric", "margin", "threshold", "statistic"):
            given, needed = getattr(self, field) is not None, field in wanted[self.kind]
            if needed and not given:
                raise ValueError(f"{field!r} in a claim of kind {self.kind!r}")
            if given and not needed:
                raise ValueError(f"no {field!r} in a claim of kind {self.kind!r}")
        for name in (self.metric, *self.floors):
            if name is not None and name not in METRICS:
                raise ValueError(f"metrics of the metrics table ({', '.join(METRICS)}), not {name!r}")
        if self.kind == "exact" and self.exactness == "none":
            raise ValueError("an exactness level other than 'none' in a claim of kind 'exact'")
        if self.exactness == "none" and (self.because is None or self.kind != "reported"):
            raise ValueError(
                'because = "…" and kind = "reported" beside exactness \'none\': such numbers satisfy no claim'
            )
        every = (self.pairs, *(entry.pairs for entry in self.depths if entry.pairs))
        if self.kind != "exact" and "2" in every:
            raise ValueError("plan '2' in exact claims only: two pairs decide no claim about speed")
        if self.kind == "exact" and set(every) != {"2"}:
            raise ValueError('pairs = "2" in an exact claim: exactness needs no statistics')
        self._wording_can_be_filled()
        self._speaks_of_its_cells()
        return self

    def _speaks_of_its_cells(self) -> None:
        depths = {entry.depth for entry in self.depths}
        for entry in self.expected:
            if entry.depth not in {None, *depths} or entry.fixture not in {None, *self.fixtures}:
                raise ValueError(
                    f"verdicts of declared cells only in 'expected', not of depth {entry.depth}, fixture {entry.fixture!r}"
                )
        shortest = min(entry.output_tokens or self.output_tokens for entry in self.depths)
        if self.minimum_tokens > shortest:
            raise ValueError(f"minimum_tokens of at most the shortest output, {shortest}")

    def _wording_can_be_filled(self) -> None:
        known = {"depths", "candidate", "reference", "lane", "fixtures", "output_tokens"}
        known |= {name for name in ("margin", "threshold") if getattr(self, name) is not None}
        try:
            blanks = {name for _, name, _, _ in string.Formatter().parse(self.wording) if name is not None}
            if blanks <= known:
                self.sentence()
        except (ValueError, LookupError) as error:
            raise ValueError(f"plain blanks such as {{depths}} in the wording: {error}") from None
        if blanks - known:
            unknown = ", ".join(f"{{{name}}}" for name in sorted(blanks - known))
            raise ValueError(
                f"blanks in the wording that this row can fill ({', '.join(sorted(known))}), not {unknown}"
            )

    @property
    def performance(self) -> bool:
        """Does a rate or a latency decide this claim?"""
        return self.kind in ("parity", "at-least", "point")

    @property
    def bar(self) -> float | None:
        """The ratio that a performance claim must reach: 1 - margin, or the threshold."""
        if self.kind == "parity":
            assert self.margin is not None
            return 1.0 - self.margin
        return self.threshold

    @property
    def other_lane(self) -> str:
        """The reference's lane."""
        return self.reference_lane or self.lane

    @property
    def digest(self) -> str:
        """SHA-256 of the row as it stands: evidence binds to it.

        Review state and expectations are left out: approving a wording, or writing down what came out, doesn't
        change what was claimed, for which cells and by which rule.
        """
        row = self.model_dump(mode="json", exclude={"review", "expected"})
        return "sha256:" + hashlib.sha256(canonical_bytes(row)).hexdigest()

    @property
    def has_natural(self) -> bool:
        """Is a natural text among the fixture classes? A speculative lane needs one (trap T07)."""
        return any(name in NATURAL or name.startswith("file:") for name in self.fixtures)

    def sentence(self) -> str:
        """The wording with its blanks filled in from the row."""
        depths = [f"{entry.depth:,}" for entry in self.depths]
        return self.wording.format(
            depths=depths[0] if len(depths) == 1 else ", ".join(depths[:-1]) + " and " + depths[-1],
            candidate=self.candidate,
            reference=self.reference,
            margin=f"{self.margin * 100:g} %" if self.margin is not None else None,
            threshold=f"{self.threshold:g}" if self.threshold is not None else None,
            lane=self.lane,
            fixtures=", ".join(self.fixtures),
            output_tokens=self.output_tokens,
        )

    def expectation(self, depth: int, fixture: str) -> Expected | None:
        """The expected verdict of a cell: the entry that names most of it."""
        entries = [entry for entry in self.expected if entry.covers(depth, fixture)]
        entries.sort(key=lambda entry: (entry.depth is not None) + (entry.fixture is not None))
        return entries[-1] if entries else None


def _plan(name: str) -> str:
    if name not in PLANS:
        raise ValueError(f"one of {', '.join(PLANS)}")
    return name


def _float(value: int) -> float:
    """A whole number as a float; one that no float holds becomes infinite, and is refused as such."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_claim(name: str, row: Mapping[str, Any]) -> Claim:
    """A claim from a table of the register. Raises ConfigurationError that names the field."""
    if not isinstance(row, Mapping):
        raise ConfigurationError(
            f"claim {name!r}", expected="a table of fields", found=repr(row), mend=f"Write [claims.{name}]."
        )
    if "name" in row:
        raise _unknown_field(name, "name", Claim)
    data = dict(row)
    data.setdefault("pairs", "2" if data.get("kind") == "exact" else None)
    if data["pairs"] is None:
        del data["pairs"]
    depths = data.get("depths")
    if isinstance(depths, list):
        data["depths"] = tuple({"depth": d} if type(d) is int else d for d in depths)
    if isinstance(data.get("fixtures"), list):
        data["fixtures"] = tuple(data["fixtures"])
    expected = data.get("expected")
    if isinstance(expected, str):
        raise ConfigurationError(
            f"claim {name!r}, field 'expected'",
            expected='a list such as [{verdict = "FAIL", because = "one sentence"}]',
            found=repr(expected),
            mend="Say why it is expected.",
        )
    if isinstance(expected, list):
        data["expected"] = tuple(expected)
    for field in ("margin", "threshold"):
        if type(data.get(field)) is int:
            data[field] = _float(data[field])
    if isinstance(data.get("floors"), dict):
        data["floors"] = {k: _float(v) if type(v) is int else v for k, v in data["floors"].items()}
    try:
        return Claim(name=name, **data)
    except ParityError as error:
        raise ConfigurationError(
            f"claim {name!r}: {error.thing}", expected=error.expected, found=error.found, mend=error.mend
        ) from None
    except ValidationError as error:
        raise _readable(name, error) from None


_INSTEAD = {
    "missing": "a value",
    "tuple_type": "a list",
    "model_type": "a table",
    "too_short": "at least one entry",
}
"""Words for people who write TOML, by the type of pydantic's error."""


def _readable(name: str, error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        parts: dict[object, type[BaseModel]] = {"depths": DepthEntry, "expected": Expected}
        return _unknown_field(name, where, parts.get(first["loc"][0], Claim))
    expected = _INSTEAD.get(first["type"], first["msg"])
    if first["type"] == "model_type" and first["loc"][0] == "depths":
        expected = "a whole number, or a table with depth"
    if first["type"] == "string_pattern_mismatch":
        expected = f"a name of the form {first['ctx']['pattern']}"
    for prefix in ("Value error, ", "Input should be ", "String should have "):
        expected = expected.removeprefix(prefix)
    found = (
        "nothing" if first["type"] == "missing" else repr(first["input"]) if where else "the row as written"
    )
    return ConfigurationError(
        f"claim {name!r}, field {where!r}" if where else f"claim {name!r}, the row",
        expected=expected,
        found=found if len(found) < 120 else found[:117] + "…",
        mend="Correct the row; docs/claims.md has every field.",
    )


def _unknown_field(name: str, where: str, model: type[BaseModel]) -> ConfigurationError:
    known = ", ".join(sorted(set(model.model_fields) - {"name"}))
    return ConfigurationError(
        f"claim {name!r}, field {where!r}",
        expected=f"one of {known}",
        found="an unknown field",
        mend="Correct the spelling, or take the field out.",
    )

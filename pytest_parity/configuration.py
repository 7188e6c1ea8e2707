"""Reads ``parity.toml`` and ``claims/*.toml``; every error names file, line and the mend."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_parity.core.claims import Claim, parse_claim
from pytest_parity.engines.description import EngineDescription
from pytest_parity.errors import ConfigurationError

__all__ = ["Configuration", "Register", "load_configuration", "load_register"]


class _Top(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    default_claims: tuple[str, ...] | None = None
    claims: str = "claims"
    device: str = Field(default="cpu", pattern=r"^[A-Za-z0-9._-]+$")
    lease: str | None = None
    quiet_s: float = Field(default=2.0, ge=0)
    harness_cpus: tuple[int, ...] | None = None
    engines: Mapping[str, Any] = Field(default_factory=dict)
    gates: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)


class Configuration(BaseModel):
    """``parity.toml``, read and checked.

    ``root``: its folder; relative paths in it start there. ``quiet_s``: seconds of quiet before each pair.
    ``harness_cpus``: processors for pytest itself while it measures. ``gates``: gate name to claims.
    """

    model_config = ConfigDict(frozen=True)

    path: Path
    root: Path
    default_claims: tuple[str, ...] | None
    claims_folder: Path
    device: str
    lease: Path | None
    quiet_s: float
    harness_cpus: tuple[int, ...] | None
    engines: Mapping[str, EngineDescription]
    gates: Mapping[str, tuple[str, ...]]


class Register(BaseModel):
    """Every claim of the register, by name, and where it stands."""

    model_config = ConfigDict(frozen=True)

    claims: Mapping[str, Claim]
    places: Mapping[str, str]
    """Claim name to ``claims/plain.toml``: relative to the configuration's folder."""


def load_configuration(path: Path) -> Configuration:
    """Read ``parity.toml``. Raises ConfigurationError."""
    text, data = _read(path, path.name)
    try:
        top = _Top(**data)
    except ValidationError as error:
        raise _placed(path, text, (), error) from None
    engines: dict[str, EngineDescription] = {}
    for name, table in top.engines.items():
        if not isinstance(table, Mapping):
            raise ConfigurationError(
                f"{path.name}:{_line(text, ('engines', name))}: engine {name!r}",
                expected="a table",
                found=repr(table),
                mend=f"Write [engines.{name}].",
            )
        if "name" in table:
            raise ConfigurationError(
                f"{path.name}:{_line(text, ('engines', name, 'name'))}: engines.{name}.name",
                expected="a known field",
                found="an unknown field",
                mend=f"Take it out: the name is the table's, [engines.{name}].",
            )
        try:
            engines[name] = EngineDescription(name=name, **table)
        except ValidationError as error:
            raise _placed(path, text, ("engines", name), error) from None
    root = path.parent.resolve()
    return Configuration(
        path=path,
        root=root,
        default_claims=top.default_claims,
        claims_folder=root / top.claims,
        device=top.device,
        lease=root / top.lease if top.lease else None,
        quiet_s=top.quiet_s,
        harness_cpus=top.harness_cpus,
        engines=engines,
        gates=top.gates,
    )


def load_register(configuration: Configuration) -> Register:
    """Read every ``*.toml`` of the claims folder. Raises ConfigurationError."""
    claims: dict[str, Claim] = {}
    places: dict[str, str] = {}
    files = sorted(configuration.claims_folder.glob("*.toml"))
    texts: dict[str, str] = {}
    for file in files:
        place = Path(os.path.relpath(file, configuration.root)).as_posix()
        text, data = _read(file, place)
        texts[place] = text
        unknown = sorted(set(data) - {"claims"})
        if unknown:
            raise ConfigurationError(
                f"{place}:{_line(text, (unknown[0],))}: table {unknown[0]!r}",
                expected="[claims.NAME] tables only",
                found=repr(unknown[0]),
                mend="Correct the table's name.",
            )
        rows = data.get("claims", {})
        if not isinstance(rows, Mapping):
            raise ConfigurationError(
                f"{place}:{_line(text, ('claims',))}: 'claims'",
                expected="[claims.NAME] tables",
                found=repr(rows),
                mend="Write one table for each claim.",
            )
        for name, row in rows.items():
            line = _line(text, ("claims", name))
            if name in claims:
                raise ConfigurationError(
                    f"{place}:{line}: claim {name!r}",
                    expected="a name used once in the whole register",
                    found=f"the same name in {places[name]}",
                    mend="Rename one of the two.",
                )
            try:
                claims[name] = parse_claim(name, row)
            except ConfigurationError as error:
                field = re.search(r"field '(\w+)", error.thing)
                spot = _line(text, ("claims", name, field.group(1))) if field else line
                raise ConfigurationError(
                    f"{place}:{spot}: {error.thing}",
                    expected=error.expected,
                    found=error.found,
                    mend=error.mend,
                ) from None
            places[name] = place
    if not claims:
        raise ConfigurationError(
            f"register {configuration.claims_folder.name}/",
            expected="at least one *.toml with claims",
            found="none",
            mend="Write a claim: see docs/claims.md.",
        )
    _check_engines(configuration, claims, places, texts)
    return Register(claims=claims, places=places)


def _check_engines(
    configuration: Configuration,
    claims: Mapping[str, Claim],
    places: Mapping[str, str],
    texts: Mapping[str, str],
) -> None:
    def spot(name: str, field: str) -> str:
        return f"{places[name]}:{_line(texts[places[name]], ('claims', name, field))}"

    for name, claim in claims.items():
        for role, engine, lane, lane_field in (
            ("candidate", claim.candidate, claim.lane, "lane"),
            (
                "reference",
                claim.reference,
                claim.other_lane,
                "reference_lane" if claim.reference_lane else "lane",
            ),
        ):
            if engine not in configuration.engines:
                raise ConfigurationError(
                    f"{spot(name, role)}: claim {name!r}, {role} {engine!r}",
                    expected=f"an engine of {configuration.path.name}: {', '.join(configuration.engines) or 'none there'}",
                    found=repr(engine),
                    mend=f"Describe it under [engines.{engine}], or correct the name.",
                )
            if lane not in configuration.engines[engine].lanes:
                raise ConfigurationError(
                    f"{spot(name, lane_field)}: claim {name!r}, lane {lane!r} of {engine}",
                    expected=f"one of its lanes: {', '.join(configuration.engines[engine].lanes)}",
                    found=repr(lane),
                    mend=f"Describe it under [engines.{engine}.lanes.{lane}], or correct the name.",
                )


def _read(path: Path, place: str) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            place, expected="a file", found="none", mend="Write it: the README shows one."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            place, expected="readable UTF-8", found=str(error), mend="Correct the file."
        ) from None
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        spot = f":{found.group(1)}:{found.group(2)}" if found else f":{len(text.splitlines())}"
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise ConfigurationError(
            f"{place}{spot}", expected="TOML", found=reason, mend="Correct the syntax."
        ) from None


def _placed(path: Path, text: str, above: tuple[str, ...], error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    loc = tuple(str(part) for part in first["loc"])
    where = ".".join((*above, *loc)) or "the file"
    expected = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    found = repr(first["input"]) if loc else "the table as written"
    if first["type"] == "extra_forbidden":
        expected, found = "a known field", "an unknown field"
    if first["type"] == "missing":
        expected, found = "a value", "nothing"
    return ConfigurationError(
        f"{path.name}:{_line(text, (*above, *loc))}: {where}",
        expected=expected,
        found=found if len(found) < 120 else found[:117] + "…",
        mend="Correct the field; docs/configuration.md has every one.",
    )


def _line(text: str, keys: tuple[str, ...]) -> int:
    """Line (from 1) of the deepest of ``keys`` that can be found: a table's header, or a key below it."""
    lines = text.splitlines()
    at, found = 0, 1
    for depth in range(len(keys), 0, -1):
        name = r"^\s*\[+\s*" + r"\s*\.\s*".join(f"[\"']?{re.escape(k)}[\"']?" for k in keys[:depth]) + r"\s*"
        hits = [n for n, line in enumerate(lines) if re.match(name + r"\]", line)]
        if not hits and depth == len(keys):
            hits = [n for n, line in enumerate(lines) if re.match(name + r"\.", line)]  # a table below it
        if hits:
            at, found = hits[0], hits[0] + 1
            rest = keys[depth:]
            break
    else:
        rest = keys
    if rest:
        key = re.compile(r"^\s*[\"']?" + re.escape(rest[0]) + r"[\"']?\s*[.=]")
        for n in range(at, len(lines)):
            if n > at and re.match(r"^\s*\[", lines[n]):
                break
            if key.match(lines[n]):
                return n + 1
    return found

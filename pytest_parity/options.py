"""The plugin's options: one tidy group, and how they are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

__all__ = ["add_options", "distributes", "is_active", "named_paths", "rerun_text", "reruns"]


def add_options(parser: pytest.Parser) -> None:
    """Register the options."""
    group = parser.getgroup("parity", "parity: claims about LLM engines as tests")
    group.addoption("--depths", metavar="N,N", help="only cells of these depths (prompt tokens)")
    group.addoption("--fixture-class", metavar="NAME,NAME", help="only cells of these fixture classes")
    group.addoption("--reps", type=int, metavar="N", help="pairs per cell; other than declared is diagnostic")
    group.addoption("--pairs", metavar="PLAN", help="another plan than declared (2, 5, 6, 6+6); diagnostic")
    group.addoption(
        "--claims", metavar="NAME,NAME", help="these claims instead of default_claims; 'all' for all"
    )
    group.addoption(
        "--parity-config", metavar="FILE", help="configuration (default: parity.toml in the root folder)"
    )
    group.addoption("--parity-plan", action="store_true", help="print what would run, and run nothing")
    group.addoption(
        "--parity-gate", metavar="NAME", help="a gate of parity.toml: its claims must be whole and hold"
    )
    group.addoption("--receipts", metavar="DIR", help="where receipts go (default: .parity/receipts)")


def is_active(config: pytest.Config) -> bool:
    """Were parity items asked for as a whole? (A node id by name asks for single ones.)"""
    option = config.option
    marks = " ".join((getattr(option, "markexpr", "") or "").split())
    return bool(option.parity_plan or option.parity_gate or re.search(r"(?<!\bnot )\bparity\b", marks))


def distributes(config: pytest.Config) -> bool:
    """Does this process hand its tests to xdist's workers?"""
    return getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")


def reruns(config: pytest.Config) -> int:
    """How often pytest-rerunfailures would run a failed test again; 0 where it isn't installed."""
    try:
        return int(config.getoption("--reruns", None) or config.getini("reruns") or 0)
    except (KeyError, ValueError):
        return 0


def named_paths(config: pytest.Config) -> list[tuple[str, str]]:
    """(file, rest) of every node id on the command line."""
    found = []
    for arg in config.invocation_params.args:
        text = str(arg)
        file, separator, rest = text.partition("::")
        if separator and not text.startswith("-"):
            found.append((str((Path(config.invocation_params.dir) / file).resolve()), rest))
    return found


def rerun_text(found: str) -> str:
    """Why a pair is not run beside a plugin that runs failed tests again (trap T36)."""
    return (
        f"parity tests under {found}: expected each pair to be measured once; found a plugin that would run it "
        "until it passes. Leave the reruns out of this run: a failed pair is evidence too."
    )


def integers(option: str, text: str | None) -> tuple[int, ...] | None:
    """A comma-separated list of whole numbers. Raises UsageError."""
    if text is None:
        return None
    try:
        values = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1:
        raise pytest.UsageError(
            f"{option} {text}: expected whole numbers from 1, separated by commas; found {text!r}. "
            "Write for instance --depths 2048,65536."
        )
    return values


def words(text: str | None) -> tuple[str, ...] | None:
    """A comma-separated list of names."""
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())

"""The processor that a build is made for, and the tools that make it."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .commands import Runner
from .errors import ToolMissing

_ASK_LIMIT_S = 60.0


@dataclass(frozen=True)
class Processor:
    """Model name and features, sorted, as the kernel lists them."""

    model: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Toolchain:
    """The compilers, cmake and make program that a build uses, by absolute path, and what they say they are."""

    c_compiler: str
    cxx_compiler: str
    compiler: str
    """First lines of both compilers' ``--version`` and the machine they compile for."""
    compiler_version: str
    cmake: str
    cmake_version: str
    generator: str


def this_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """What this machine's processor is; only its architecture where the kernel doesn't tell more."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip().lower(), value.strip())
    # "flags" on x86, "Features" on ARM.
    features = values.get("flags") or values.get("features") or ""
    return Processor(values.get("model name") or platform.machine(), tuple(sorted(features.split())))


def find_toolchain(run: Runner, environment: Mapping[str, str] | None = None) -> Toolchain:
    """Look up what a build needs: ``CC`` and ``CXX`` if they are set, else the first compilers on ``PATH``.

    Raises ``ToolMissing`` for the first thing that is not there or does not run.
    """
    values = os.environ if environment is None else environment
    cmake = _find("cmake", ("cmake",), values, "Install cmake (3.14 or newer)")
    cc = _find("C compiler", (values.get("CC", ""), "cc", "gcc", "clang"), values, "Install gcc or clang")
    cxx = _find(
        "C++ compiler", (values.get("CXX", ""), "c++", "g++", "clang++"), values, "Install g++ or clang++"
    )
    make = _find("make program", ("ninja", "make"), values, "Install make or ninja")
    c_line = _first_line(run, [cc, "--version"], "C compiler")
    cxx_line = _first_line(run, [cxx, "--version"], "C++ compiler")
    machine = _first_line(run, [cxx, "-dumpmachine"], "C++ compiler")
    return Toolchain(
        c_compiler=cc,
        cxx_compiler=cxx,
        compiler=f"{c_line}; {cxx_line}; {machine}",
        compiler_version=_version_in(cxx_line),
        cmake=cmake,
        cmake_version=_version_in(_first_line(run, [cmake, "--version"], "cmake")),
        generator="Ninja" if Path(make).name == "ninja" else "Unix Makefiles",
    )


def _find(what: str, names: tuple[str, ...], environment: Mapping[str, str], mend: str) -> str:
    wanted = [name for name in names if name]
    for name in wanted:
        if found := shutil.which(name, path=environment.get("PATH")):
            return found
    raise ToolMissing(
        what,
        expected=f"{' or '.join(wanted)} on PATH",
        found="none of them",
        mend=f"{mend}, and run the command again.",
    )


def _first_line(run: Runner, argv: list[str], what: str) -> str:
    lines: list[str] = []
    try:
        finished = run(argv, report=lines.append, timeout_s=_ASK_LIMIT_S)
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
    else:
        if finished.returncode == 0 and lines:
            return lines[0].strip()
        found = f"{finished.ending}, output {lines[0].strip() if lines else 'empty'!r}"
    raise ToolMissing(
        what,
        expected=f"`{' '.join(argv)}` to answer",
        found=found,
        mend="Mend its installation, and run the command again.",
    )


def _version_in(line: str) -> str:
    """The last dotted number of a line that names a version, or the line itself."""
    numbers = re.findall(r"\d+(?:\.\d+)+", line)
    return numbers[-1] if numbers else line

"""The tools and the processor of a build: found, named, and missed in clear words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from provision_support import FakeRunner, no_run

from pytest_parity.engines.provision.commands import Finished
from pytest_parity.engines.provision.errors import ToolMissing
from pytest_parity.engines.provision.machine import Processor, find_toolchain, this_processor


def programs(folder: Path, *names: str) -> dict[str, str]:
    """An environment whose PATH holds these programs only."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("there", "what", "wanted", "mend"),
    [
        ((), "cmake", "cmake", "Install cmake (3.14 or newer)"),
        (("cmake",), "C compiler", "cc or gcc or clang", "Install gcc or clang"),
        (("cmake", "gcc"), "C++ compiler", "c++ or g++ or clang++", "Install g++ or clang++"),
        (("cmake", "gcc", "g++"), "make program", "ninja or make", "Install make or ninja"),
    ],
)
def test_missing_tools(tmp_path: Path, there: tuple[str, ...], what: str, wanted: str, mend: str) -> None:
    with pytest.raises(ToolMissing) as caught:
        find_toolchain(FakeRunner(no_run), programs(tmp_path / "bin", *there))
    assert str(caught.value) == (
        f"{what}: expected {wanted} on PATH; found none of them. {mend}, and run the command again."
    )


def test_toolchain_says_what_it_is(tmp_path: Path) -> None:
    said: dict[str, Callable[[], str]] = {
        "cmake": lambda: "cmake version 3.25.1",
        "cc": lambda: "cc (Debian 12.2.0-14) 12.2.0",
        "c++": lambda: "c++ (Debian 12.2.0-14) 12.2.1",
    }

    def answer(argv: Sequence[str]) -> Finished:
        if argv[1] == "-dumpmachine":
            return Finished(0, ("x86_64-linux-gnu",))
        return Finished(0, (said[Path(argv[0]).name](),))

    environment = programs(tmp_path / "bin", "cmake", "cc", "c++", "make", "mycc")
    found = find_toolchain(FakeRunner(answer), environment)
    assert found.compiler == "cc (Debian 12.2.0-14) 12.2.0; c++ (Debian 12.2.0-14) 12.2.1; x86_64-linux-gnu"
    assert (found.compiler_version, found.cmake_version) == ("12.2.1", "3.25.1")
    assert found.generator == "Unix Makefiles"
    said["mycc"] = lambda: "mine 1.0"
    chosen = find_toolchain(FakeRunner(answer), {**environment, "CC": "mycc"})
    assert chosen.c_compiler == str(tmp_path / "bin" / "mycc")


def test_tool_that_does_not_answer(tmp_path: Path) -> None:
    environment = programs(tmp_path / "bin", "cmake", "cc", "c++", "make")
    with pytest.raises(ToolMissing) as caught:
        find_toolchain(FakeRunner(lambda _: Finished(1, ("broken",))), environment)
    assert str(caught.value) == (
        f"C compiler: expected `{tmp_path / 'bin' / 'cc'} --version` to answer; "
        "found exit status 1, output 'broken'. Mend its installation, and run the command again."
    )


def test_processor(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text("model name\t: A chip\nflags\t\t: fma avx2\nmodel name : other\n")
    assert this_processor(tmp_path / "x86") == Processor("A chip", ("avx2", "fma"))
    (tmp_path / "arm").write_text("Features : neon\n")
    assert this_processor(tmp_path / "arm").features == ("neon",)
    assert this_processor(tmp_path / "none").features == ()

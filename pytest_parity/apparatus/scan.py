"""Other engines and profilers on this machine, found by what they execute.

A process counts by the name of its executable, by ``argv[0]``, by the script a Python interpreter runs
or by ``python -m <engine module>``: never by words somewhere on a command line, so that an editor, a
search or a shell that mentions an engine is none. Blind spots: engines renamed to something else,
engines inside another process (a library), and whatever ``/proc`` hides (other containers, hidepid).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate

from pytest_parity.errors import ForeignProcess, NothingCompared

from . import procfs

__all__ = ["Found", "Scan", "compare", "refuse_foreign", "scan"]


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(translate(p) for p in patterns))


_ENGINES = _any_of(
    "llama", "llama-*", "llama_*", "ik_llama*", "llamafile*", "*.llamafile", "vllm*", "sglang*", "ollama*",
    "mistralrs*", "koboldcpp*", "text-generation-*", "tritonserver", "trtllm-*", "lmdeploy", "mlc_llm",
    "aphrodite", "tabbyapi", "localai", "local-ai",
)  # fmt: skip
# An interpreted script counts only where engines are shipped as scripts: llama-something.py is a tool.
_SCRIPTS = _any_of(
    "vllm", "sglang", "koboldcpp.py", "text-generation-*", "trtllm-*", "lmdeploy", "mlc_llm", "aphrodite",
)  # fmt: skip
_PROFILERS = _any_of(
    "perf", "perf_*", "nsys", "nsys-launcher", "ncu", "py-spy", "valgrind", "valgrind.bin", "memcheck-*",
    "callgrind-*", "gdb", "gdbserver", "lldb", "strace", "ltrace", "bpftrace", "rocprof*", "vtune*",
    "amduprof*", "heaptrack", "xctrace",
)  # fmt: skip
_MODULES = (
    "pytest_parity.engines.embedded", "vllm", "sglang", "llama_cpp.server", "lmdeploy", "mlc_llm",
    "aphrodite", "text_generation_server", "tensorrt_llm",
)  # fmt: skip
_PYTHON = re.compile(r"python[0-9.]*t?|pypy[0-9.]*")
_TAKES_VALUE = frozenset("WXQ")
_HEAD = 4


@dataclass(frozen=True, slots=True)
class Found:
    """One process that must not run beside a measurement; ``kind`` is ``engine`` or ``profiler``.

    ``argv_head``: its first four arguments, secrets masked. ``start_ticks``: clock ticks from boot to its
    start.
    """

    pid: int
    kind: str
    name: str
    argv_head: tuple[str, ...]
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Scan:
    """The machine at one moment. ``None`` is unknown, never "nothing".

    ``processes``: foreign engines and profilers. ``seen``: how many processes were looked at. ``load``:
    averages over 1, 5 and 15 minutes. ``memory_available_bytes``, ``swap_used_bytes``: from
    ``/proc/meminfo``.
    """

    processes: tuple[Found, ...] | None
    seen: int
    load: tuple[float, float, float] | None
    memory_available_bytes: int | None
    swap_used_bytes: int | None


def scan(own: frozenset[int]) -> Scan:
    """Look at every visible process once. ``own``: pids and group ids; with their descendants, ours."""
    found, seen, saw_self = [], 0, False
    me = os.getpid()
    for pid in procfs.pids():
        argv = procfs.argv_of(pid)
        if argv is None:
            continue
        seen += 1
        saw_self = saw_self or pid == me
        executable = _executable(pid)
        if not argv:
            # Kernel threads and zombies execute nothing; a program just being executed has no arguments yet.
            if executable is None:
                continue
            argv = (executable,)
        match = _classify(argv, executable)
        if match is None:
            continue
        stat = procfs.stat_of(pid)
        if stat is None or stat.state in "ZX" or _belongs(pid, stat, own):
            continue
        found.append(Found(pid, match[0], match[1], procfs.redacted(argv)[:_HEAD], stat.start_ticks))
    memory = _memory()
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    return Scan(
        # A scan that cannot see the process that runs it has seen nothing.
        processes=tuple(sorted(found, key=lambda f: f.pid)) if saw_self else None,
        seen=seen,
        load=_load(),
        memory_available_bytes=memory.get("MemAvailable"),
        swap_used_bytes=None if total is None or free is None else total - free,
    )


def compare(before: Scan, after: Scan) -> tuple[Found, ...]:
    """What runs after that did not run before; a reused pid is new. Raises NothingCompared."""
    earlier, later = _readable(before), _readable(after)
    known = {(f.pid, f.start_ticks) for f in earlier}
    return tuple(f for f in later if (f.pid, f.start_ticks) not in known)


def refuse_foreign(seen: Scan) -> None:
    """Raise ForeignProcess naming every engine and profiler of a scan; NothingCompared for a blind one."""
    foreign = _readable(seen)
    if foreign:
        raise ForeignProcess(
            "machine",
            expected="no other engine and no profiler",
            found=_listed(foreign),
            mend="End them, or wait until they are done, then run again.",
        )


def _listed(foreign: Iterable[Found]) -> str:
    return "; ".join(f"{f.kind} {f.name}, pid {f.pid} ({' '.join(f.argv_head)})" for f in foreign)


def _readable(seen: Scan) -> tuple[Found, ...]:
    if seen.processes is None:
        raise NothingCompared(
            "process scan",
            expected="a list of processes",
            found="/proc unreadable or hidden from us",
            mend="Run where /proc is mounted and shows at least our own processes.",
        )
    return seen.processes


def _executable(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return None


def _classify(argv: tuple[str, ...], executable: str | None) -> tuple[str, str] | None:
    """(kind, name) of an engine or a profiler, else ``None``."""
    # A process that renames itself ("VLLM::EngineCore 0") leaves one string; a path may hold blanks.
    names = {os.path.basename(n) for n in (argv[0], argv[0].split(" ")[0], executable or "") if n}
    for name in sorted(names):
        if _ENGINES.match(name.lower()):
            return "engine", name
        if _PROFILERS.match(name.lower()):
            return "profiler", name
    if any(_PYTHON.fullmatch(name) for name in names):
        return _python_target(argv)
    return None


def _python_target(argv: tuple[str, ...]) -> tuple[str, str] | None:
    """What a Python interpreter runs, if that is an engine; options are read as the interpreter does."""
    rest = iter(argv[1:])
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            name = os.path.basename(argument)
            return ("engine", name) if _SCRIPTS.match(name.lower()) else None
        if argument.startswith("--"):
            if argument == "--check-hash-based-pycs":
                next(rest, None)
            continue
        for position, letter in enumerate(argument[1:], start=2):
            value = argument[position:]
            if letter == "m":
                module = value or next(rest, "")
                ours = any(module == m or module.startswith(m + ".") for m in _MODULES)
                return ("engine", module) if ours else None
            if letter == "c":
                return None
            if letter in _TAKES_VALUE:
                if not value:
                    next(rest, None)
                break
    return None


def _belongs(pid: int, stat: procfs.Stat, own: frozenset[int]) -> bool:
    """Whether a process, its group, its session or any ancestor is one of ``own``."""
    here: procfs.Stat | None = stat
    while here is not None and pid > 1:
        if own & {pid, here.pgid, here.sid}:
            return True
        pid = here.ppid
        here = procfs.stat_of(pid)
    return False


def _load() -> tuple[float, float, float] | None:
    try:
        return os.getloadavg()
    except OSError:
        return None


def _memory() -> dict[str, int]:
    """``/proc/meminfo`` in bytes."""
    raw = procfs.read_bytes("/proc/meminfo") or b""
    rows = re.findall(rb"^(\w+):\s+(\d+) kB", raw, re.MULTILINE)
    return {name.decode(): int(kib) * 1024 for name, kib in rows}

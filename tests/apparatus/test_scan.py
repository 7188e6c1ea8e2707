"""What counts as a foreign engine or profiler, tried with real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_parity.apparatus.scan import Found, Scan, _python_target, compare, refuse_foreign, scan
from pytest_parity.errors import ForeignProcess, NothingCompared

NOBODY_OWN: frozenset[int] = frozenset()
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, **options: object) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes]
        options |= {"start_new_session": True, "stdin": subprocess.PIPE}
        child = subprocess.Popen(argv, **options)  # type: ignore[call-overload]
        children.append(child)
        deadline = time.monotonic() + 5  # until exec is done
        while Path(f"/proc/{child.pid}/cmdline").read_bytes() in (
            b"",
            Path("/proc/self/cmdline").read_bytes(),
        ):
            assert time.monotonic() < deadline
        return child

    yield run
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def program(folder: Path, name: str) -> str:
    """A real executable of that name that sleeps."""
    copy = folder / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy("/bin/sleep", copy)
    return str(copy)


def found_pid(pid: int, own: frozenset[int] = NOBODY_OWN) -> Found | None:
    processes = scan(own).processes
    assert processes is not None
    return next((f for f in processes if f.pid == pid), None)


@pytest.mark.parametrize(
    "name",
    ["llama-server", "llama-bench", "llama_cli", "ik_llama-server", "vllm", "sglang", "ollama",
     "mistralrs-server",
     "koboldcpp-linux", "text-generation-launcher", "tritonserver", "model.llamafile"],
)  # fmt: skip
def test_engine_by_executable(tmp_path: Path, start: Start, name: str) -> None:
    child = start(program(tmp_path, name), "60")
    found = found_pid(child.pid)
    assert found is not None
    assert (found.kind, found.name) == ("engine", name)
    assert found.argv_head == (str(tmp_path / name), "60")
    assert found.start_ticks > 0


@pytest.mark.parametrize("name", ["perf", "nsys", "ncu", "py-spy", "valgrind", "gdb", "strace", "xctrace"])
def test_profiler_by_executable(tmp_path: Path, start: Start, name: str) -> None:
    child = start(program(tmp_path, name), "60")
    found = found_pid(child.pid)
    assert found is not None
    assert (found.kind, found.name) == ("profiler", name)


def test_engine_in_a_folder_with_blanks_and_by_its_own_title(tmp_path: Path, start: Start) -> None:
    blank = start(program(tmp_path / "my tools", "llama-server"), "60")
    titled = start("VLLM::EngineCore 0", "60", executable="/bin/sleep")
    for child in (blank, titled):
        assert found_pid(child.pid) is not None


def test_deleted_executable_still_counts(tmp_path: Path, start: Start) -> None:
    path = program(tmp_path, "llama-server")
    child = start("harmless", "60", executable=path)
    os.unlink(path)
    assert found_pid(child.pid) is not None


@pytest.mark.parametrize("options", [["-m"], ["-I", "-m"], ["-X", "utf8", "-m"], ["-Wignore", "-um"]])
def test_engine_module(tmp_path: Path, start: Start, options: list[str]) -> None:
    package = tmp_path / "vllm" / "entrypoints"
    package.mkdir(parents=True)
    (package / "server.py").write_text("import time; time.sleep(60)")
    child = start(
        sys.executable, *options, "vllm.entrypoints.server", cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    found = found_pid(child.pid)
    assert found is not None
    assert found.name == "vllm.entrypoints.server"


def test_engine_script(tmp_path: Path, start: Start) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\nimport time; time.sleep(60)")
    script.chmod(0o755)
    child = start(str(script), "serve", "--api-key", "hunter2")
    found = found_pid(child.pid)
    assert found is not None
    assert found.argv_head == (sys.executable, str(script), "serve", "--api-key")
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    "argv",
    [
        ["sh", "-c", "sleep 60; grep llama-server /dev/null"],
        ["bash", "-c", "exec -a editor sleep 60", "llama-server"],
        ["tail", "-f", "/dev/null", "llama-server.md"],
        ["sh", "./llama-server.sh"],
        [sys.executable, "-c", "import time; time.sleep(60)", "-m", "vllm"],
        [sys.executable, "./llama-server.py"],
        [sys.executable, "./tool.py", "-m", "vllm"],
        [sys.executable, "-m", "vllmtools"],
    ],
)
def test_mention_of_an_engine_is_none(tmp_path: Path, start: Start, argv: list[str]) -> None:
    (tmp_path / "llama-server.md").touch()
    (tmp_path / "llama-server.sh").write_text("sleep 60\n:\n")
    for name in ("llama-server.py", "tool.py", "vllmtools.py"):
        (tmp_path / name).write_text("import time; time.sleep(60)")
    child = start(*argv, cwd=tmp_path)
    assert found_pid(child.pid) is None


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("python -m llama_cpp.server", "llama_cpp.server"),
        ("python -Im pytest_parity.engines.embedded --port 1", "pytest_parity.engines.embedded"),
        ("python -msglang.launch_server", "sglang.launch_server"),
        ("python -W ignore -X dev -m vllm", "vllm"),
        ("python --check-hash-based-pycs never -m vllm", "vllm"),
        ("python -m llama_cpp", None),
        ("python -m pytest -m vllm", None),
        ("python -W -m tool", None),
        ("python - -m vllm", None),
        ("python -c pass -m vllm", None),
        ("python -m", None),
        ("python", None),
    ],
)
def test_interpreter_options_are_read_as_it_reads_them(argv: str, name: str | None) -> None:
    target = _python_target(tuple(argv.split()))
    assert target == (None if name is None else ("engine", name))


def test_zombie_is_none(tmp_path: Path, start: Start) -> None:
    child = start(program(tmp_path, "llama-server"), "60")
    child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while b") Z" not in Path(f"/proc/{child.pid}/stat").read_bytes():
        assert time.monotonic() < deadline
    assert found_pid(child.pid) is None


def test_own_processes_are_left_out(tmp_path: Path, start: Start) -> None:
    engine = program(tmp_path, "llama-server")
    shell = start("sh", "-c", f"{engine} 60 & echo $!; wait", stdout=subprocess.PIPE)
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    deadline = time.monotonic() + 5
    while found_pid(child) is None:
        assert time.monotonic() < deadline
    for own in (child, shell.pid, os.getpid()):  # itself, its group, an ancestor
        assert found_pid(child, frozenset({own})) is None


def test_compare_and_refuse(tmp_path: Path, start: Start) -> None:
    before = scan(NOBODY_OWN)
    child = start(program(tmp_path, "llama-server"), "60")
    after = scan(NOBODY_OWN)
    # Other sessions on this machine may start engines at the same time.
    appeared = tuple(f for f in compare(before, after) if f.pid == child.pid)
    assert len(appeared) == 1
    assert compare(after, after) == ()
    reused = replace(appeared[0], start_ticks=appeared[0].start_ticks + 1)
    assert compare(after, replace(after, processes=(reused,))) == (reused,)
    with pytest.raises(ForeignProcess) as caught:
        refuse_foreign(replace(after, processes=appeared))
    assert str(caught.value) == (
        f"machine: expected no other engine and no profiler; found engine llama-server, pid {child.pid} "
        f"({tmp_path}/llama-server 60). End them, or wait until they are done, then run again."
    )
    refuse_foreign(replace(after, processes=()))


def test_nothing_seen_compares_to_nothing() -> None:
    blind = Scan(None, 0, None, None, None)
    for use in (lambda: compare(blind, blind), lambda: refuse_foreign(blind)):
        with pytest.raises(NothingCompared) as caught:
            use()
        assert str(caught.value) == (
            "process scan: expected a list of processes; found /proc unreadable or hidden from us. "
            "Run where /proc is mounted and shows at least our own processes."
        )


def test_facts_and_cost(start: Start) -> None:
    for _ in range(30):
        start("sleep", "60")
    costs = []
    for _ in range(5):
        began = time.process_time()
        seen = scan(NOBODY_OWN)
        costs.append(time.process_time() - began)
    assert seen.seen > 30
    assert seen.load is not None
    assert seen.memory_available_bytes is not None and seen.memory_available_bytes > 1 << 20
    assert seen.swap_used_bytes is not None and seen.swap_used_bytes >= 0
    assert min(costs) < 0.020 * max(1.0, seen.seen / 300)

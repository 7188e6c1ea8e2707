"""Starting and ending an engine's process; its misbehaviour is in test_supervisor.py."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_parity.engines.environment import scrubbed_environment
from pytest_parity.engines.process import EngineProcess, LaunchSpec
from pytest_parity.errors import ConfigurationError, EngineStartFailed, LeaseError

MEND = "Correct binary and argv of this engine in parity.toml, or build it."


def spec(folder: Path, *argv: str) -> LaunchSpec:
    return LaunchSpec(argv, {"ONLY": "this"}, folder, None, folder / "engine.log")


def wait_until(probe: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not probe():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_exactly_what_the_spec_says(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import os, sys; environment = open('/proc/self/environ').read().split(chr(0))\n"
        "print(environment, os.getcwd(), os.sched_getaffinity(0), sys.stdin.read() == '', sys.argv[1:])"
    )
    wanted = LaunchSpec(
        (sys.executable, "-I", "-X", "utf8", "-c", code, "caf\u00e9", "a b", ""), {"ONLY": "th\u00fcs"},
        tmp_path,        (cpu,), tmp_path / "engine.log",
    )  # fmt: skip
    with EngineProcess.start(wanted, ()) as engine:
        assert engine.pid == engine.pgid == os.getpgid(engine.pid) == os.getsid(engine.pid)
        wait_until(engine.ended)
        assert engine.ended() == "exit status 0"
    assert engine.log_tail(9) == (
        f"['ONLY=th\u00fcs', ''] {tmp_path} {{{cpu}}} True ['caf\u00e9', 'a b', '']",
    )


def test_stop_is_idempotent_and_the_context_manager_stops(tmp_path: Path) -> None:
    with EngineProcess.start(spec(tmp_path, "/bin/sleep", "60"), ()) as engine:
        assert engine.ended() is None
        first = engine.stop(1)
    assert engine.stop(1) is first
    assert str(first) == engine.ended() == "signal SIGTERM"
    assert engine.peak_rss_bytes == first.peak_tree_rss_bytes
    assert not Path(f"/proc/{engine.pid}").exists()


def test_crash_says_its_signal(tmp_path: Path) -> None:
    with EngineProcess.start(
        spec(tmp_path, "/bin/sh", "-c", "echo about to crash; kill -SEGV $$"), ()
    ) as engine:
        wait_until(engine.ended)
    assert engine.ended() == "signal SIGSEGV"
    assert engine.log_tail(1) == ("about to crash",)
    assert engine.log_tail(0) == ()


def test_program_found_through_the_path_of_its_own_environment(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "my-engine").symlink_to("/bin/sleep")
    found = LaunchSpec(("my-engine", "60"), {"PATH": str(tmp_path / "bin")}, None, None, tmp_path / "log")
    EngineProcess.start(found, ()).stop()


def make_text(path: Path) -> None:
    path.write_text("no program\n")


def make_unreadable_interpreter(path: Path) -> None:
    path.write_text("#!/no/such/interpreter\n")


@pytest.mark.parametrize(
    ("make", "mode", "why"),
    [
        (lambda path: None, None, "exec: No such file or directory"),
        (make_text, 0o644, "exec: Permission denied"),
        (make_text, 0o755, "exec: Exec format error"),
        (Path.mkdir, 0o755, "exec: Permission denied"),
        (
            make_unreadable_interpreter,
            0o755,
            "exec: No such file or directory (the file exists: its interpreter or its loader does not)",
        ),
    ],
)
def test_program_that_cannot_be_executed(
    tmp_path: Path, make: Callable[[Path], None], mode: int | None, why: str
) -> None:
    program = tmp_path / "engine"
    make(program)
    if mode is not None:
        program.chmod(mode)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineStartFailed) as caught:
        EngineProcess.start(spec(tmp_path, str(program)), ())
    assert (
        str(caught.value) == f"engine {program}: expected a program that can be executed; found {why}. {MEND}"
    )
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cwd": "missing"}, "working folder: No such file or directory"),
        ({"cpus": (100_000,)}, "CPU affinity: Invalid argument"),
        ({"log_path": "missing/log"}, "{folder}/missing/log: No such file or directory"),
    ],
)
def test_surroundings_that_cannot_be_had(tmp_path: Path, options: dict[str, object], why: str) -> None:
    paths = {name: tmp_path / str(value) for name, value in options.items() if name != "cpus"}
    merged = {"cwd": tmp_path, "cpus": None, "log_path": tmp_path / "log", **options, **paths}
    with pytest.raises(EngineStartFailed) as caught:
        EngineProcess.start(LaunchSpec(argv=("/bin/true",), env={}, **merged), ())  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"engine /bin/true: expected a program that can be executed; found {why.format(folder=tmp_path)}. "
        f"{MEND}"
    )


def test_lease_descriptor_that_is_closed(tmp_path: Path) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(LeaseError) as caught:
        EngineProcess.start(spec(tmp_path, "/bin/true"), (fd,))
    assert str(caught.value) == (
        f"lease descriptor {fd}: expected it open while an engine is started; found it closed. "
        "Close the lease only after the engine was stopped."
    )
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("argv", ["llama-server --port 1", (), ("",), ("a", 1), ("a\0b",), ["a"]])
def test_argv_that_cannot_be_meant(tmp_path: Path, argv: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LaunchSpec(argv, {}, None, None, tmp_path / "log")  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"engine argv: expected a tuple of strings that begins with the program; found {argv!r}. "
        'Write argv = ["program", "--option", "value"] in parity.toml.'
    )


def test_no_cpus_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LaunchSpec(("a",), {}, None, (), tmp_path / "log")
    assert str(caught.value) == (
        "cpus of a: expected one logical CPU or more; found none. "
        "Leave cpus out to let the engine run on every CPU of this process."
    )


def test_fifty_cycles_leave_nothing(tmp_path: Path) -> None:
    def everything() -> tuple[list[str], set[str]]:
        return sorted(os.listdir("/proc/self/fd")), {f.name for f in tmp_path.iterdir()}

    wanted = spec(tmp_path, "/bin/sleep", "60")
    EngineProcess.start(wanted, ()).stop()
    before = everything()
    pids = []
    for _ in range(50):
        engine = EngineProcess.start(wanted, ())
        pids.append(engine.pid)
        engine.stop()
    assert everything() == before
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    children = "".join(task.read_text() for task in Path("/proc/self/task").glob("*/children"))
    assert children.split() == []


def test_start_and_stop_are_cheap(tmp_path: Path) -> None:
    """Processor time of the supervisor, which a busy machine does not stretch."""
    costs = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        EngineProcess.start(spec(tmp_path, "/bin/sleep", "60"), ()).stop()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(costs) < 0.060


def test_environment_is_scrubbed() -> None:
    base = {
        "PATH": "/bin", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "1", "TOKENIZERS_PARALLELISM": "false",
        "HF_TOKEN": "t", "LLAMA_ARG_CTX_SIZE": "1", "LLAMA_SERVER_SLOTS_DEBUG": "1",
        "GGML_CUDA_FORCE_MMQ": "1",
        "LD_PRELOAD": "x.so", "HOME": "/home/me", "PROXY": "http://me:pass@host/", "SET": "old",
    }  # fmt: skip
    kept, dropped = scrubbed_environment(
        base, ["TOKENIZERS_*", "HF_*", "LLAMA_*", "GGML_*", "PROXY"], {"SET": "new", "GGML_CUDA_GRAPHS": "0"}
    )
    assert kept == {
        "PATH": "/bin", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "1", "TOKENIZERS_PARALLELISM": "false",
        "HOME": "/home/me", "SET": "new", "GGML_CUDA_GRAPHS": "0",
    }  # fmt: skip
    assert dropped == (
        "GGML_CUDA_FORCE_MMQ", "HF_TOKEN", "LD_PRELOAD", "LLAMA_ARG_CTX_SIZE", "LLAMA_SERVER_SLOTS_DEBUG",
        "PROXY",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [("VLLM_API_KEY", "k"), ("my_password", "p"), ("PROXY", "http://me:pass@host")]
)
def test_secret_in_a_declared_setting(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        scrubbed_environment({}, (), {name: value})
    assert str(caught.value) == (
        f"environment variable {name} of an engine: expected settings that may stand in a receipt; found a "
        "name or a "
        "value that looks like a secret. Let the engine read the secret from a file outside of the "
        "repository."
    )

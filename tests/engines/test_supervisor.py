"""Engines that misbehave, and a pytest that dies: afterwards nothing lives and the lease is free."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_parity.engines.process import Ended, EngineProcess, LaunchSpec
from pytest_parity.engines.supervisor import Log
from pytest_parity.errors import EngineDied

SUPERVISOR = Path(sys.modules[EngineProcess.__module__].__file__ or "").with_name("supervisor.py")
Engine = Callable[..., EngineProcess]

ESCAPING = """
import os, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        for fd in range(3): os.close(fd)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def wait_until(probe: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not probe():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def spec(tmp_path: Path, *argv: str, **options: object) -> LaunchSpec:
    return LaunchSpec(argv, {}, tmp_path, None, tmp_path / "engine.log", **options)  # type: ignore[arg-type]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    started: list[EngineProcess] = []

    def start(*argv: str, **options: object) -> EngineProcess:
        started.append(EngineProcess.start(spec(tmp_path, *argv, **options), ()))
        return started[-1]

    yield start
    for process in started:
        try:
            process.stop(0)
        except EngineDied:
            pass


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def said(process: EngineProcess) -> int:
    """The pid that the engine printed."""
    wait_until(lambda: process.log_tail(1))
    return int(process.log_tail(1)[0])


PYTEST = """
import sys, time
from pathlib import Path
from pytest_parity.apparatus.lease import Lease
from pytest_parity.engines.process import EngineProcess, LaunchSpec
folder = Path(sys.argv[1])
lease = Lease.acquire("gpu0", folder / "device.lock", "test")
argv = (sys.executable, "-c", sys.argv[2])
engine = EngineProcess.start(LaunchSpec(argv, {}, folder, None, folder / "engine.log"), [lease.fd])
print(engine.pid, flush=True)
if sys.argv[3] == "fork":
    import os
    if os.fork() == 0:
        lease.close()
        time.sleep(20)
        os._exit(0)
time.sleep(600)
"""


def locked(path: Path) -> bool:
    with path.open("rb") as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(
    "code", [ESCAPING, DEAF, "import time; time.sleep(600)"], ids=["escaping", "deaf", "plain"]
)
@pytest.mark.parametrize("how", ["alone", "fork"])
def test_pytest_killed_ends_engine_and_frees_the_lease(tmp_path: Path, code: str, how: str) -> None:
    """With ``fork``, a fork of pytest keeps the life-line open: the supervisor must notice all the same."""
    pytest_ = subprocess.Popen(
        [sys.executable, "-c", PYTEST, str(tmp_path), code, how],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert pytest_.stdout is not None
    try:
        pids = [int(pytest_.stdout.readline())]
        log = tmp_path / "engine.log"
        if code == ESCAPING:
            wait_until(lambda: log.read_bytes().endswith(b"\n"))
            pids.append(int(log.read_text()))
        assert locked(tmp_path / "device.lock")
        assert all(alive(pid) for pid in pids)
        pytest_.send_signal(signal.SIGKILL)
        wait_until(lambda: not locked(tmp_path / "device.lock"), limit_s=5.0)
        assert [pid for pid in pids if alive(pid)] == []
    finally:
        os.killpg(pytest_.pid, signal.SIGKILL)
        pytest_.communicate()


def test_lease_is_held_by_engine_and_supervisor_until_the_last_process(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    process = EngineProcess.start(spec(tmp_path, "/bin/sleep", "60"), [fd])
    supervisor = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (process.pid, supervisor):
        assert os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), os.stat(path))
    os.close(fd)
    assert locked(path)
    process.stop()
    assert not locked(path)


def test_engine_inherits_nothing_else(tmp_path: Path, engine: Engine) -> None:
    with (tmp_path / "open in pytest").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        process = engine("/bin/sleep", "60")
        assert sorted(os.listdir(f"/proc/{process.pid}/fd")) == ["0", "1", "2"]
    status = Path(f"/proc/{process.pid}/status").read_text()
    for name in ("SigIgn", "SigBlk", "SigCgt"):
        assert re.search(rf"^{name}:\t0+$", status, re.MULTILINE)


def test_orderly_end(engine: Engine) -> None:
    ended = engine("/bin/sleep", "60").stop()
    assert (ended.how, ended.phase, ended.killed, ended.escaped) == ("signal SIGTERM", "stop", False, 0)


def test_engine_that_ignores_sigterm(engine: Engine) -> None:
    process = engine(*python(DEAF))
    wait_until(lambda: process.log_tail(1) == ("deaf",))
    began = time.monotonic()
    ended = process.stop(0.3)
    assert 0.3 <= time.monotonic() - began < 3
    assert (ended.how, ended.killed) == ("signal SIGKILL", True)
    assert not alive(process.pid)


def test_stopped_engine(engine: Engine) -> None:
    process = engine("/bin/sleep", "60")
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert process.ended() is None
    ended = process.stop(5)
    assert time.monotonic() - began < 2
    assert (ended.how, ended.killed) == ("signal SIGTERM", False)


def test_escaped_grandchild(engine: Engine) -> None:
    process = engine(*python(ESCAPING))
    grandchild = said(process)
    assert process.pids() == {process.pid, grandchild}
    ended = process.stop(0.1)
    assert not alive(grandchild)
    assert (ended.killed, ended.escaped) == (True, 1)
    assert process.pids() == frozenset()


def test_engine_that_leaves_a_child_behind(engine: Engine) -> None:
    """Its end is reported as it was, and what it left is ended without being asked."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.exit(7)"
    process = engine(*python(code))
    left = said(process)
    wait_until(process.ended)
    wait_until(lambda: not alive(left))
    ended = process.stop()
    assert (ended.how, ended.phase) == ("exit status 7", "itself")
    assert process.ended() == "exit status 7"


def test_forking_without_end(engine: Engine) -> None:
    """Faster than one look at /proc: the end is only the kernel's word that no child is left."""
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.002)  # then it forks on in its parent's place
    else:
        time.sleep(0.02)
        os._exit(0)
"""
    process = engine(*python(code))
    said(process)
    time.sleep(0.2)
    process.stop(0.1)
    code_line = code.encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert code_line not in Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue


def test_ctrl_c_is_not_the_supervisors(tmp_path: Path, engine: Engine) -> None:
    process = engine("/bin/sleep", "60")
    supervisor = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert os.getsid(supervisor) == supervisor != os.getsid(0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        os.kill(supervisor, number)
    time.sleep(0.2)
    assert process.ended() is None
    os.kill(supervisor, signal.SIGTERM)
    wait_until(process.ended)
    assert process.ended() == "signal SIGTERM (supervisor told to end)"


def gone(program: str, why: str) -> str:
    return (
        f"engine {program}: expected its supervisor to report that every process of it is gone; "
        f"found no report, {why}; alive in the engine's session: none. "
        "A process that left the session may live on and hold the lease: the next lease names it."
    )


def test_killed_supervisor_takes_the_engine_along(engine: Engine) -> None:
    process = engine("/bin/sh", "-c", "sleep 600 & echo $!; wait")
    child = said(process)
    os.kill(int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    wait_until(process.ended)
    assert process.ended() == "its supervisor was killed"
    wait_until(lambda: not alive(process.pid))
    with pytest.raises(EngineDied) as caught:
        process.stop()
    assert str(caught.value) == gone("/bin/sh", "its supervisor was killed")
    assert not alive(child)
    assert process.stop().phase == "supervisor gone"


def test_broken_supervisor_ends_everything_first(engine: Engine) -> None:
    process = engine(*python(ESCAPING))
    grandchild = said(process)
    assert process._child.stdin is not None
    process._child.stdin.write(b"garbage\n")
    wait_until(process.ended)
    wait_until(lambda: not alive(process.pid) and not alive(grandchild), limit_s=2)
    why = "its supervisor broke: json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    wait_until(lambda: process.ended() == why)
    with pytest.raises(EngineDied) as caught:
        process.stop()
    assert str(caught.value) == gone(sys.executable, why)


def test_memory_limit(engine: Engine) -> None:
    process = engine(
        *python("import time; b = bytearray(300 << 20); time.sleep(600)"), memory_limit_bytes=100 << 20
    )
    wait_until(process.ended)
    assert re.fullmatch(r"signal SIGKILL \(memory limit: \d+ of 104857600 bytes\)", process.ended() or "")
    ended = process.stop()
    assert ended.killed
    assert ended.peak_tree_rss_bytes is not None and ended.peak_tree_rss_bytes > 100 << 20


def test_peak_memory_of_the_whole_tree(engine: Engine) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
b = bytearray(100 << 20)
print(os.getpid(), flush=True)
time.sleep(600)
"""
    process = engine(*python(code))
    wait_until(lambda: len(process.log_tail(3)) == 2)
    wait_until(lambda: (process.peak_rss_bytes or 0) > 200 << 20)
    ended = process.stop()
    assert ended.peak_tree_rss_bytes is not None and 200 << 20 < ended.peak_tree_rss_bytes < 300 << 20
    assert ended.peak_main_rss_bytes is not None and 100 << 20 < ended.peak_main_rss_bytes < 150 << 20


def run_to_end(process: EngineProcess) -> Ended:
    wait_until(process.ended)
    return process.stop()


def test_megabyte_without_newline(tmp_path: Path, engine: Engine) -> None:
    process = engine(*python("import os; os.write(1, b'x' * (1 << 20))"), log_cap_bytes=65536)
    ended = run_to_end(process)
    log = (tmp_path / "engine.log").read_bytes()
    assert ended.log_bytes == 1 << 20
    marker = b"\n[pytest-parity: %d bytes of the log left out here]\n" % ended.log_left_out_bytes
    head, found, tail = log.partition(marker)
    assert found and set(head + tail) == {ord("x")}
    assert len(head) == len(tail) == 32768
    assert ended.log_left_out_bytes == (1 << 20) - 65536
    assert [len(line) for line in process.log_tail(9)] == [2000, len(marker) - 2, 2000]


def test_log_keeps_whole_lines_of_both_ends(tmp_path: Path, engine: Engine) -> None:
    code = "for i in range(50000): print('line', i)\nimport sys; sys.stdout.flush(); sys.exit('last words')"
    ended = run_to_end(engine(*python(code), log_cap_bytes=65536))
    log = (tmp_path / "engine.log").read_text().split("\n")
    at = next(i for i, line in enumerate(log) if line.startswith("[pytest-parity"))
    assert log[: at - 1] == [f"line {i}" for i in range(at - 1)] or log[:at] == [
        f"line {i}" for i in range(at)
    ]
    first = int(log[at + 1].split()[1])
    assert log[at + 1 :] == [*(f"line {i}" for i in range(first, 50000)), "last words", ""]
    assert (tmp_path / "engine.log").stat().st_size < 65536 + 100
    assert ended.log_left_out_bytes > 0
    assert ended.how == "exit status 1"


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_log_of_every_length_is_beginning_and_end(tmp_path: Path, piece: int) -> None:
    """Up to its cap a log is kept byte for byte; beyond, every kept line is a line of the original."""
    for lines in (1, 5, 11, 12, 30, 31, 60):
        text = b"".join(b"%06d:......\n" % i for i in range(lines))  # 14 bytes a line
        log = Log(str(tmp_path / "log"), 300)
        for at in range(0, len(text), piece):
            log.write(text[at : at + piece])
            log.flush()
        kept = (tmp_path / "log").read_bytes()
        os.close(log._fd)
        if len(text) <= 300:
            assert kept == text
            continue
        assert f"[pytest-parity: {log.left_out} bytes of the log left out here]".encode() in kept
        assert {line for line in kept.splitlines() if line and not line.startswith(b"[")} <= set(
            text.splitlines()
        )
        assert kept.endswith(text[-100:])
        assert kept.startswith(text[:100])


def test_output_that_is_no_utf8(engine: Engine) -> None:
    process = engine(*python("import os; os.write(2, b'caf\\xe9\\n\\xff\\x00')"))
    run_to_end(process)
    assert process.log_tail(5) == ("caf\ufffd", "\ufffd\0")


def test_full_disk_does_not_stop_the_engine(tmp_path: Path) -> None:
    """The supervisor under a file size limit of nothing stands for a full disk."""
    command = f"ulimit -f 0; exec {sys.executable} -I -S -X utf8 {SUPERVISOR}"
    supervisor = subprocess.Popen(["bash", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    request: dict[str, object] = {
        "argv": ["/bin/sh", "-c", "echo lost; exit 3"], "env": {}, "cwd": "/", "cpus": None,
        "memory_limit": None,
        "log": str(tmp_path / "log"), "log_cap": 1000, "parent": os.getpid(),
    }  # fmt: skip
    assert supervisor.stdin is not None and supervisor.stdout is not None
    supervisor.stdin.write(json.dumps(request).encode() + b"\n")
    supervisor.stdin.flush()
    events = [json.loads(line) for line in supervisor.stdout.read().splitlines()]
    supervisor.communicate()
    assert [event["event"] for event in events] == ["started", "exited", "stopped"]
    assert events[1]["status"] == 3
    assert events[2]["log_trouble"] == "[Errno 27] File too large"


def test_life_line_cut_before_the_spec() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SUPERVISOR)], input=b'{"argv": ["', capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

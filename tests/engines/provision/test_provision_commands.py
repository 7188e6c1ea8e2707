"""Running a program: lines as they come, its tail, its deadline, and that nothing of it stays behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from provision_support import silent

from pytest_parity.engines.provision.commands import TAIL_LINES, Finished, run_command


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_lines_of_both_streams_and_the_tail() -> None:
    lines: list[str] = []
    code = (
        f"import sys; [print(i, flush=True) for i in range({TAIL_LINES + 5})]; print('end', file=sys.stderr)"
    )
    finished = run_command(python(code), report=lines.append, timeout_s=30)
    assert finished.returncode == 0
    assert lines[-1] == "end"
    assert len(lines) == TAIL_LINES + 6
    assert finished.tail == tuple(lines[-TAIL_LINES:])


def test_status_environment_and_folder(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ.get('A'), os.environ.get('HOME'), os.getcwd()); sys.exit(3)"
    finished = run_command(python(code), report=silent, timeout_s=30, env={"A": "1"}, cwd=tmp_path)
    assert finished == Finished(3, (f"1 None {tmp_path}",))


def test_deadline_ends_the_whole_group(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(child)!r}, 'w').write(str(p.pid))\n"
        "print('started', flush=True)\n"
        "time.sleep(60)"
    )
    started = time.monotonic()
    finished = run_command(python(code), report=silent, timeout_s=2.0)
    assert time.monotonic() - started < 20
    assert finished.returncode is None
    assert finished.ending == "it ran past its time limit and was ended"
    assert _gone(int(child.read_text()))


def test_report_that_raises_ends_the_program() -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt) as caught:
        run_command(python(code), report=interrupt, timeout_s=30)
    assert _gone(int(str(caught.value)))


def test_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_command([str(tmp_path / "none")], report=silent, timeout_s=1)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(1, "exit status 1"), (-11, "it was ended by signal SIGSEGV"), (-200, "it was ended by signal 200")],
)
def test_endings_in_words(returncode: int, words: str) -> None:
    assert Finished(returncode, ()).ending == words


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            # A killed grandchild may stay a zombie where nobody reaps it: that runs nothing either.
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False

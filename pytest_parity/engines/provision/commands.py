"""Runs one program: its lines go to a callback as they come, its tail is kept, and it has a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Report = Callable[[str], None]
"""Takes one line of progress, without its newline."""

TAIL_LINES = 40


@dataclass(frozen=True)
class Finished:
    """How a program ended.

    ``returncode`` is the exit status, negative for a signal, ``None`` when it ran past its limit and was
    ended; ``tail`` holds the last lines of its standard output and error together, oldest first.
    """

    returncode: int | None
    tail: tuple[str, ...]

    @property
    def ending(self) -> str:
        """The end in words, for an error text."""
        if self.returncode is None:
            return "it ran past its time limit and was ended"
        if self.returncode < 0:
            return f"it was ended by signal {_signal_name(-self.returncode)}"
        return f"exit status {self.returncode}"


class Runner(Protocol):
    """What runs a program; tests pass their own."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        report: Report,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Finished:
        """Run ``argv`` to its end, at most ``timeout_s`` seconds; raises ``FileNotFoundError`` as exec does."""
        ...


def run_command(
    argv: Sequence[str],
    *,
    report: Report,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run ``argv`` (never through a shell), pass each line to ``report``, end the whole group at the limit.

    ``env`` replaces the environment when it is given. Raises ``OSError`` when the program can't be executed.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        cwd=cwd,
        text=True,
        errors="replace",
        # A compiler's children must go with it: they are ended as one group.
        start_new_session=True,
    )
    expired = threading.Event()

    def end() -> None:
        expired.set()
        _end_group(process.pid)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip()
            tail.append(text)
            report(text)
        returncode: int | None = process.wait()
    except BaseException:
        # Ctrl-C, or a callback that raised: nothing may go on compiling behind our back.
        _end_group(process.pid)
        process.wait()
        raise
    finally:
        timer.cancel()
        if process.stdout is not None:
            process.stdout.close()
    if expired.is_set():
        returncode = None
    return Finished(returncode, tuple(tail))


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

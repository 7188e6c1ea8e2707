"""An engine's process as pytest sees it: started through the supervisor, watched, and ended without rest.

Nothing here talks to the engine. :mod:`pytest_parity.engines.supervisor` owns the process; this side
holds the life-line, so that the engine ends with pytest however pytest ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from pytest_parity.errors import ConfigurationError, EngineDied, EngineError, EngineStartFailed, LeaseError

__all__ = ["Ended", "EngineProcess", "LaunchSpec"]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_START_S = 30.0  # a supervisor that says nothing for so long is broken; exec itself takes milliseconds
_END_S = 15.0  # beyond the grace: SIGKILL and the collection of every descendant
_LINE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to start, exactly. Raises ConfigurationError where it cannot be meant.

    ``argv``: arguments, never a shell string. ``env``: the whole environment. ``cwd``: ``None`` for pytest's
    own folder. ``cpus``: logical CPUs to be bound to, ``None`` for pytest's own. ``log_path``: gets stdout
    and stderr, about ``log_cap_bytes`` of them (beginning and end). ``memory_limit_bytes``: the engine is
    killed when its processes together are seen above it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path | None
    cpus: tuple[int, ...] | None
    log_path: Path
    memory_limit_bytes: int | None = None
    log_cap_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        whole = isinstance(self.argv, tuple) and self.argv and self.argv[0]
        if not whole or not all(isinstance(part, str) and "\0" not in part for part in self.argv):
            raise ConfigurationError(
                "engine argv",
                expected="a tuple of strings that begins with the program",
                found=repr(self.argv),
                mend='Write argv = ["program", "--option", "value"] in parity.toml.',
            )
        if self.cpus == ():
            raise ConfigurationError(
                f"cpus of {self.argv[0]}",
                expected="one logical CPU or more",
                found="none",
                mend="Leave cpus out to let the engine run on every CPU of this process.",
            )


@dataclass(frozen=True, slots=True)
class Ended:
    """How an engine ended. ``how``: ``exit status 3`` or ``signal SIGKILL``, and why if we did it.

    ``phase``: ``itself``, ``stop`` or the memory limit. ``killed``: SIGTERM and the grace were not enough.
    ``escaped``: processes that had left the engine's session and were ended all the same.
    ``peak_tree_rss_bytes``: highest sum of resident memory of all its processes, sampled at 10 Hz; shared
    pages count once per process, and a new process counts half a second after its start at the latest.
    ``peak_main_rss_bytes``: the kernel's high-water mark of the main process, last read at most 0.1 s before
    its end. ``None`` is unknown.
    """

    how: str
    phase: str
    killed: bool
    escaped: int
    peak_tree_rss_bytes: int | None
    peak_main_rss_bytes: int | None
    log_bytes: int
    log_left_out_bytes: int
    log_trouble: str | None

    def __str__(self) -> str:
        return self.how


class EngineProcess:
    """A running engine. Made by :meth:`start`; ended by :meth:`stop` or as a context manager."""

    def __init__(self, spec: LaunchSpec, child: subprocess.Popen[bytes]) -> None:
        self.spec = spec
        self.pid = self.pgid = 0
        self._started_ticks = 0
        self._child = child
        self._lock = threading.RLock()
        self._buffer = b""
        self._events: dict[str, dict[str, Any]] = {}
        self._noise: list[str] = []
        self._ended: Ended | None = None

    @classmethod
    def start(cls, spec: LaunchSpec, lease_fds: Sequence[int]) -> Self:
        """Start the engine in a session of its own, holding ``lease_fds``; returns once it is executing.

        Raises EngineStartFailed with the system's reason if it cannot be executed, LeaseError for a closed
        lease.
        """
        for fd in lease_fds:
            _refuse_closed(fd)
        interpreter = [sys.executable, "-I", "-S", "-X", "utf8", str(_SUPERVISOR)]
        # Its own session: neither Ctrl-C nor a closed terminal ends it before pytest says so.
        child = subprocess.Popen(
            interpreter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
            pass_fds=tuple(lease_fds), start_new_session=True,
        )  # fmt: skip
        engine = cls(spec, child)
        try:
            engine._say(
                argv=spec.argv, env=dict(spec.env), cwd=os.path.abspath(spec.cwd or "."), cpus=spec.cpus,
                log=os.path.abspath(spec.log_path), log_cap=spec.log_cap_bytes,
                memory_limit=spec.memory_limit_bytes, parent=os.getpid(),
            )  # fmt: skip
            if not engine._wait_for("started", _START_S):
                raise engine._start_failed()
        except BaseException:
            engine._let_go(_END_S)
            raise
        engine.pid = engine.pgid = engine._events["started"]["pid"]
        engine._started_ticks = _stat(engine.pid)[2]
        return engine

    def ended(self) -> str | None:
        """``None`` while the engine's main process runs, else how it ended; never waits."""
        if self._ended is not None:
            return self._ended.how
        open_ = self._read(0.0)
        if "exited" in self._events:
            return _how(self._events["exited"])
        return None if open_ else self._supervisor_gone()

    @property
    def peak_rss_bytes(self) -> int | None:
        """Highest resident memory of its processes together so far, as in :class:`Ended`."""
        if self._ended is not None:
            return self._ended.peak_tree_rss_bytes
        last_word = self._report() or self._events.get("stopped", {})
        return last_word.get("peak_tree_rss") or None

    def pids(self) -> frozenset[int]:
        """Every living process of the engine, escaped ones too; empty once it has ended."""
        return frozenset() if self._ended is not None else frozenset(self._report().get("pids", ()))

    def log_tail(self, n_lines: int) -> tuple[str, ...]:
        """The last lines of its output, undecodable bytes as U+FFFD, each cut to 2,000 characters."""
        try:
            with open(self.spec.log_path, "rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - 256 * 1024))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ()
        lines = text.removesuffix("\n").split("\n") if text else []
        return tuple(line[-_LINE_LIMIT:] for line in lines[-n_lines:]) if n_lines > 0 else ()

    def stop(self, grace_s: float = 5.0) -> Ended:
        """SIGTERM, ``grace_s`` seconds, SIGKILL; returns when the kernel confirms that no descendant is left.

        Calling it again returns the same. Raises EngineError naming the processes that SIGKILL does not end,
        and EngineDied where the supervisor was killed, so that only the engine's own session could be ended.
        """
        with self._lock:
            if self._ended is not None:
                return self._ended
            try:
                self._say(do="stop", grace_s=grace_s)
            except BrokenPipeError:
                pass  # it ended by itself; what it said about that is still in the pipe
            stopped = self._wait_for("stopped", grace_s + _END_S)
            if not stopped and "stuck" in self._events and self._child.poll() is None:
                raise EngineError(
                    f"engine {self.spec.argv[0]}",
                    expected="no process of it after SIGKILL",
                    found=f"pids {self._events['stuck']['pids']} alive, and the lease with them",
                    mend="They wait for the kernel or are another user's; the device is free once they end.",
                )
            self._let_go(2.0)
            self._ended = self._summary()
            if not stopped:
                self._end_session()
            return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _say(self, **fields: object) -> None:
        assert self._child.stdin is not None
        line = json.dumps(fields).encode() + b"\n"
        while line:
            line = line[self._child.stdin.write(line) or 0 :]

    def _read(self, timeout_s: float) -> bool:
        """Take in what the supervisor said within ``timeout_s`` seconds; false once it can say no more."""
        with self._lock:
            pipe = self._child.stdout
            if pipe is None or pipe.closed:
                return False
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            if not poll.poll(timeout_s * 1000):
                return True
            data = os.read(pipe.fileno(), 65536)
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                if line.startswith(b'{"event"'):
                    event = json.loads(line)
                    self._events[event["event"]] = event
                else:  # the interpreter itself complains
                    self._noise.append(line.decode("utf-8", "replace"))
            return bool(data)

    def _wait_for(self, event: str, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while event not in self._events and (left := deadline - time.monotonic()) > 0:
            if not self._read(left):
                break
        return event in self._events

    def _report(self) -> dict[str, Any]:
        """A fresh word from the supervisor; empty if it has none."""
        with self._lock:
            self._events.pop("report", None)
            try:
                self._say(do="report")
            except (BrokenPipeError, ValueError):  # ended, or closed
                return {}
            self._wait_for("report", 2.0)
            return self._events.get("report", {})

    def _let_go(self, wait_s: float) -> None:
        """Close both pipes and wait for the supervisor; one that hangs is killed, and its engine with it."""
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()
        try:
            child.wait(wait_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        while self._read(0.0) and select.select([child.stdout], [], [], 0.0)[0]:
            pass
        child.stdout.close()

    def _end_session(self) -> NoReturn:
        """The supervisor is gone without a word: end what is left of the engine's session, and say so."""
        deadline = time.monotonic() + _END_S
        left: list[int] = []
        # A session's number is not given away while it has a member; with a new leader it is a stranger's.
        while _stat(self.pid)[2] in (0, self._started_ticks) and time.monotonic() < deadline:
            everyone = ((int(name), _stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
            left = [pid for pid, (state, session, _) in everyone if session == self.pid and state not in "ZX"]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        raise EngineDied(
            f"engine {self.spec.argv[0]}",
            expected="its supervisor to report that every process of it is gone",
            found=f"no report, {self._supervisor_gone()}; alive in the engine's session: {left or 'none'}",
            mend="A process that left the session may live on and hold the lease: the next lease names it.",
        )

    def _supervisor_gone(self) -> str:
        said = f"broke: {self._noise[-1]}" if self._noise else "was killed"
        return f"its supervisor {said}"

    def _summary(self) -> Ended:
        stopped, exited = self._events.get("stopped", {}), self._events.get("exited")
        return Ended(
            how=_how(exited) if exited else self._supervisor_gone(),
            phase=stopped.get("phase", "supervisor gone"),
            killed=stopped.get("killed", True),
            escaped=stopped.get("escaped", 0),
            peak_tree_rss_bytes=stopped.get("peak_tree_rss") or None,
            peak_main_rss_bytes=stopped.get("peak_main_hwm") or None,
            log_bytes=stopped.get("log_bytes", 0),
            log_left_out_bytes=stopped.get("log_left_out", 0),
            log_trouble=stopped.get("log_trouble") or None,
        )

    def _start_failed(self) -> EngineStartFailed:
        program = self.spec.argv[0]
        why = (
            self._events.get("failed", {}).get("why")
            or " / ".join(self._noise[-3:])
            or "no word from the supervisor"
        )
        if why == "exec: No such file or directory" and os.path.exists(program):
            why += " (the file exists: its interpreter or its loader does not)"
        return EngineStartFailed(
            f"engine {program}",
            expected="a program that can be executed",
            found=why,
            mend="Correct binary and argv of this engine in parity.toml, or build it.",
        )


def _refuse_closed(fd: int) -> None:
    # Not left to the system: the closed number would be reused at once, and a stranger's file inherited.
    try:
        os.fstat(fd)
    except OSError as error:
        raise LeaseError(
            f"lease descriptor {fd}",
            expected="it open while an engine is started",
            found="it closed",
            mend="Close the lease only after the engine was stopped.",
        ) from error


def _how(exited: Mapping[str, Any]) -> str:
    status, phase = exited["status"], exited["phase"]
    how = f"signal {_signal_name(-status)}" if status < 0 else f"exit status {status}"
    return how if phase in ("itself", "stop") else f"{how} ({phase})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def _stat(pid: int) -> tuple[str, int, int]:
    """(state, session, start in clock ticks since boot) of a process; ("X", 0, 0) where there is none."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X", 0, 0
    fields = raw.rpartition(")")[2].split()
    return fields[0], int(fields[3]), int(fields[19])

"""The supervisor: a small program of its own that owns an engine and ends everything the engine started.

Run as ``python -I -S -X utf8 supervisor.py`` (standard library only, so that it starts in no time).
Descriptor 0 is the life-line from pytest: one JSON line with the spec, then commands. End of file on it
means that pytest is dead, even by SIGKILL, and ends the engine. Descriptor 1 carries events as JSON lines.
As a subreaper it becomes the parent of every process that escapes (double fork, setsid), so "no children
left" from the kernel *proves* that nothing of the engine lives. Only then does it exit and let go of the
lease's descriptors, which it and the engine inherit.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing costs a tenth of this program's whole start
if TYPE_CHECKING:
    from typing import Any

SAMPLE_S = 0.1
"""Seconds between two samples of the tree's memory."""
_RESCAN_S = 0.5  # at most this often is the whole of /proc read for new descendants
_LIFELINE_GRACE_S = 1.0
_STUCK_S = 5.0  # after SIGKILL, before survivors are reported
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Log:
    """The engine's output in one file of about ``cap`` bytes: its beginning and its end, in whole lines.

    The end is kept in memory and put behind the beginning by :meth:`flush`. A log that cannot be written
    never stops the engine: ``trouble`` says what went wrong.
    """

    def __init__(self, path: str, cap: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._head_cap, self._tail_cap = cap // 2, cap - cap // 2
        self._head, self._line_end = 0, 0  # bytes of the beginning; those of its whole lines
        self._tail, self._dirty = bytearray(), False
        self.total, self.left_out, self.trouble = 0, 0, ""

    def write(self, data: bytes) -> None:
        self.total += len(data)
        head = data[: self._head_cap - self._head]
        if head:
            self._put(head, self._head)
            self._line_end = self._head + head.rfind(b"\n") + 1 if b"\n" in head else self._line_end
            self._head += len(head)
        if len(head) < len(data):
            self._tail += data[len(head) :]
            self._dirty = True
            if len(self._tail) > 2 * self._tail_cap:
                del self._tail[: -self._tail_cap]

    def flush(self) -> None:
        """Put the end behind the beginning, with a line between them that counts what was left out."""
        if not self._dirty:
            return
        self._dirty = False
        at, tail = self._head, bytes(self._tail[-self._tail_cap :])
        if at + len(tail) < self.total:
            at = self._line_end or at
            cut = tail.find(b"\n") + 1
            tail = tail[cut:] if cut < len(tail) else tail  # never all of it: one endless line stays as it is
            self.left_out = self.total - at - len(tail)
            tail = b"\n[pytest-parity: %d bytes of the log left out here]\n" % self.left_out + tail
        self._put(tail, at)
        try:
            os.ftruncate(self._fd, at + len(tail))
        except OSError as error:
            self.trouble = str(error)

    def _put(self, data: bytes, offset: int) -> None:
        try:
            while data:
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            self.trouble = str(error)


def read_proc(path: str) -> bytes:
    """A small file of /proc; empty once the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 8192)
    except OSError:
        return b""
    finally:
        os.close(fd)


def descendants() -> dict[int, int]:
    """Living descendants of this process, zombies left out: pid to session."""
    children: dict[int, list[tuple[int, bytes, int]]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        # The command's name stands in parentheses, and may hold any of them itself.
        fields = read_proc(f"/proc/{name}/stat").rpartition(b")")[2].split()
        if fields:
            children.setdefault(int(fields[1]), []).append((int(name), fields[0], int(fields[3])))
    found, todo = {}, [os.getpid()]
    while todo:
        for pid, state, session in children.get(todo.pop(), ()):
            todo.append(pid)
            if state not in (b"Z", b"X"):
                found[pid] = session
    return found


def signal_all(number: int, session: int) -> set[int]:
    """Signal every descendant; returns those outside of ``session``."""
    # By list, never by group: once its leader is reaped, a group's number may belong to a stranger.
    everyone = descendants()
    for pid in everyone:
        try:
            os.kill(pid, number)
        except OSError:
            pass  # gone in between, or another user's: the next round or the survivors' report says
    return {pid for pid, its in everyone.items() if its != session}


def end_rest() -> None:
    """SIGKILL until no child is left: nothing to do after an orderly run, all that counts otherwise."""
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                signal_all(signal.SIGKILL, 0)
                time.sleep(0.02)
    except ChildProcessError:
        return


def launch(spec: dict[str, Any], log_fd: int) -> tuple[int, str | None]:
    """Fork and execute the engine in a session of its own; returns (pid, None) or (pid, "stage: why")."""
    said, say = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        os.close(say)
        with open(said, "rb") as pipe:  # ends at exec, which closes the other side
            trouble = pipe.read()
        return pid, trouble.decode() or None
    stage = "set-up"
    try:
        os.setsid()
        # Should the supervisor itself be killed, its direct child goes with it.
        _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(127)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is not signal.SIG_DFL:  # ignored, it would stay so after exec
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        null = os.open(os.devnull, os.O_RDWR)
        for fd, target in ((null, 0), (log_fd, 1), (log_fd, 2)):
            os.dup2(fd, target)
        stage = "working folder"
        os.chdir(spec["cwd"])
        if spec["cpus"] is not None:
            stage = "CPU affinity"
            os.sched_setaffinity(0, spec["cpus"])
        stage = "exec"
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except (OSError, ValueError) as error:
        os.write(say, f"{stage}: {getattr(error, 'strerror', error)}".encode())
    finally:
        os._exit(127)  # whatever happens, the child never returns into the supervisor's code


class Supervisor:
    """One engine, from its start to the end of its last descendant."""

    def __init__(self, spec: dict[str, Any], commands: bytes, wake: int) -> None:
        self.parent, self.limit = spec["parent"], spec["memory_limit"] or 0
        self.commands, self.wake = commands, wake
        self.log = Log(spec["log"], spec["log_cap"])
        self.log_pipe, log_fd = os.pipe()
        os.set_blocking(self.log_pipe, False)
        self.pid, self.trouble = launch(spec, log_fd)
        os.close(log_fd)
        self.cause, self.deadline, self.killed_at = "", 0.0, 0.0
        self.tree, self.last_pid, self.scanned_at = {self.pid: self.pid}, b"", 0.0
        self.peak_tree, self.peak_main, self.samples = 0, 0, 0
        self.escaped: set[int] = set()
        self.main_lives, self.stuck_said = True, False

    def run(self) -> None:
        if self.trouble:
            os.waitpid(self.pid, 0)
            emit("failed", why=self.trouble)
            return
        emit("started", pid=self.pid, pgid=self.pid)
        poll = select.poll()
        for fd in (0, self.log_pipe, self.wake):
            poll.register(fd, select.POLLIN)
        next_sample = next_flush = 0.0
        while True:
            for fd, _ in poll.poll(20 if self.cause else SAMPLE_S * 1000):
                if fd == self.wake:
                    if signal.SIGTERM in os.read(fd, 4096):
                        self.end("supervisor told to end", _LIFELINE_GRACE_S)
                elif (self.read_log() if fd == self.log_pipe else self.read_commands()) == b"":
                    poll.unregister(fd)
            now = time.monotonic()
            if now >= next_sample:
                next_sample = now + SAMPLE_S
                self.sample(now)
                if os.getppid() != self.parent:  # the life-line may live on in a fork of pytest
                    self.end("lifeline", _LIFELINE_GRACE_S)
            if now >= next_flush:
                next_flush = now + 1.0
                self.log.flush()
            if self.reap():
                break
            if self.cause and now >= self.deadline:
                self.kill(now)
        for _ in range(64):  # what the pipe still holds
            if not self.read_log():
                break
        self.log.flush()
        log = self.log
        emit(
            "stopped", phase=self.cause, killed=bool(self.killed_at), escaped=len(self.escaped),
            **self.memory(), log_bytes=log.total, log_left_out=log.left_out, log_trouble=log.trouble,
        )  # fmt: skip

    def end(self, cause: str, grace_s: float) -> None:
        """Ask everything to end, and set when it is made to. A later call can only shorten the grace."""
        deadline = time.monotonic() + grace_s
        if not self.cause:
            self.cause, self.deadline = cause, deadline
            # A stopped process acts on the first after the second. Without grace nothing is asked.
            for number in (signal.SIGTERM, signal.SIGCONT) if grace_s > 0 else ():
                self.escaped |= signal_all(number, self.pid)
        self.deadline = min(self.deadline, deadline)

    def kill(self, now: float) -> None:
        self.escaped |= signal_all(signal.SIGKILL, self.pid)
        self.killed_at = self.killed_at or now
        if not self.stuck_said and now - self.killed_at > _STUCK_S:
            self.stuck_said = True
            emit("stuck", pids=sorted(descendants()))

    def reap(self) -> bool:
        """Collect ended children; true when not one is left, which is the kernel's word that all are gone."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.pid:
                self.main_lives = False
                emit("exited", status=os.waitstatus_to_exitcode(status), phase=self.cause or "itself")
                self.end("itself", _LIFELINE_GRACE_S)

    def sample(self, now: float) -> None:
        """One look at the memory of the tree. Costs two small reads while nothing on the machine forks."""
        last_pid = read_proc("/proc/loadavg").split()[-1:]
        if last_pid != [self.last_pid] and now - self.scanned_at >= _RESCAN_S:
            self.last_pid, self.scanned_at = (last_pid or [b""])[0], now
            self.tree = descendants()
        total = 0
        for pid in self.tree:
            fields = read_proc(f"/proc/{pid}/statm").split()
            total += int(fields[1]) * _PAGE if len(fields) > 1 else 0
        if self.main_lives:  # later the number may be a stranger's
            high = read_proc(f"/proc/{self.pid}/status").partition(b"VmHWM:")[2].split(None, 1)
            self.peak_main = max(self.peak_main, int(high[0]) * 1024 if high else 0)
        self.peak_tree, self.samples = max(self.peak_tree, total), self.samples + 1
        if self.limit and total > self.limit:
            self.end(f"memory limit: {total} of {self.limit} bytes", 0.0)

    def memory(self) -> dict[str, object]:
        """``peak_tree_rss``: highest sum over all processes at 10 Hz, shared pages once per process.

        ``peak_main_hwm``: the kernel's own high-water mark of the main process. Bytes.
        """
        return {"peak_tree_rss": self.peak_tree, "peak_main_hwm": self.peak_main, "samples": self.samples}

    def read_log(self) -> bytes | None:
        """One piece of output into the log; empty at its end, ``None`` while there is nothing to read."""
        try:
            data = os.read(self.log_pipe, 65536)
        except BlockingIOError:
            return None
        self.log.write(data)
        return data

    def read_commands(self) -> bytes:
        """Obey what came through the life-line; empty at its end."""
        data = os.read(0, 65536)
        if not data:
            self.end("lifeline", _LIFELINE_GRACE_S)
        *lines, self.commands = (self.commands + data).split(b"\n")
        for command in map(json.loads, lines):
            if command["do"] == "stop":
                self.end("stop", command["grace_s"])
            else:
                self.sample(time.monotonic())
                emit("report", pids=sorted(descendants()), **self.memory())
        return data


def emit(event: str, **fields: object) -> None:
    """One event to pytest; a pytest that is gone needs none."""
    try:
        os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")
    except OSError:
        pass


def main() -> int:
    """Read the spec, own the engine, exit when nothing of it is left."""
    line = b""
    while b"\n" not in line:
        data = os.read(0, 65536)
        if not data:
            return 0  # pytest died before it asked for anything
        line += data
    line, _, commands = line.partition(b"\n")
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for pytest to act on
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    _LIBC.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        Supervisor(json.loads(line), commands, wake).run()
    except OSError as error:
        emit("failed", why=f"{error.filename or 'supervisor'}: {error.strerror}")
        return 1
    finally:
        end_rest()
    return 0


if __name__ == "__main__":
    sys.exit(main())

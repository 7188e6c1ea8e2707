"""What the kernel says about processes: small, forgiving readers of ``/proc``.

A process may vanish between two reads, and other people's processes may be hidden. Every reader
therefore answers ``None`` (unknown) and never raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = [
    "Stat",
    "argv_of",
    "command_of",
    "iso",
    "pids",
    "read_bytes",
    "read_text",
    "redacted",
    "started_at",
    "stat_of",
]

_SECRET_OPTION = re.compile(r"(?i)(?:^|[-_])(?:token|secret|password|passwd|key|credential)s?(?:$|=)")
_COMMAND_LIMIT = 200
"""Characters of a command line that are shown; the rest would hide the message it stands in."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Part of ``/proc/<pid>/stat``; ``start_ticks``, since boot, tells reused pids apart."""

    state: str
    ppid: int
    pgid: int
    sid: int
    start_ticks: int


def read_bytes(path: str, limit: int = 65536) -> bytes | None:
    """The first ``limit`` bytes of a (proc) file, or ``None`` where it cannot be read."""
    # Plain descriptors: three times as fast as open() on the many tiny files of /proc.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    content = b""
    try:
        # The kernel hands out its longer lists one page at a time.
        while len(content) < limit and (part := os.read(fd, limit - len(content))):
            content += part
        return content
    except OSError:
        return None
    finally:
        os.close(fd)


def read_text(path: str) -> str | None:
    """A short text file without surrounding blanks, or ``None`` where it cannot be read."""
    raw = read_bytes(path)
    return None if raw is None else raw.decode("utf-8", "replace").strip()


def pids() -> Iterator[int]:
    """Every process that ``/proc`` shows; nothing where ``/proc`` is not there."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit():
            yield int(name)


def stat_of(pid: int) -> Stat | None:
    """State, parent, group, session and start of a process."""
    raw = read_bytes(f"/proc/{pid}/stat")
    if not raw:
        return None
    # The command name stands in parentheses and may itself hold blanks and parentheses.
    fields = raw[raw.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def argv_of(pid: int) -> tuple[str, ...] | None:
    """The argument vector; empty for kernel threads and zombies."""
    raw = read_bytes(f"/proc/{pid}/cmdline")
    if raw is None:
        return None
    parts = raw.split(b"\0")
    if parts and not parts[-1]:
        parts.pop()
    return tuple(part.decode("utf-8", "replace") for part in parts)


def redacted(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments with the values of ``--api-key`` and its like masked: they end up in reports."""
    shown: list[str] = []
    mask_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if mask_next and not argument.startswith("-"):
            shown.append("***")
            mask_next = False
        elif _SECRET_OPTION.search(name):
            shown.append(f"{name}=***" if equals else argument)
            mask_next = not equals and argument.startswith("-")
        else:
            shown.append(argument)
            mask_next = False
    return tuple(shown)


def command_of(pid: int) -> str | None:
    """The command as one line of at most 200 characters, secrets masked; a kernel thread's bare name."""
    argv = argv_of(pid)
    if argv is None:
        return None
    line = " ".join(redacted(argv)) if argv else (read_text(f"/proc/{pid}/comm") or "")
    line = "".join(c if c.isprintable() else "?" for c in line)
    return line if len(line) <= _COMMAND_LIMIT else line[: _COMMAND_LIMIT - 3] + "..."


def iso(moment: datetime) -> str:
    """UTC with milliseconds, as ``2025-01-31T12:00:00.000Z``."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def started_at(pid: int) -> str | None:
    """When a process was started, to the second."""
    stat = stat_of(pid)
    boot = read_bytes("/proc/stat", 1 << 20)
    found = re.search(rb"^btime (\d+)", boot or b"", re.MULTILINE)
    if stat is None or found is None:
        return None
    seconds = int(found[1]) + stat.start_ticks // os.sysconf("SC_CLK_TCK")
    return iso(datetime.fromtimestamp(seconds, UTC))[:-5] + "Z"

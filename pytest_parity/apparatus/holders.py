"""Who holds a lock file: the record in it, and what the kernel knows.

The record says what the holder wrote about itself; it may be stale, because a lock is freed without
touching the file. The kernel's list is exact about *which* open file holds the lock
(``/proc/<pid>/fdinfo``), also when the process that took it is dead and a child inherited it.
A record is believed only where the kernel does not contradict it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from . import procfs

__all__ = ["RECORD_LIMIT", "HolderRecord", "describe_holders", "holding_pids", "locked_here", "parse_record"]

RECORD_LIMIT = 4096
"""Bytes of a record: one page, so that one write replaces it whole."""

_FORMAT = "pytest-parity lease 1"
_SHOWN = 4
"""Holders that a message names; the rest are counted."""


@dataclass(frozen=True, slots=True)
class HolderRecord:
    """What a holder wrote into the lock file. ``since`` is UTC; ``start_ticks`` tells a reused pid apart."""

    pid: int
    start_ticks: int | None
    command: str
    since: str
    session: str | None
    purpose: str
    number: int

    def to_bytes(self) -> bytes:
        """One line of ASCII JSON."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, ensure_ascii=True).encode() + b"\n"


def parse_record(raw: bytes) -> HolderRecord | None:
    """The record in a lock file, or ``None`` where the content is not ours."""
    # Only the first line: a holder killed between its write and its cut leaves older bytes behind it.
    try:
        fields = json.loads(raw.split(b"\n", 1)[0])
    except ValueError:
        return None
    if not isinstance(fields, dict) or fields.pop("format", None) != _FORMAT:
        return None
    try:
        record = HolderRecord(**fields)
    except TypeError:
        return None
    texts = (record.command, record.since, record.purpose)
    numbers = (record.pid, record.number)
    whole = all(isinstance(t, str) for t in texts) and all(type(n) is int and n > 0 for n in numbers)
    return record if whole else None


def locked_here(fdinfo_path: str) -> bool | None:
    """Whether the open file behind an ``fdinfo`` entry holds an exclusive flock; ``None``: unreadable."""
    raw = procfs.read_bytes(fdinfo_path)
    if raw is None:
        return None
    lines = (line.split() for line in raw.splitlines() if line.startswith(b"lock:"))
    return any(b"FLOCK" in words and b"WRITE" in words for words in lines)


def holding_pids(device_id: tuple[int, int]) -> tuple[int, ...]:
    """Processes with an open file that holds the flock on (st_dev, st_ino); only those we may look into."""
    found = []
    for pid in procfs.pids():
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for fd in fds:
            try:
                seen = os.stat(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if (seen.st_dev, seen.st_ino) == device_id and locked_here(f"/proc/{pid}/fdinfo/{fd}"):
                found.append(pid)
                break
    return tuple(sorted(found))


def _lock_table_pid(device_id: tuple[int, int]) -> int | None:
    """Who took the flock, from ``/proc/locks``: readable for everybody, but silent about heirs."""
    raw = procfs.read_bytes("/proc/locks", 1 << 20)
    where = f"{os.major(device_id[0]):02x}:{os.minor(device_id[0]):02x}:{device_id[1]}".encode()
    for line in (raw or b"").splitlines():
        words = line.split()
        # Waiting locks carry an arrow in the second field and hold nothing.
        if len(words) >= 6 and words[1] == b"FLOCK" and words[5] == where:
            return int(words[4])
    return None


def _alive(record: HolderRecord) -> bool:
    stat = procfs.stat_of(record.pid)
    return stat is not None and stat.state not in "ZX" and record.start_ticks in (None, stat.start_ticks)


def _from_record(record: HolderRecord) -> str:
    session = f", session {record.session}" if record.session else ""
    return f"pid {record.pid} ({record.command}) since {record.since}{session}, lease number {record.number}"


def _from_kernel(pid: int) -> str:
    command, started = procfs.command_of(pid), procfs.started_at(pid)
    return f"pid {pid} ({command or 'command unknown'}), running since {started or 'unknown'}"


def describe_holders(device_id: tuple[int, int], record: HolderRecord | None) -> str:
    """One phrase that names who holds the lock, for an error message. Never raises, never guesses."""
    pids = holding_pids(device_id)
    taker = _lock_table_pid(device_id)
    if record is not None and _alive(record) and (record.pid in pids or (not pids and record.pid == taker)):
        return f"it held by {_from_record(record)}"
    if pids:
        names = "; ".join(_from_kernel(pid) for pid in pids[:_SHOWN])
        more = f"; and {len(pids) - _SHOWN} more" if len(pids) > _SHOWN else ""
        if taker is None or taker in pids:
            return f"it held by {names}{more}"
        ended = "" if procfs.stat_of(taker) is not None else ", which has ended"
        number = f" with lease number {record.number}" if record is not None and record.pid == taker else ""
        return f"it held by {names}{more}; inherited from pid {taker}{number}{ended}"
    if taker and procfs.stat_of(taker) is not None:
        return f"it held by {_from_kernel(taker)}"
    return "it held by a process that cannot be seen from here (another user's, or in another container)"

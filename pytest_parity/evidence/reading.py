"""Read the log: its last line in constant time, or all of its lines in constant memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_parity.errors import LedgerBroken
from pytest_parity.evidence.entries import GENESIS, LONGEST_LINE, MEND_LOG, Entry
from pytest_parity.evidence.names import LOG

__all__ = ["Tail", "lines", "read_tail", "unreadable_log"]

_STEP = 4096


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the log ends.

    ``whole``: its length up to and with the last newline. ``torn``: the bytes after that, left by a write
    that was cut short. ``n`` and ``head``: number and digest of the last whole line, 0 and ``GENESIS`` where
    there is none.
    """

    whole: int
    torn: bytes
    n: int
    head: str


def read_tail(fd: int) -> Tail:
    """Read the end of the log, no more of it than the last line takes.

    Raises ``LedgerBroken`` when the last whole line is no entry: nothing may be chained to it. Raises
    ``OSError``.
    """
    size = os.fstat(fd).st_size
    start, held = size, b""
    while start > 0 and held.count(b"\n") < 2:
        if len(held) > 2 * LONGEST_LINE:
            raise LedgerBroken(
                f"end of {LOG}",
                expected=f"a line end in its last {LONGEST_LINE} bytes",
                found="none",
                mend=MEND_LOG,
            )
        # Steps that double, so that a long line costs no more than a few reads.
        step = min(start, max(_STEP, len(held)))
        start -= step
        held = os.pread(fd, step, start) + held
    body, newline, torn = held.rpartition(b"\n")
    if not newline:
        return Tail(0, torn, 0, GENESIS)
    line = body.rpartition(b"\n")[2] + b"\n"
    # Its number isn't known before it is read, and a reader wants to find it: it is the last one.
    try:
        entry = Entry.read(line, 0)
    except LedgerBroken as error:
        raise LedgerBroken(
            f"last line of {LOG}", expected=error.expected, found=error.found, mend=error.mend
        ) from error
    return Tail(size - len(torn), torn, entry.n, entry.digest)


def lines(fd: int, size: int) -> Iterator[bytes]:
    """The lines of the log's first ``size`` bytes, each with its newline; the last may lack it.

    A line longer than any entry is handed out in pieces, so that a file of garbage can't fill the memory.
    """
    with os.fdopen(os.dup(fd), "rb", buffering=1 << 16) as stream:
        stream.seek(0)
        left = size
        while left > 0:
            line = stream.readline(min(left, LONGEST_LINE))
            if not line:
                return
            left -= len(line)
            yield line


def unreadable_log(root: Path, error: OSError) -> LedgerBroken:
    """The words for a log that is there and can't be read."""
    return LedgerBroken(
        LOG,
        expected=f"a log that can be read at {root / LOG}",
        found=error.strerror or str(error),
        mend="Give this user read access to the folder and its files.",
    )

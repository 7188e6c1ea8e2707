"""Read the log and everything it names once, and tell what doesn't hold.

What a crash leaves (a torn last line, a whole receipt that was not logged yet) is kept apart from what no
crash can cause: only the latter is a problem.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pytest_parity.errors import LedgerBroken, NothingCompared
from pytest_parity.evidence.disk import DISK
from pytest_parity.evidence.entries import GENESIS, LONGEST_LINE, MEND_LOG, Entry, bound_file
from pytest_parity.evidence.lock import locked
from pytest_parity.evidence.names import LOCK, LOG, TORN
from pytest_parity.evidence.reading import lines, unreadable_log
from pytest_parity.evidence.store import names_in

__all__ = ["Problem", "Verification", "verify"]

# A log of garbage has a problem in every line; the first ones tell enough.
_MOST_PROBLEMS = 100
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that no crash can cause. ``line`` is where in the log, ``None`` for the log as a whole."""

    line: int | None
    expected: str
    found: str

    def __str__(self) -> str:
        where = LOG if self.line is None else f"{LOG} line {self.line}"
        return f"{where}: expected {self.expected}; found {self.found}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What a reading of a whole receipts folder found.

    ``lines``: whole lines read. ``head``: digest of the last of them. ``files``: how many receipts, intents
    and torn pieces were read and compared with the log. ``problems``: what doesn't hold, the first 100;
    ``more_problems`` counts the rest. Left by a crash, and mended by ``log_unlogged``: ``unlogged``, receipts
    that are whole and not in the log; ``torn``, bytes after the last whole line; ``unlogged_torn``, files of
    torn bytes without their entry.
    ``open_intents``: intents in the log whose receipt isn't. ``since_expected``: lines after the expected
    head, ``None`` when none was given or it wasn't found.
    """

    lines: int
    head: str
    files: int
    problems: tuple[Problem, ...]
    more_problems: int
    unlogged: tuple[str, ...]
    torn: int
    unlogged_torn: tuple[str, ...]
    open_intents: tuple[str, ...]
    since_expected: int | None

    @property
    def intact(self) -> bool:
        """Nothing was tampered with, as far as this reading can tell."""
        return not self.problems

    @property
    def whole(self) -> bool:
        """Intact, and no crash left anything to recover."""
        return self.intact and not (self.unlogged or self.torn or self.unlogged_torn)

    def require_intact(self) -> None:
        """Raise ``LedgerBroken`` with the first problem, and how many there are, when there is any."""
        if self.intact:
            return
        first, count = self.problems[0], len(self.problems) + self.more_problems
        found = first.found if count == 1 else f"{first.found} (the first of {count} problems)"
        where = LOG if first.line is None else f"{LOG} line {first.line}"
        raise LedgerBroken(where, expected=first.expected, found=found, mend=MEND_LOG)


def verify(root: Path, *, expected_head: str | None = None) -> Verification:
    """Check the log in ``root``, and every file that it names, against the digests in it.

    ``expected_head``: a head that was written down elsewhere. Lines that were cut off the end are found only
    with it; a log that has grown since still holds it. Needs no right to write, and other processes may
    append meanwhile. Memory grows with the number of receipts' names, not with the log.

    Raises ``NothingCompared`` when there is neither a receipt nor a line, ``EvidenceError`` when the folder
    can't be listed, ``LedgerBroken`` when the log can't be read. Everything else is in what is returned.
    """
    # Listed before the log is measured: a receipt is published first and logged later.
    reading = _Reading(root, set(names_in(root)), expected_head)
    torn_files = {name for name in os.listdir(root) if name.startswith(TORN)}
    try:
        fd = os.open(root / LOG, os.O_RDONLY)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreadable_log(root, error) from error
    else:
        try:
            for line in lines(fd, _settled_size(root, fd)):
                reading.take(line)
        except OSError as error:
            raise unreadable_log(root, error) from error
        finally:
            os.close(fd)
    return reading.result(torn_files)


def _settled_size(root: Path, fd: int) -> int:
    """The length of the log at a moment when nobody is appending."""
    with ExitStack() as stack:
        # Where no lock file can be opened (an archive, a checkout), nobody is appending.
        if os.access(root / LOCK, os.R_OK):
            stack.enter_context(locked(root, DISK, patience_s=_PATIENCE_S, shared=True))
        return os.fstat(fd).st_size


@dataclass(slots=True)
class _Reading:
    """The state of one pass over the log. ``torn``: bytes since the last newline, ``hash`` theirs."""

    root: Path
    unlogged: set[str]
    expected_head: str | None
    number: int = 0
    n: int = 0
    head: str = GENESIS
    files: int = 0
    torn: int = 0
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    expected_at: int | None = None
    problems: list[Problem] = field(default_factory=list)
    more: int = 0
    intents: set[str] = field(default_factory=set)
    recovered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.expected_head == GENESIS:
            self.expected_at = 0

    def take(self, line: bytes) -> None:
        """Read a line, or a piece of one that is too long."""
        self.hash.update(line)
        self.torn += len(line)
        if not line.endswith(b"\n"):
            return
        self.number += 1
        if self.torn > len(line):
            self._problem(f"a line of at most {LONGEST_LINE} bytes", f"{self.torn}")
            self.n += 1
        else:
            self._entry(line)
        # From here on the line is taken as it is, so that one wrong line is told once and not for ever.
        self.head = "sha256:" + self.hash.hexdigest()
        self.hash, self.torn = hashlib.sha256(), 0
        if self.head == self.expected_head:
            self.expected_at = self.number

    def _entry(self, line: bytes) -> None:
        try:
            entry = Entry.read(line, self.number)
        except LedgerBroken as error:
            self._problem(error.expected, error.found)
            self.n += 1
        else:
            self._chain(entry)
            self._follow(entry)
            self.n = entry.n

    def _chain(self, entry: Entry) -> None:
        if entry.n != self.n + 1:
            self._problem(f"entry number {self.n + 1}", f"entry number {entry.n}")
        if entry.previous != self.head:
            self._problem(f"previous {self.head}", f"previous {entry.previous}")

    def _follow(self, entry: Entry) -> None:
        bound = bound_file(entry)
        if bound is None:
            return
        if entry.kind == "receipt":
            self.unlogged.discard(bound.name)
            self.intents.discard(bound.name)
        elif entry.kind == "intent":
            self.intents.add(bound.name)
        else:
            self.recovered.add(bound.name)
        self.files += 1
        try:
            with open(self.root / bound.path, "rb") as stream:
                found = "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            self._problem(f"{bound.thing} with digest {bound.digest}", f"no file {bound.path}")
        except OSError as error:
            self._problem(f"{bound.thing} with digest {bound.digest}", f"{bound.path}: {error.strerror}")
        else:
            if found != bound.digest:
                self._problem(f"{bound.thing} with digest {bound.digest}", f"{found} in {bound.path}")

    def _problem(self, expected: str, found: str, *, line: bool = True) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(self.number if line else None, expected, found))
        else:
            self.more += 1

    def result(self, torn_files: set[str]) -> Verification:
        if not (self.number or self.torn or self.unlogged):
            raise NothingCompared(
                f"evidence in {self.root}",
                expected="receipts, or lines in the log",
                found="neither",
                mend="Measure something first, or name the folder that holds the evidence.",
            )
        since = None
        if self.expected_head is not None and self.expected_at is None:
            self._problem(
                f"a line with digest {self.expected_head}, the head that was written down",
                f"none in {self.number} lines, the last with digest {self.head}: cut short or rewritten",
                line=False,
            )
        elif self.expected_at is not None:
            since = self.number - self.expected_at
        return Verification(
            lines=self.number,
            head=self.head,
            files=self.files,
            problems=tuple(self.problems),
            more_problems=self.more,
            unlogged=tuple(sorted(self.unlogged)),
            torn=self.torn,
            unlogged_torn=tuple(sorted(torn_files - self.recovered)),
            open_intents=tuple(sorted(self.intents)),
            since_expected=since,
        )

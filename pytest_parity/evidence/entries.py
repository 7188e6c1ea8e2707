"""One line of the log.

A line is the canonical bytes of an object with these keys, and no others:

``format``    the number 1
``n``         the number of the line, from 1
``previous``  the digest of the whole line before, its newline included; for the first line the digest of no
              bytes at all, so that the rule is the same everywhere
``kind``      what happened: ``intent``, ``receipt``, ``recovery``, or a word of the caller (``verdict``, …)
``at``        when, as the caller gave it; nothing in here looks at a clock
``subject``   what it is about; a receipt and an intent are named with the digest of their bytes
``check``     the digest of the same object without this key, so that the last line, which nothing chains yet,
              can't change unnoticed either
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from pytest_parity.core.canonical import canonical_bytes, digest, is_digest, parse
from pytest_parity.errors import EvidenceError, LedgerBroken, ReceiptUnreadable
from pytest_parity.evidence.names import INTENTS, LOG, SUFFIX, TORN, check_name

__all__ = ["GENESIS", "LONGEST_LINE", "MEND_LOG", "RECOVERY", "Bound", "Entry", "bound_file"]

FORMAT = 1
GENESIS = digest(b"")
LONGEST_LINE = 1 << 20
RECOVERY = "recovery"
# Kinds whose subject is a file, and the folder that it lies in.
_FOLDERS = {"receipt": "", "intent": INTENTS, RECOVERY: ""}
_KEYS = {"format", "n", "previous", "kind", "at", "subject", "check"}
_KIND = re.compile(r"[a-z][a-z-]{0,31}")
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")
_TORN = re.compile(re.escape(TORN) + r"[1-9]\d{0,15}")
_MEND_ENTRY = "Mend the call: nothing was appended."
MEND_LOG = "Restore the log from where it was published; evidence is never rewritten."


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry and the very bytes of its line."""

    n: int
    previous: str
    kind: str
    at: str
    subject: Mapping[str, object]
    line: bytes

    @property
    def digest(self) -> str:
        """Of the whole line: what the next line calls ``previous``, and the head while there is no next."""
        return digest(self.line)

    @classmethod
    def make(cls, n: int, previous: str, kind: str, at: str, subject: Mapping[str, object]) -> Entry:
        """Write an entry. Raises ``EvidenceError`` for a kind, a time or a subject that no line may hold."""
        if found := _wrong(kind, at, subject):
            raise EvidenceError(
                "entry for the log", expected=found.expected, found=found.found, mend=_MEND_ENTRY
            )
        fields: dict[str, object] = {
            "format": FORMAT,
            "n": n,
            "previous": previous,
            "kind": kind,
            "at": at,
            "subject": subject,
        }
        line = canonical_bytes(fields | {"check": digest(canonical_bytes(fields))})
        if len(line) > LONGEST_LINE:
            raise EvidenceError(
                "entry for the log",
                expected=f"a line of at most {LONGEST_LINE} bytes",
                found=f"{len(line)}",
                mend="Publish the details as a file and name its digest in the entry.",
            )
        return cls(n, previous, kind, at, subject, line)

    @classmethod
    def read(cls, line: bytes, number: int) -> Entry:
        """Read line ``number`` back. Raises ``LedgerBroken`` when it isn't exactly what ``make`` wrote."""
        try:
            fields = parse(line)
        except ReceiptUnreadable as error:
            raise _broken(number, error.expected, error.found) from error
        if not isinstance(fields, dict) or fields.keys() != _KEYS:
            raise _broken(number, f"an object with the keys {_listed(_KEYS)}", _kind_of(fields))
        check = fields.pop("check")
        if check != (right := digest(canonical_bytes(fields))):
            raise _broken(number, f"contents with check {check}", f"contents whose check is {right}")
        n, previous, kind, at = fields["n"], fields["previous"], fields["kind"], fields["at"]
        if fields["format"] != FORMAT or isinstance(fields["format"], bool):
            raise _broken(number, f"format {FORMAT}", f"format {fields['format']!r}")
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise _broken(number, "a number from 1 as n", repr(n))
        if not isinstance(previous, str) or not is_digest(previous):
            raise _broken(number, "a digest as previous", repr(previous))
        if found := _wrong(kind, at, fields["subject"]):
            raise _broken(number, found.expected, found.found)
        subject = cast("dict[str, object]", fields["subject"])
        return cls(n, previous, cast("str", kind), cast("str", at), subject, line)


@dataclass(frozen=True, slots=True)
class Bound:
    """A file that an entry is bound to: what it is, its path below the folder, the digest of its bytes."""

    thing: str
    path: Path
    digest: str
    name: str


def bound_file(entry: Entry) -> Bound | None:
    """The file that this entry names, ``None`` for an entry that names none."""
    if entry.kind not in _FOLDERS:
        return None
    name, named = str(entry.subject["name"]), str(entry.subject["digest"])
    filename = name if entry.kind == RECOVERY else name + SUFFIX
    return Bound(f"{entry.kind} {name}", Path(_FOLDERS[entry.kind]) / filename, named, name)


@dataclass(frozen=True, slots=True)
class _Wrong:
    expected: str
    found: str


def _wrong(kind: object, at: object, subject: object) -> _Wrong | None:
    """What no line may hold; ``None`` when all is well."""
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        return _Wrong("a kind of 1 to 32 lower-case letters and dashes", repr(kind))
    if not isinstance(at, str) or not _is_time(at):
        return _Wrong("a time with its zone, like 2026-05-04T03:02:01Z", repr(at))
    if not isinstance(subject, Mapping):
        return _Wrong("an object as subject", _kind_of(subject))
    if kind in _FOLDERS:
        if not is_digest(subject.get("digest")):
            return _Wrong(f"the digest of the {kind} in its subject", repr(subject.get("digest")))
        name = subject.get("name")
        if kind == RECOVERY:
            if not isinstance(name, str) or not _TORN.fullmatch(name):
                return _Wrong(f"the file {TORN}<number> in a recovery's subject", repr(name))
            return None
        try:
            check_name(name)
        except EvidenceError as error:
            return _Wrong(error.expected, error.found)
    return None


def _is_time(text: str) -> bool:
    if not _AT.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _broken(number: int, expected: str, found: str) -> LedgerBroken:
    return LedgerBroken(f"{LOG} line {number}", expected=expected, found=found, mend=MEND_LOG)


def _listed(keys: set[str]) -> str:
    return " ".join(sorted(keys))


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return f"the keys {_listed(set(value))}" if value else "an empty object"
    return f"a {type(value).__name__}"

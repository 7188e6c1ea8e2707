"""What things are called inside a receipts folder."""

from __future__ import annotations

import re

from pytest_parity.errors import EvidenceError

__all__ = ["INTENTS", "LOCK", "LOG", "LONGEST_NAME", "SUFFIX", "TORN", "check_name", "name_of"]

LOG = "log.jsonl"
LOCK = "log.lock"
TORN = "log.torn-"
INTENTS = "intents"
SUFFIX = ".json"
# With the suffix this stays below the 255 bytes that file systems allow.
LONGEST_NAME = 200
# No separators, and a first character that neither hides the file nor looks like an option.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")


def check_name(name: object) -> str:
    """Return ``name`` when a receipt or an intent may be called that; raise ``EvidenceError`` otherwise."""
    if isinstance(name, str) and len(name) <= LONGEST_NAME and _NAME.fullmatch(name):
        return name
    raise EvidenceError(
        "name of a receipt",
        expected=f"1 to {LONGEST_NAME} of the characters A-Z a-z 0-9 . _ = + -, the first a letter or digit",
        found=_shown(name),
        mend="Build the name from session, cell, rep and attempt, joined by dashes.",
    )


def name_of(filename: str) -> str | None:
    """The receipt's name that ``filename`` stands for, ``None`` when it stands for none."""
    stem = filename.removesuffix(SUFFIX)
    if stem == filename or len(stem) > LONGEST_NAME or not _NAME.fullmatch(stem):
        return None
    return stem


def _shown(name: object) -> str:
    if isinstance(name, str) and len(name) > LONGEST_NAME:
        return f"{len(name)} characters, {name[:20]!r}…"
    return repr(name)

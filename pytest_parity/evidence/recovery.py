"""Give receipts that a crash kept out of the log their entries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_parity.core.canonical import Json, digest, parse
from pytest_parity.errors import ReceiptUnreadable
from pytest_parity.evidence.disk import storage
from pytest_parity.evidence.entries import Entry, bound_file
from pytest_parity.evidence.ledger import Appender, Ledger
from pytest_parity.evidence.names import LOG
from pytest_parity.evidence.reading import lines
from pytest_parity.evidence.store import ReceiptStore

__all__ = ["Describe", "Recovered", "log_unlogged"]

Describe = Callable[[Json], Mapping[str, object]]
"""What an entry says of a receipt beside its name and digest; may raise for bodies that are no receipts."""


def _nothing_more(_body: Json) -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True)
class Recovered:
    """``entries``: what was appended. ``unreadable``: receipts left alone: no canonical bytes, or no receipt."""

    entries: tuple[Entry, ...]
    unreadable: tuple[str, ...]


def log_unlogged(ledger: Ledger, at: str, describe: Describe = _nothing_more) -> Recovered:
    """Append an entry, marked ``recovered``, for every whole receipt that isn't in the log yet.

    For the start of a session: a process that dies between publishing and appending leaves such a receipt.
    One of a session that is still running may be among them; it then stands in the log twice, with one
    digest, which ``verify`` accepts. ``describe`` adds to an entry what the caller's entries say. Torn bytes are
    recovered as well. Raises as ``Ledger.append`` does, and
    ``LedgerBroken`` when a line of the log can't be read.
    """
    store = ReceiptStore(ledger.root)
    entries: list[Entry] = []
    unreadable: list[str] = []
    with ledger.exclusive() as appender:
        entries.extend(appender.recover(at))
        logged = _logged(ledger.root, appender)
        for name in store.names():
            if name in logged:
                continue
            try:
                body = store.read(name)
                more = describe(parse(body))
            except (ReceiptUnreadable, KeyError, TypeError, AttributeError):
                unreadable.append(name)
                continue
            subject = {**more, "name": name, "digest": digest(body), "recovered": True}
            entries.append(appender.append("receipt", subject, at))
    return Recovered(tuple(entries), tuple(unreadable))


def _logged(root: Path, appender: Appender) -> set[str]:
    """Names of the receipts in a log that ends with a whole line."""
    names = set()
    with storage(LOG, root):
        size = os.fstat(appender.fd).st_size
        for number, line in enumerate(lines(appender.fd, size), start=1):
            entry = Entry.read(line, number)
            bound = bound_file(entry)
            if bound is not None and entry.kind == "receipt":
                names.add(bound.name)
    return names

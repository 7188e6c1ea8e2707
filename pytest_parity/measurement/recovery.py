"""Pairs that were begun by a session that is gone: receipted as broken, never measured again."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_parity.core.canonical import parse
from pytest_parity.core.receipts import PairRecord, read_pair
from pytest_parity.errors import EvidenceError, LedgerBroken
from pytest_parity.evidence.names import INTENTS
from pytest_parity.evidence.recovery import log_unlogged
from pytest_parity.measurement.planning import log_subjects
from pytest_parity.measurement.receipt_parts import subject_of
from pytest_parity.measurement.workspace import Workspace

__all__ = ["Recovered", "alive", "alive_as_long_as", "recover"]


MOST_LEFT = 16
"""More workers than anybody runs at once."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a dead session left behind. ``pairs``: ids now receipted as broken. ``logged``: receipts that a
    crash had left out of the log and that are chained now. ``unreadable``: files that are no evidence."""

    pairs: tuple[str, ...]
    logged: tuple[str, ...]
    unreadable: tuple[str, ...]


def recover(workspace: Workspace) -> Recovered:
    """Close the open intents of sessions whose process is gone. Intents of living sessions are left alone."""
    store = workspace.store
    if not workspace.receipts.exists():
        return Recovered((), (), ())
    store.sweep()
    _refuse_what_no_crash_leaves(workspace)
    again = log_unlogged(workspace.ledger, workspace.timestamp(), _describe)
    _sweep_locks(workspace.receipts)
    pairs, unreadable = [], list(again.unreadable)
    for key in store.open_intents():
        try:
            intent: Any = parse(store.read_intent(key))
            if intent["session"] == workspace.session or _lives(workspace.receipts, intent["session"]):
                continue
            body = {**intent["receipt"], "recovered_at": workspace.timestamp()}
            _check_abandoned(key, intent["session"], read_pair(key, body))
            subject = subject_of(body)
        except (EvidenceError, KeyError, TypeError, AttributeError):
            unreadable.append(key)
            continue
        workspace.publish(key, body, subject)
        pairs.append(f"{intent['pair']} of session {intent['session']}")
    return Recovered(tuple(pairs), tuple(str(e.subject["name"]) for e in again.entries), tuple(unreadable))


def _refuse_what_no_crash_leaves(workspace: Workspace) -> None:
    """A crash leaves one receipt a process outside the log; a log that lost many lost them in another way."""
    seen = {str(subject.get("name")) for subject in log_subjects(workspace.receipts)}
    left = [name for name in workspace.store.names() if name not in seen]
    if len(left) > MOST_LEFT:
        raise LedgerBroken(
            f"log of {workspace.receipts.name}",
            expected=f"at most {MOST_LEFT} receipts that a crash kept out of it",
            found=f"{len(left)}",
            mend="Its log was cut or removed. Restore it, or begin another folder with --receipts.",
        )


def _check_abandoned(key: str, session: str, record: PairRecord) -> None:
    """What an intent holds for this day is a broken pair of its own session, whatever was written into it since."""
    if record.outcome != "broken" or record.session != session or not key.startswith(f"{session}."):
        raise EvidenceError(
            f"intent {key}",
            expected="a broken pair of its own session",
            found=f"{record.outcome}, of session {record.session}",
            mend="It was edited: it is left where it is, and counts for nothing.",
        )


def _sweep_locks(receipts: Path) -> None:
    """Remove the locks of sessions that are gone."""
    for path in (receipts / INTENTS).glob(".alive-*"):
        if not _lives(receipts, path.name.removeprefix(".alive-")):
            path.unlink(missing_ok=True)


def _describe(body: Any) -> dict[str, Any]:
    return subject_of(body)


@contextmanager
def alive(receipts: Path, session: str) -> Iterator[None]:
    """Hold a lock that says: this session lives. The kernel drops it with the process, however that ends.

    A lock beside the intents and not a process id, which means nothing in another container or namespace.
    """
    path = _path(receipts, session)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)
        if not _lives(receipts, session):
            path.unlink(missing_ok=True)


def alive_as_long_as(owner: object, receipts: Path, session: str) -> None:
    """As :func:`alive`, until ``owner`` is gone."""
    stack = ExitStack()
    stack.enter_context(alive(receipts, session))
    weakref.finalize(owner, stack.close)


def _path(receipts: Path, session: str) -> Path:
    return receipts / INTENTS / f".alive-{session}"


def _lives(receipts: Path, session: str) -> bool:
    """Does some process of ``session`` hold its lock?"""
    try:
        fd = os.open(_path(receipts, session), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False

"""Pairs that were begun by a session that is gone: receipted as broken, never measured again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pytest_parity.core.canonical import parse
from pytest_parity.errors import EvidenceError
from pytest_parity.evidence.recovery import log_unlogged
from pytest_parity.measurement.workspace import Workspace

__all__ = ["Recovered", "recover"]


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
    again = log_unlogged(workspace.ledger, workspace.timestamp())
    pairs, unreadable = [], list(again.unreadable)
    for key in store.open_intents():
        try:
            intent: Any = parse(store.read_intent(key))
            if intent["session"] == workspace.session or _alive(intent["pid"], intent["start_ticks"]):
                continue
            body, subject = intent["receipt"], intent["subject"]
        except (EvidenceError, KeyError, TypeError):
            unreadable.append(key)
            continue
        workspace.publish(key, {**body, "recovered_at": workspace.timestamp()}, subject)
        pairs.append(f"{intent['pair']} of session {intent['session']}")
    return Recovered(tuple(pairs), tuple(str(e.subject["name"]) for e in again.entries), tuple(unreadable))


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def own_ticks() -> int | None:
    """When this process started."""
    return start_ticks(os.getpid())


def _alive(pid: int, ticks: int | None) -> bool:
    return ticks is not None and start_ticks(pid) == ticks

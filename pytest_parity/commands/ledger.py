"""``parity ledger``: show a log, and publish sessions into the committed folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pytest_parity import evidence
from pytest_parity.core.canonical import digest
from pytest_parity.errors import EvidenceError, NothingCompared, ReceiptExists
from pytest_parity.evidence.entries import Entry
from pytest_parity.evidence.names import LOG

__all__ = ["publish", "show"]


def show(folder: Path) -> int:
    """Print the log, a line each."""
    for entry in _entries(folder):
        subject = entry.subject
        what = subject.get("name", "")
        print(f"{entry.n:>6}  {entry.at}  {entry.kind:<10} {subject.get('outcome', ''):<9} {what}")
    return 0


def publish(sessions: Sequence[str], source: Path, target: Path) -> int:
    """Copy the receipts of whole sessions, byte for byte, and chain them in the target's log.

    Every receipt of a session goes, whatever came of it. Raises NothingCompared for a session without
    receipts. A receipt that is there already with the same bytes is left alone.
    """
    evidence.verify(source).require_intact()
    receipts = evidence.ReceiptStore(source)
    published, log = evidence.ReceiptStore(target), evidence.Ledger(target)
    published.prepare()
    subjects = _subjects(source)
    logged = _subjects(target) if (target / LOG).exists() else {}
    for session in sessions:
        names = [name for name in receipts.names() if name.startswith(session + ".")]
        left = [key for key in receipts.open_intents() if key.startswith(session + ".")]
        if left:
            raise EvidenceError(
                f"session {session}",
                expected="a receipt of every pair that was begun",
                found=f"none of {', '.join(left)}",
                mend="Run pytest -m parity once more: it receipts what a killed session left open.",
            )
        if not names:
            raise NothingCompared(
                f"session {session}",
                expected=f"receipts in {source}",
                found="none",
                mend="See parity ledger show.",
            )
        order = {name: number for number, name in enumerate(subjects)}
        count = 0
        for name in sorted(names, key=lambda n: order.get(n, len(order))):
            body = receipts.read(name)
            try:
                published.publish(name, body)
            except ReceiptExists:
                if published.read(name) != body:
                    raise
                if name in logged:
                    continue  # else a crash came between its publication and its place in the log
            subject = {**subjects.get(name, {}), "name": name, "digest": digest(body)}
            log.append("receipt", subject, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
            count += 1
        print(f"{session}: {count} receipts published, {len(names) - count} were there")
    print(f"head {log.head()}")
    return 0


def _subjects(folder: Path) -> dict[str, Mapping[str, object]]:
    return {str(e.subject.get("name")): e.subject for e in _entries(folder) if e.kind == "receipt"}


def _entries(folder: Path) -> list[Entry]:
    try:
        with open(folder / LOG, "rb") as file:
            return [Entry.read(line, number) for number, line in enumerate(file, start=1)]
    except OSError as error:
        raise EvidenceError(
            f"log of {folder}",
            expected=f"a readable file {LOG}",
            found=error.strerror or str(error),
            mend="Name the folder with the receipts.",
        ) from None

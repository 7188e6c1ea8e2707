"""``parity verify``: a stranger's check. Chain, exactness, timing and verdicts, from stored bytes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_parity import evidence
from pytest_parity.core.canonical import parse
from pytest_parity.core.claims import Claim
from pytest_parity.core.plan import Cell, declared_cells
from pytest_parity.core.receipts import PairRecord, read_pair
from pytest_parity.core.verdicts import ClaimVerdict, Context, ControlResult, control_result, judge_claim
from pytest_parity.errors import NothingCompared, ReceiptUnreadable

__all__ = ["judge_session", "read_sessions", "verify"]


@dataclass(slots=True)
class Session:
    """One session's claims and records."""

    claims: dict[str, tuple[Claim, bool]] = field(default_factory=dict)
    records: list[PairRecord] = field(default_factory=list)
    stale: dict[str, str] = field(default_factory=dict)
    """Claim to the pin that had expired when it was measured."""
    controls: dict[str, list[PairRecord]] = field(default_factory=dict)


def verify(folder: Path, since: str | None) -> int:
    """Check a receipts folder and print what its receipts say of each claim. 0: whole and consistent."""
    if not folder.is_dir():
        raise NothingCompared(
            f"receipts folder {folder}",
            expected="a folder",
            found="none",
            mend="Name the folder with the receipts.",
        )
    chain = evidence.verify(folder, expected_head=since)
    for problem in chain.problems:
        print(f"BROKEN  {problem}")
    for name in chain.unlogged:
        print(f"UNLOGGED  {name}: whole, but not in the log (a crash between the two writes)")
    for name in chain.unlogged_torn:
        print(f"UNLOGGED  {name}: bytes of a torn log line, put aside and not yet told in the log")
    if chain.torn:
        print(f"TORN  log.jsonl: {chain.torn} bytes after its last whole line (a crash within a write)")
    print(f"{chain.files} files checked, {chain.lines} log entries, head {chain.head}")
    for key in evidence.ReceiptStore(folder).open_intents():
        print(f"OPEN  {key}: begun, and no receipt says what came of it")
    sessions, bad = read_sessions(folder, leave_out=frozenset(chain.unlogged))
    for line in bad:
        print(f"UNREADABLE  {line}")
    for name in sorted(sessions):
        print(f"session {name}")
        for verdict in judge_session(sessions[name]):
            print(f"  {verdict.word:<12} {verdict.claim.name}: {verdict.sentence}")
    return 0 if chain.whole and not bad else 1


def read_sessions(
    folder: Path, leave_out: frozenset[str] = frozenset()
) -> tuple[dict[str, Session], list[str]]:
    """Receipts of a folder by session, and a sentence for each that cannot be read.

    ``leave_out``: receipts that are not in the log: nothing vouches for them.
    """
    store = evidence.ReceiptStore(folder)
    sessions: dict[str, Session] = {}
    bad: list[str] = []
    for name in store.names():
        if name in leave_out:
            continue
        try:
            body: Any = parse(store.read(name))
            record = read_pair(name, body)
            session = sessions.setdefault(record.session, Session())
            if record.control_of is not None:
                session.controls.setdefault(record.control_of, []).append(record)
                continue
            claim = Claim.model_validate(_tuples(body["claim"]["row"]))
            if claim.digest != record.claim_digest:
                raise ReceiptUnreadable(
                    f"receipt {name}",
                    expected=f"a claim whose digest is {record.claim_digest}",
                    found=claim.digest,
                    mend="The row in it was edited: it counts for nothing.",
                )
            speculative = bool(body["sides"]["candidate"]["configuration"].get("speculative"))
            session.claims[record.claim] = (claim, speculative)
            session.records.append(record)
            for why in _expired(body):
                session.stale[record.claim] = why
        except (ReceiptUnreadable, ValueError, KeyError, TypeError) as error:
            bad.append(
                str(error) if isinstance(error, ReceiptUnreadable) else f"{name}: {_in_one_line(error)}"
            )
    return sessions, bad


def _in_one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"its claim's row, {'.'.join(map(str, first['loc'])) or 'as a whole'}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


def _expired(body: Any) -> Iterator[str]:
    """The pins that had expired on the day of the measurement, in the words of the run."""
    for role in ("reference", "candidate"):
        side = body["sides"][role]
        for expiry in side["pin"]["portable"].get("expiries", ()) if "pin" in side else ():
            if date.fromisoformat(expiry["on"]) <= date.fromisoformat(body["at"][:10]):
                yield f"{expiry['of']} expired on {expiry['on']}"


def judge_session(session: Session) -> Iterator[ClaimVerdict]:
    """What one session's receipts say of each claim in it."""
    for name in sorted(session.claims):
        claim, speculative = session.claims[name]
        mine = [record for record in session.records if record.claim == name]
        controls: dict[str, ControlResult] = {}
        if claim.metric is not None:
            controls = {key: control_result(group, claim.metric) for key, group in session.controls.items()}
        asked = {cell: _planned(cell, mine) for cell in declared_cells(claim)}
        context = Context(
            asked={c: reps for c, reps in asked.items() if reps},
            speculative=speculative,
            stale=session.stale.get(name),
        )
        yield judge_claim(claim, mine, controls, context)


def _planned(cell: Cell, records: list[PairRecord]) -> frozenset[int]:
    """Every rep of the plan when any was measured: a rep that is wanting is then missing, not unasked."""
    measured = any(r.depth == cell.depth and r.fixture == cell.fixture for r in records)
    return frozenset(range(1, cell.pairs + 1)) if measured else frozenset()


def _tuples(value: Any) -> Any:
    """JSON lists as the tuples that a claim's fields are."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value

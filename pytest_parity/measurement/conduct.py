"""One pair, from admission to the moment when both transcripts lie on the table."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pytest_parity.apparatus import procfs
from pytest_parity.apparatus import scan as scanning
from pytest_parity.apparatus.holders import parse_record
from pytest_parity.apparatus.lease import Lease, session_lock
from pytest_parity.apparatus.lockfile import default_path
from pytest_parity.core.canonical import canonical_bytes, parse
from pytest_parity.core.claims import Claim
from pytest_parity.core.plan import PairPlan
from pytest_parity.core.prompts import PromptFixture
from pytest_parity.core.receipts import (
    PairRecord,
    Reason,
    read_pair,
)
from pytest_parity.engines.driver import Progress
from pytest_parity.errors import ForeignProcess, LeaseUnavailable, NothingCompared, ParityError, ReceiptExists
from pytest_parity.measurement.admission import admit, reason_code
from pytest_parity.measurement.pair import MeasuredPair, Receipt, Result, Unfinished
from pytest_parity.measurement.prompts import PromptStore, source_of
from pytest_parity.measurement.receipt_parts import body_of, subject_of
from pytest_parity.measurement.recovery import alive_as_long_as
from pytest_parity.measurement.side import Role, SideBroken, SideJob, run_side, tokenize_once
from pytest_parity.measurement.window import Window, void_reason
from pytest_parity.measurement.workspace import Workspace

__all__ = ["Conductor"]

ORPHAN_S = 10.0
"""So long may the supervisor of a killed worker need to end its engine."""


class Conductor:
    """Measures pairs of one session, one at a time."""

    def __init__(self, workspace: Workspace, claims: Mapping[str, Claim]) -> None:
        workspace.store.prepare()
        workspace.logs.mkdir(parents=True, exist_ok=True)
        alive_as_long_as(self, workspace.receipts, workspace.session)
        self.workspace = workspace
        self.claims = claims

    def measure(
        self,
        plan: PairPlan,
        replay: str,
        *,
        lanes: tuple[str, str] | None = None,
        progress: Progress | None = None,
    ) -> MeasuredPair:
        """Conduct the pair and return it, exactness still unknown.

        ``replay``: the command that measures this pair again. ``lanes``: (candidate, reference) instead of the claim's.
        Raises LeaseUnavailable with nothing written, and Unfinished once a receipt says void, broken or
        refused. An interruption leaves a broken receipt and goes on upwards.
        """
        admitted = admit(self.workspace, self.claims, plan, lanes)
        window = Window(admitted, replay)
        if admitted.refusal is not None:
            raise self._end(window, Result("refused", reason=admitted.refusal))
        with session_lock(self.workspace.session_lock):
            self._not_spent(window)
            with self._leased(window) as lease:
                measured = self._under_lease(window, lease, progress)
            assert window.lease is not None
            window.lease["held_s"] = (time.monotonic_ns() - window.began_ns) / 1e9
        return measured

    def has_receipt(self, plan: PairPlan) -> bool:
        """Is this pair's receipt on disk?"""
        return (self.workspace.receipts / f"{self.receipt_name(plan)}.json").exists()

    def receipt_name(self, plan: PairPlan) -> str:
        """The name of this pair's receipt in this session."""
        return f"{self.workspace.session}.{plan.id}"

    def read(self, plan: PairPlan) -> PairRecord | None:
        """This session's record of a pair, ``None`` when there is none."""
        if not self.has_receipt(plan):
            return None
        name = self.receipt_name(plan)
        body: Any = parse(self.workspace.store.read(name))
        return read_pair(name, body)

    def _under_lease(self, window: Window, lease: Lease, progress: Progress | None) -> MeasuredPair:
        plan = window.admitted.plan
        try:
            self._scan(window)
        except (ForeignProcess, NothingCompared) as error:
            code = "foreign" if isinstance(error, ForeignProcess) else "scan"
            raise self._end(window, Result("refused", reason=Reason(code, str(error)))) from error
        self._intend(window)
        try:
            self._sides(window, lease, progress)
            lease.verify()
        except SideBroken as broken:
            window.runs[broken.run.job.role] = broken.run
            code = f"{reason_code(broken.cause)}-in-{broken.run.phase.replace(' ', '-')}"
            text = f"{broken.run.job.role} in phase {broken.run.phase}: {broken.cause}"
            said = [line.strip() for line in broken.run.facts.get("log_tail", ())[-3:] if line.strip()]
            if said:
                text += f" Its last lines: {' / '.join(said)}"
            raise self._end(window, Result("broken", reason=Reason(code, text))) from broken.cause
        except ForeignProcess as error:
            raise self._end(window, Result("void", reason=Reason("foreign", str(error)))) from error
        except (ParityError, OSError) as error:
            raise self._end(window, Result("broken", reason=Reason("apparatus", str(error)))) from error
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._write(window, Result("broken", reason=Reason("internal", text)), 1)
            raise
        except BaseException as error:
            self._write(
                window, Result("broken", reason=Reason("interrupted", f"ended by {type(error).__name__}")), 1
            )
            raise
        reason = void_reason(window)
        if reason is not None:
            raise self._end(window, Result("void", reason=reason))
        transcripts = [window.runs[role].transcript for role in ("candidate", "reference")]
        assert transcripts[0] is not None and transcripts[1] is not None
        return MeasuredPair(
            plan,
            window.replay,
            (transcripts[0], transcripts[1]),
            window.admitted.level,
            window.admitted.minimum_tokens,
            lambda result, minimum: self._write(window, result, minimum),
        )

    # --- lease, scans, intent ---------------------------------------------------------------------

    @contextmanager
    def _leased(self, window: Window) -> Iterator[Lease]:
        workspace = self.workspace
        lease = self._acquire(f"pair {window.admitted.plan.id}")
        window.lease = {
            "number": lease.number,
            "unrecorded": lease.unrecorded,
            "path": lease.path.name,
            "device": workspace.device,
            "file": list(lease.device_id),
            "taken_at": lease.taken_at,
            "quiet_s": workspace.quiet_s,
        }
        try:
            yield lease
        finally:
            lease.close()

    def _acquire(self, purpose: str) -> Lease:
        """Take the lease without waiting, but for an engine that outlives its killed worker for a moment."""
        workspace = self.workspace
        deadline = time.monotonic() + ORPHAN_S
        while True:
            try:
                return Lease.acquire(workspace.device, workspace.lease, purpose, session=workspace.session)
            except LeaseUnavailable:
                if time.monotonic() >= deadline or not self._orphaned():
                    raise
                time.sleep(0.1)

    def _orphaned(self) -> bool:
        """Was the lease last taken by a process of this session that has died?"""
        workspace = self.workspace
        try:
            record = parse_record((workspace.lease or default_path(workspace.device)).read_bytes())
        except OSError:
            return False
        if record is None or record.session != workspace.session:
            return False
        stat = procfs.stat_of(record.pid)
        return stat is None or stat.state in "ZX" or stat.start_ticks != record.start_ticks

    def _scan(self, window: Window) -> None:
        seen = scanning.scan(frozenset())
        window.scans.append(asdict(seen))
        scanning.refuse_foreign(seen)

    def _not_spent(self, window: Window) -> None:
        """A pair that was begun is spent: whatever became of it, it is not measured again (trap T51)."""
        name = self.receipt_name(window.admitted.plan)
        store = self.workspace.store
        if name in store.names():
            raise ReceiptExists(
                f"pair {window.admitted.plan.id}",
                expected="a pair that was not yet measured in this session",
                found="its receipt",
                mend="A pair runs once in a session: start a new session to measure again.",
            )
        if name not in store.intents():
            return
        reason = Reason(
            "abandoned", "it was begun and never finished (its worker was killed); it is not measured again"
        )
        raise self._end(window, Result("broken", reason=reason))

    def _intend(self, window: Window) -> None:
        plan = window.admitted.plan
        reason = Reason("abandoned", "it was begun and never finished: its process was killed")
        receipt = body_of(self.workspace, window, Result("broken", reason=reason), 1)
        body = {
            "session": self.workspace.session,
            "pair": plan.id,
            "pid": os.getpid(),
            "at": self.workspace.timestamp(),
            "receipt": receipt,
            "subject": subject_of(receipt),
        }
        name = self.receipt_name(plan)
        self.workspace.store.intend(name, canonical_bytes(body))

    # --- the two sides ----------------------------------------------------------------------------

    def _sides(self, window: Window, lease: Lease, progress: Progress | None) -> None:
        admitted, workspace = window.admitted, self.workspace
        plan = admitted.plan
        logs = workspace.logs / workspace.session
        logs.mkdir(parents=True, exist_ok=True)
        window.prompt = self._prompt(window, lease)
        expected = self._expected(window)
        roles: tuple[Role, Role] = (
            ("reference", "candidate") if plan.order == "RC" else ("candidate", "reference")
        )
        for position, role in enumerate(roles, start=1):
            engine, lane = admitted.side(role)
            job = SideJob(
                role,
                engine,
                lane,
                position,
                window.prompt,
                plan.cell.output_tokens,
                admitted.ignore_eos,
                expected,
                workspace.free_cpus,
            )
            time.sleep(workspace.quiet_s)  # before each side: the second must not start hotter than the first
            log = logs / f"{plan.id}.{role}.log"
            window.runs[role] = run_side(job, (lease.fd,), log, progress)
            self._scan(window)

    def _prompt(self, window: Window, lease: Lease) -> PromptFixture:
        workspace, plan = self.workspace, window.admitted.plan
        reference, _ = window.admitted.side("reference")
        log = workspace.logs / workspace.session / "tokenise.log"
        return PromptStore(workspace.prompts).fixture(
            plan.cell.fixture,
            plan.cell.depth,
            reference.vocabulary(),
            workspace.root,
            lambda text: tokenize_once(reference, text, (lease.fd,), log),
        )

    def _expected(self, window: Window) -> tuple[str, tuple[int, ...]] | None:
        """The text and the reference's ids of it, which both sides must make (trap T17)."""
        prompt = window.prompt
        assert prompt is not None
        source = source_of(prompt.fixture_class, prompt.depth, self.workspace.root)
        if source is None or source.text is None:
            return None
        reference, _ = window.admitted.side("reference")
        store = PromptStore(self.workspace.prompts)
        whole = store.stored(source, reference.vocabulary())
        return None if whole is None else (source.text, whole)

    # --- receipts ---------------------------------------------------------------------------------

    def _end(self, window: Window, result: Result) -> Unfinished:
        assert result.reason is not None
        receipt = self._write(window, result, 1)
        text = f"{result.outcome}: {result.reason.sentence}"
        return Unfinished(text, result.reason, receipt)

    def _write(self, window: Window, result: Result, minimum_tokens: int) -> Receipt:
        plan = window.admitted.plan
        name = self.receipt_name(plan)
        if result.outcome == "diverged":
            for run in window.runs.values():
                run.forget_times()
        body = body_of(self.workspace, window, result, minimum_tokens)
        published = self.workspace.publish(name, body, subject_of(body))
        return Receipt(name, published.path, published.digest, result.outcome)

"""What the tests of the measurement share: a small workplace, real tiny engines, and sides that are acted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_parity.apparatus.scan import scan
from pytest_parity.core.claims import Claim, parse_claim
from pytest_parity.core.plan import PairPlan, declared_cells
from pytest_parity.core.transcript import Clockwork, Event, Transcript, Words
from pytest_parity.engines.description import EngineDescription
from pytest_parity.engines.driver import Progress
from pytest_parity.measurement import conduct
from pytest_parity.measurement.conduct import Conductor
from pytest_parity.measurement.pair import Unfinished
from pytest_parity.measurement.side import SideJob, SideRun
from pytest_parity.measurement.workspace import Workspace

EMBEDDED = ("{python}", "-m", "pytest_parity.engines.embedded", "--port", "{port}", "--ctx-size", "{context}")
SESSION = "20250101T000000Z-aaaaaa"
IDS = tuple(range(100, 116))

Act = Callable[[SideJob], SideRun]


@cache
def _alone() -> None:
    """Leave at once where every pair would only be refused because of somebody else's engine."""
    seen = scan(frozenset({os.getpid()})).processes
    if seen is None or seen:
        pytest.exit(
            f"tests/measurement cannot measure beside {seen}. Run it in a process namespace of its own: "
            "unshare -pf --mount-proc pytest tests/measurement",
            returncode=1,
        )


def engine(name: str = "e", **fields: Any) -> EngineDescription:
    """The embedded engine with a lane ``plain`` and one, ``fused``, that says the same in another way."""
    lanes = {"plain": {}, "fused": {"argv": ("--kernels", "fused")}, **fields.pop("lanes", {})}
    defaults: dict[str, Any] = {
        "argv": EMBEDDED,
        "context": 2048,
        "vocabulary": "bytes-260",
        "warmup_tokens": 16,
        "grace_s": 2.0,
        "start_s": 60.0,
    }
    return EngineDescription.model_validate({"name": name, "lanes": lanes, **defaults, **fields})


def claim(name: str = "same", **fields: Any) -> Claim:
    """An exact claim over one tiny cell: lane ``fused`` writes what ``plain`` does."""
    row = {
        "wording": "At {depths}, lane {lane} wrote what the plain one wrote.",
        "candidate": "e",
        "reference": "e",
        "lane": "fused",
        "reference_lane": "plain",
        "kind": "exact",
        "depths": [64],
        "fixtures": ["synthetic"],
        "output_tokens": 16,
    }
    return parse_claim(name, {**row, **fields})


def pair(of: Claim, rep: int = 1) -> PairPlan:
    """One pair of the first cell of a claim."""
    cell = declared_cells(of)[0]
    return PairPlan(cell, rep, cell.id)


@dataclass
class Workshop:
    """A project's folder, its engines, and one claim."""

    root: Path
    engines: Mapping[str, EngineDescription] = field(default_factory=lambda: {"e": engine()})
    claim: Claim = field(default_factory=claim)
    session: str = SESSION
    quiet_s: float = 0.0
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def receipts(self) -> Path:
        """Where receipts lie."""
        return self.root / ".parity" / "receipts"

    def workspace(self) -> Workspace:
        """The workspace of this project; makes nothing."""
        hidden = self.root / ".parity"
        return Workspace(
            session=self.session,
            root=self.root,
            receipts=self.receipts,
            prompts=hidden / "prompts",
            logs=hidden / "logs",
            engines=self.engines,
            device="test",
            lease=self.root / "lease.lock",
            quiet_s=self.quiet_s,
            machine={"processor": "any"},
            code={"package": "pytest-parity", "version": "0", "digest": "sha256:code"},
            now=self.now,
        )

    def conductor(self) -> Conductor:
        """A conductor that measures in this project."""
        _alone()
        return Conductor(self.workspace(), {self.claim.name: self.claim})

    def unfinished(self, rep: int = 1, **more: Any) -> tuple[Unfinished, dict[str, Any]]:
        """Measure a pair that must not come to its end; what was raised, and the receipt's body."""
        with pytest.raises(Unfinished) as caught:
            self.conductor().measure(pair(self.claim, rep), "the replay command", **more)
        return caught.value, body_of(caught.value.receipt.path)

    def nothing_started(self) -> bool:
        """Is there no engine, no log of one, no intent and no lease?"""
        logs = [path for path in (self.root / ".parity" / "logs").rglob("*.log")]
        intents = list((self.receipts / "intents").glob("*.json")) if self.receipts.exists() else []
        return not engines_alive() and not logs and not intents and not (self.root / "lease.lock").exists()


def body_of(path: Path) -> dict[str, Any]:
    """A receipt's body."""
    body: dict[str, Any] = json.loads(path.read_bytes())
    return body


def bodies(folder: Path) -> dict[str, dict[str, Any]]:
    """Every receipt of a folder by its pair's id."""
    return {body["pair"]: body for body in map(body_of, sorted(folder.glob("*.json")))}


def engines_alive() -> list[int]:
    """Pids of embedded engines that live now."""
    seen = scan(frozenset()).processes
    assert seen is not None
    return [found.pid for found in seen]


@contextmanager
def foreign_engine() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's engine, executing when the block begins and gone when it has ended."""
    process = start_foreign()
    try:
        yield process
    finally:
        end(process)


def start_foreign() -> subprocess.Popen[bytes]:
    """Start an engine that no pair asked for."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_parity.engines.embedded", "--port", "0"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and collect it."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def says(
    ids: Sequence[int] = IDS, *, sent_ns: int = 7_000_000_123, step_ns: int = 1_000_003, **words: Any
) -> Transcript:
    """What a side said: one event an id."""
    first = sent_ns + 5_000_011
    events = tuple(Event(first + n * step_ns, 1) for n in range(len(ids)))
    spoken: dict[str, Any] = {"text": "".join(map(chr, ids)), "stop": "limit", "cached": 0, **words}
    return Transcript(
        Words(64, tuple(ids), **spoken),
        Clockwork(
            sent_ns,
            events,
            events[-1].at_ns + 77_003,
            {"predicted_n": len(ids), "predicted_ms": (events[-1].at_ns - first) / 1e6 + 0.0001},
            4_194_304,
        ),
    )


def acted(
    monkeypatch: pytest.MonkeyPatch,
    candidate: Transcript | BaseException | None = None,
    reference: Transcript | BaseException | None = None,
    *,
    pids: tuple[int, int] = (4001, 4002),
    seen: list[SideJob] | None = None,
) -> None:
    """From here on no engine is started: each side says what it is told to, or raises."""
    theirs = reference or says(sent_ns=21_000_000_123, step_ns=1_000_013)
    parts = {"candidate": (candidate or says(), pids[0]), "reference": (theirs, pids[1])}

    def play(job: SideJob, lease_fds: Sequence[int], log: Path, progress: Progress | None) -> SideRun:
        part, pid = parts[job.role]
        if seen is not None:
            seen.append(job)
        if isinstance(part, BaseException):
            raise part
        return SideRun(
            job, phase="done", facts={"pid": pid, "ended": "exit status 0"}, transcript=part, pid=pid
        )

    monkeypatch.setattr(conduct, "run_side", play)


def with_words(transcript: Transcript, **words: Any) -> Transcript:
    """The same transcript with other words."""
    return replace(transcript, words=replace(transcript.words, **words))

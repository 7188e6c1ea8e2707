"""Receipts folders for the tests of the commands: one that a real run left, others whose sides were acted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

for _room in ("measurement", "plugin"):
    sys.path.append(str(Path(__file__).parents[1] / _room))

from project import Project, Ran, exact_claim
from workshop import EMBEDDED, SESSION, Workshop, acted, claim, engine, pair, says

from pytest_parity.cli import main
from pytest_parity.core.canonical import canonical_bytes, digest
from pytest_parity.core.claims import Claim
from pytest_parity.core.plan import Cell, PairPlan, control_key, control_name, declared_cells
from pytest_parity.core.transcript import Transcript
from pytest_parity.evidence.entries import GENESIS, Entry

__all__ = [
    "EMBEDDED",
    "SESSION",
    "Said",
    "Workshop",
    "acted",
    "claim",
    "copy_of",
    "edit",
    "engine",
    "pair",
    "parity",
    "real_run",
    "relog",
    "says",
    "speed_session",
]


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Lines of its output."""
        return self.out.splitlines()


def parity(capsys: pytest.CaptureFixture[str], *arguments: object) -> Said:
    """Run a command in this process."""
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    caught = capsys.readouterr()
    return Said(status, caught.out, caught.err)


def real_run(root: Path) -> tuple[Project, Ran]:
    """A run of pytest over real engines: a claim that passes, one that fails, one whose pin has expired."""
    project = Project(
        root,
        lanes={"wrong": ("--fault", "diverge-at=5")},
        more_engines={"old": {"pin": {"expires": "2020-01-31"}}},
        claims={
            "same": exact_claim(),
            "wrong": exact_claim("wrong"),
            "stale": exact_claim(candidate="old"),
        },
    )
    unshare = ("unshare", "-pf", "--mount-proc") if os.geteuid() == 0 else ()
    return project, project.run("-m", "parity", wrap=unshare)


def speed_session(
    root: Path, monkeypatch: pytest.MonkeyPatch, step_ns: int, *, reps: int = 6, control: int = 6
) -> Claim:
    """A session of a claim about speed, sides acted: candidates need ``step_ns`` a token, references 1 ms."""
    speed = claim("speed", kind="parity", metric="decode_tps", margin=0.05, pairs="6")
    shop = Workshop(root, claim=speed)
    cell = Cell(control_name(speed), "plain", 64, "synthetic", 16, "6", control_key(speed))
    for rep in range(1, control + 1):
        wobble = 100 * (rep % 2)
        _measure(monkeypatch, shop, PairPlan(cell, rep, "g"), says(step_ns=1_000_000 + wobble), rep)
    for rep in range(1, reps + 1):
        _measure(
            monkeypatch, shop, PairPlan(declared_cells(speed)[0], rep, "g"), says(step_ns=step_ns + rep), rep
        )
    return speed


def _measure(
    monkeypatch: pytest.MonkeyPatch, shop: Workshop, plan: PairPlan, ours: Transcript, rep: int
) -> None:
    acted(monkeypatch, ours, says(sent_ns=rep * 10**10, step_ns=1_000_049 + rep))
    shop.conductor().measure(plan, f"pytest {plan.id}").exact().record()


def copy_of(folder: Path, to: Path) -> Path:
    """A copy of a receipts folder that may be tampered with."""
    shutil.copytree(folder, to)
    for path in to.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return to


def edit(path: Path, *keys: str | int, value: object) -> None:
    """Change one value of a receipt, in canonical form as its author would have written it."""
    body: Any = json.loads(path.read_bytes())
    at = body
    for key in keys[:-1]:
        at = at[key]
    assert not isinstance(at, dict) or at.get(keys[-1], "absent") != value
    at[keys[-1]] = value
    path.write_bytes(canonical_bytes(body))


def relog(folder: Path, *, without: Sequence[str] = ()) -> None:
    """Write the whole log anew, digests and chain and all, as a forger who owns the folder would."""
    lines: list[bytes] = []
    head = GENESIS
    for number, line in enumerate((folder / "log.jsonl").read_bytes().splitlines(keepends=True), start=1):
        old = Entry.read(line, number)
        name = str(old.subject["name"])
        if name in without:
            continue
        subject = {**old.subject, "digest": digest((folder / f"{name}.json").read_bytes())}
        entry = Entry.make(len(lines) + 1, head, old.kind, old.at, subject)
        lines.append(entry.line)
        head = entry.digest
    (folder / "log.jsonl").write_bytes(b"".join(lines))

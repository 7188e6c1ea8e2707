"""One cell's word and what it rests on: the values that pass between the rooms that decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_parity.core import diagnostics, stats
from pytest_parity.core.claims import Expected
from pytest_parity.core.plan import Cell
from pytest_parity.core.receipts import Measured, PairRecord

__all__ = ["CellVerdict", "Context", "ControlResult"]


@dataclass(frozen=True, slots=True)
class ControlResult:
    """The control of one reference and lane, for one metric: a floor, or why there is none.

    ``reference``: configuration digest and build of the engine that it measured; it speaks for no other.
    """

    control: stats.Control | None
    why: str
    diverged: bool = False
    reference: tuple[str, Measured] | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a verdict needs beside the records.

    ``asked``: reps asked for, by cell. ``other_plan``: cells of which another plan was asked for.
    ``speculative``: the lane drafts. ``stale``: why the evidence is too old, or ``None``.
    ``lease_lost``: cells unmeasured only for want of the lease.
    """

    asked: Mapping[Cell, frozenset[int]]
    other_plan: frozenset[Cell] = frozenset()
    speculative: bool = False
    stale: str | None = None
    lease_lost: frozenset[Cell] = frozenset()


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """One cell's word and what it rests on.

    ``held``: does it count as holding for the exit status. ``diagnostic``: fewer or other pairs than
    declared: exactness alone counts. ``records``: every pair of the cell in this session.
    """

    cell: Cell
    word: str
    sentence: str
    asked: bool
    held: bool
    records: tuple[PairRecord, ...] = ()
    diagnostic: bool = False
    expected: Expected | None = None
    for_want_of_lease: bool = False
    decision: stats.CellDecision | None = None
    description: diagnostics.Description | None = None
    needed: diagnostics.PairsNeeded | None = None
    notes: tuple[str, ...] = ()

    @property
    def exact_tokens(self) -> int | None:
        """The shortest output proven equal over the passed pairs."""
        lengths = [r.tokens for r in self.records if r.outcome == "passed" and r.tokens is not None]
        return min(lengths) if lengths else None

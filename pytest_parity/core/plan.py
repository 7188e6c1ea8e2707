"""From claims to pairs: cells, the balanced order, controls, and what it will cost."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_parity.core.claims import PLANS, Claim
from pytest_parity.errors import ConfigurationError, NothingCompared

__all__ = ["Cell", "Filter", "Order", "PairPlan", "SessionPlan", "declared_cells", "make_plan", "order_of"]

Order = Literal["RC", "CR"]
CONTROL_PAIRS = 6
NO_CELL = "no cell in the filter"


@dataclass(frozen=True, slots=True)
class Cell:
    """One (claim, lane, depth, fixture class, output length), or the control of a reference's lane."""

    claim: str
    lane: str
    depth: int
    fixture: str
    output_tokens: int
    plan: str
    control_of: str | None = None
    """``reference/lane`` of a control; ``None`` for a claim's cell."""

    @property
    def id(self) -> str:
        """Readable and unique within a session; the stem of test ids and receipts."""
        return f"{self.claim}-d{self.depth}-{fixture_slug(self.fixture)}"

    @property
    def pairs(self) -> int:
        """Pairs of the whole plan."""
        return PLANS[self.plan][-1]

    @property
    def first_look(self) -> int:
        """Pairs of the first look."""
        return PLANS[self.plan][0]


@dataclass(frozen=True, slots=True)
class PairPlan:
    """One pair to be measured: which cell, which rep (from 1), and who goes first."""

    cell: Cell
    rep: int
    group: str
    """Pairs of one group run in order on one worker: cells with their control."""
    id: str = field(init=False)
    """The id in a test's brackets, and the receipt's stem."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{self.cell.id}-r{self.rep}")

    @property
    def order(self) -> Order:
        """Which side goes first, fixed before the first pair."""
        return order_of(self.rep)


def order_of(rep: int) -> Order:
    """R C | C R | R C | …: reference first in odd reps, so that position sums balance over even plans."""
    return "RC" if rep % 2 else "CR"


@dataclass(frozen=True, slots=True)
class Filter:
    """What the options leave of the declared cells. Filters, never widens."""

    depths: tuple[int, ...] | None = None
    fixtures: tuple[str, ...] | None = None
    reps: int | None = None
    pairs: str | None = None

    def other_plan(self, cell: Cell) -> bool:
        """Is another plan asked for than ``cell`` declares? Then the cell is diagnostic."""
        return self.reps not in {None, cell.pairs} or self.pairs not in {None, cell.plan}

    def admits(self, cell: Cell) -> bool:
        """Is ``cell`` asked for?"""
        if self.depths is not None and cell.depth not in self.depths:
            return False
        return self.fixtures is None or cell.fixture in self.fixtures


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Every pair of a session, in order, and the claims that have none."""

    pairs: tuple[PairPlan, ...]
    not_asked: tuple[tuple[str, str], ...]
    """(claim, why) of claims without a cell in the filter or whose engine is not installed."""

    def by_id(self) -> dict[str, PairPlan]:
        """Pairs by their id."""
        return {pair.id: pair for pair in self.pairs}

    def cells(self) -> tuple[Cell, ...]:
        """Cells in order of their first pair."""
        return tuple(dict.fromkeys(pair.cell for pair in self.pairs))


def fixture_slug(fixture: str) -> str:
    """A fixture class as it may stand in a test id and a file name; two user files never share one."""
    if not fixture.startswith("file:"):
        return fixture
    path = fixture.removeprefix("file:")
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", path.rsplit("/", 1)[-1])[-40:]
    return f"file-{readable}-{hashlib.sha256(path.encode()).hexdigest()[:6]}"


def declared_cells(claim: Claim) -> tuple[Cell, ...]:
    """Every cell that ``claim`` declares: depths times fixture classes, in the row's order."""
    return tuple(
        Cell(
            claim=claim.name,
            lane=claim.lane,
            depth=entry.depth,
            fixture=fixture,
            output_tokens=entry.output_tokens or claim.output_tokens,
            plan=entry.pairs or claim.pairs,
        )
        for entry in claim.depths
        for fixture in claim.fixtures
    )


def make_plan(
    claims: Sequence[Claim], only: Filter, installed: Callable[[Claim], str | None] = lambda _claim: None
) -> SessionPlan:
    """Plan a session. ``installed`` says why a claim's engine is missing, or ``None``.

    Controls come before the first performance cell that uses them. Raises ConfigurationError for a depth
    or fixture that no asked claim declares (a typo must not select nothing).
    """
    if not claims:
        raise NothingCompared(
            "the plan",
            expected="at least one claim",
            found="none",
            mend="Name one with --claims, or write one.",
        )
    declared = [cell for claim in claims for cell in declared_cells(claim)]
    _refuse_unknown("--depths", only.depths, sorted({cell.depth for cell in declared}))
    _refuse_unknown("--fixture-class", only.fixtures, sorted({cell.fixture for cell in declared}))
    asked: list[tuple[Claim, Cell]] = []
    missing: list[tuple[str, str]] = []
    for claim in claims:
        why = installed(claim)
        if why is not None:
            missing.append((claim.name, why))
            continue
        cells = [cell for cell in declared_cells(claim) if only.admits(cell)]
        if not cells:
            missing.append((claim.name, NO_CELL))
        asked.extend((claim, cell) for cell in cells)
    controls = _controls((claim, cell) for claim, cell in asked if not only.other_plan(cell))
    pairs: list[PairPlan] = []
    planned: set[str] = set()
    for claim, cell in asked:
        key = control_key(claim)
        group = key if claim.performance else cell.id
        if claim.performance and key in controls and key not in planned:
            planned.add(key)
            pairs.extend(PairPlan(controls[key], rep, group) for rep in range(1, CONTROL_PAIRS + 1))
        pairs.extend(PairPlan(cell, rep, group) for rep in range(1, _reps(cell, only) + 1))
    _refuse_shared_ids(pairs)
    return SessionPlan(tuple(pairs), tuple(missing))


def control_key(claim: Claim) -> str:
    """``reference/lane``: claims with the same key share one control."""
    return f"{claim.reference}/{claim.other_lane}"


def control_name(claim: Claim) -> str:
    """The name that stands where a claim's name would."""
    return f"control-{claim.reference}-{claim.other_lane}"


def _controls(asked: Iterable[tuple[Claim, Cell]]) -> dict[str, Cell]:
    """One control per reference and lane, at the shallowest asked performance cell."""
    found: dict[str, Cell] = {}
    for claim, cell in asked:
        if not claim.performance:
            continue
        key = control_key(claim)
        if key not in found or cell.depth < found[key].depth:
            first = claim.fixtures[0]
            found[key] = replace(
                cell,
                claim=control_name(claim),
                lane=claim.other_lane,
                fixture=first,
                plan="6",
                control_of=key,
            )
    return found


def _refuse_shared_ids(pairs: Iterable[PairPlan]) -> None:
    """An id is a receipt's name: two pairs of one id would be one pair."""
    owners: dict[str, str] = {}
    for pair in pairs:
        owner = f"{pair.cell.claim} at {pair.cell.depth} {pair.cell.fixture}"
        if pair.id in owners:
            raise ConfigurationError(
                f"pair {pair.id}",
                expected="an id that one pair of the session has",
                found=f"two: of {owners[pair.id]} and of {owner}",
                mend="Rename a claim, a lane or a file: names of controls are control-REFERENCE-LANE.",
            )
        owners[pair.id] = owner


def _reps(cell: Cell, only: Filter) -> int:
    if only.reps is not None:
        return only.reps
    return PLANS[only.pairs][-1] if only.pairs is not None else cell.pairs


def _refuse_unknown(option: str, asked: Sequence[object] | None, declared: Sequence[object]) -> None:
    unknown = [str(value) for value in asked or () if value not in declared]
    if unknown:
        raise ConfigurationError(
            f"{option} {','.join(unknown)}",
            expected=f"values that the asked claims declare: {', '.join(map(str, declared))}",
            found=", ".join(unknown),
            mend="Options filter cells and never widen a claim: declare the cell in the register first.",
        )

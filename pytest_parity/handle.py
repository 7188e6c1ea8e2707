"""What a claim test holds in its hand: the ``parity`` fixture's value."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_parity import options
from pytest_parity.core.claims import Claim
from pytest_parity.core.plan import Cell, PairPlan
from pytest_parity.core.receipts import PairRecord
from pytest_parity.errors import LeaseUnavailable, ParityError
from pytest_parity.measurement.pair import Diverged, MeasuredPair, Unfinished

if TYPE_CHECKING:
    from pytest_parity.control import Controller

__all__ = ["ParityHandle"]


class ParityHandle:
    """One pair, to be measured once."""

    def __init__(self, controller: Controller, item: pytest.Item, plan: PairPlan | None) -> None:
        if plan is None:
            pytest.fail(
                "the parity fixture has no pair: no claim of the register is asked for here", pytrace=False
            )
        if (count := options.reruns(item.config)) or item.get_closest_marker("flaky") is not None:
            pytest.fail(
                options.rerun_text(f"--reruns {count}" if count else "the marker flaky"), pytrace=False
            )
        self._controller = controller
        self._item = item
        self._pair: MeasuredPair | None = None
        self._skipped = False
        self._properties: list[tuple[str, object]] = []
        self.plan = plan

    @property
    def cell(self) -> Cell:
        """The cell of this pair."""
        return self.plan.cell

    @property
    def rep(self) -> int:
        """The number of this pair in its cell, from 1."""
        return self.plan.rep

    @property
    def claim(self) -> Claim | None:
        """The claim; ``None`` for a control."""
        return self._controller.session.register.claims.get(self.cell.claim)

    @property
    def device(self) -> str:
        """The device whose lease this pair takes."""
        return self._controller.session.workspace.device

    def engine(self, role: Literal["candidate", "reference"]) -> str:
        """Name of the engine in ``role``."""
        if self.claim is None:
            assert self.cell.control_of is not None
            return self.cell.control_of.split("/")[0]
        return self.claim.candidate if role == "candidate" else self.claim.reference

    def measure(self, *, lanes: tuple[str, str] | None = None) -> MeasuredPair:
        """Measure both sides next to each other under one lease.

        ``lanes``: lanes of candidate and reference instead of the claim's. Raises LeaseUnavailable, and
        Unfinished once a receipt says why the pair is void, broken or refused.
        """
        if self._pair is not None:
            raise AssertionError("measure() was called twice: a pair is measured once")
        conductor = self._controller.session.conductor
        self._pair = conductor.measure(
            self.plan, self._replay(), lanes=lanes, progress=self._controller.progress_of(self.plan)
        )
        return self._pair

    def _replay(self) -> str:
        """The command that measures this pair again, from where pytest was started."""
        config = self._item.config
        path = os.path.relpath(self._item.path, config.invocation_params.dir)
        parts = ["pytest", f"{path}::{self._item.nodeid.partition('::')[2]}"]
        for option in ("--parity-config", "--receipts"):
            if config.getoption(option) is not None:
                parts += [option, config.getoption(option)]
        return shlex.join(parts)

    # --- for the plugin -------------------------------------------------------------------------------

    def skip_if_settled(self) -> None:
        """Skip a pair whose cell has already diverged."""
        why = self._controller.settled(self.plan)
        if why is not None:
            self._skipped = True
            pytest.skip(why)

    def require_recorded(self) -> None:
        """Fail an item that measured nothing, or did not record what it measured."""
        if self._skipped:
            return
        record = self._controller.session.conductor.read(self.plan)
        if record is not None:
            if record.outcome != "passed":
                pytest.fail(
                    f"the pair is {record.outcome}, and the test went on as if it were not", pytrace=False
                )
            return
        if self._pair is None:
            pytest.fail(
                "nothing was measured: a parity test calls parity.measure().exact().record()", pytrace=False
            )
        pytest.fail("the pair was measured and not recorded: end with .record()", pytrace=False)

    def close(self) -> None:
        """Write a void receipt for what was measured and not recorded."""
        if self._pair is not None and not self._controller.session.conductor.has_receipt(self.plan):
            self._pair.abandon("the test ended before record()")

    def _readable_record(self, report: pytest.TestReport) -> PairRecord | None:
        """The pair's record; one that can't be read back fails the item, and never the whole run."""
        try:
            return self._controller.session.conductor.read(self.plan)
        except ParityError as error:
            report.outcome = "failed"
            report.longrepr = str(error)
            return None

    def annotate(self, report: pytest.TestReport, error: BaseException | None) -> None:
        """Put plain strings on the report: they ride through xdist and into JUnit."""
        if report.when == "setup":
            return
        properties = report.user_properties
        if report.when == "teardown":
            properties.extend(self._properties)  # JUnit reads those of the teardown
        if report.when == "call":
            before = len(properties)
            if isinstance(error, LeaseUnavailable):
                properties.append(("parity_cause", "lease"))
                report.longrepr = self._controller.lease_text(str(error))
            elif isinstance(error, (Diverged, Unfinished, ParityError)):
                report.longrepr = str(error)
            record = self._readable_record(report)
            if record is not None:
                properties.extend(self._controller.properties(record))
            self._properties = properties[before:]
            self._controller.mark_expected(self.plan, report, error)

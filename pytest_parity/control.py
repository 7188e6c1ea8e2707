"""Glue between pytest's hooks and the session: collects, selects, reports, decides the exit status."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from pytest_parity import options
from pytest_parity.core.claims import Claim
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.plan import CONTROL_PAIRS, Cell, PairPlan, control_key
from pytest_parity.core.receipts import PairRecord
from pytest_parity.core.timing import ratio
from pytest_parity.core.verdicts import ClaimVerdict, ControlResult, control_result, second_look_needed
from pytest_parity.errors import ConfigurationError, ParityError
from pytest_parity.measurement.pair import Diverged, Unfinished
from pytest_parity.measurement.workspace import new_session_id
from pytest_parity.reporting import progress, terminal, verdict_reports
from pytest_parity.scheduling import end_with_parent
from pytest_parity.session import ParitySession

__all__ = ["Controller"]

UNREADABLE = 4
LEASE_LOST = 75


class Controller:
    """Registered as a plugin once the first parity test is seen; one per process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        workerinput: Mapping[str, Any] = getattr(config, "workerinput", {})
        self.is_worker = bool(workerinput)
        self.orphan = self.is_worker and "parity_session" not in workerinput
        """A worker whose controller knows nothing of parity: nobody would form a verdict, so nothing is measured."""
        if self.is_worker:
            end_with_parent()
        self.active = options.is_active(config)
        self.named = workerinput.get("parity_named") or options.named_paths(config)
        self.session = ParitySession(
            config,
            workerinput.get("parity_session") or new_session_id(),
            names_pairs=any("[" in rest for _, rest in self.named),
        )
        self.deselected = 0
        self.other_failures = 0
        self.verdicts: tuple[ClaimVerdict, ...] = ()
        self.recovered: tuple[str, ...] = ()
        self.rechained: tuple[str, ...] = ()
        self.config_error: str | None = None
        self.evidence_error: ParityError | None = None
        self._diverged: dict[str, int] = {}
        self._generic: set[str] = set()
        self._lease_told = ""
        self._own_test: set[str] = set()
        self.gate: str | None = config.getoption("--parity-gate")
        self.dry = bool(config.getoption("--parity-plan") or config.getoption("collectonly", False))

    # --- configuration and collection -------------------------------------------------------------

    def check_configuration(self) -> None:
        """Read everything once, so that an unreadable register ends the run with status 4."""
        if (count := options.reruns(self.config)) and not self.dry:
            raise pytest.UsageError(f"parity: {options.rerun_text(f'--reruns {count}')}")
        try:
            _ = self.session.plan
        except ParityError as error:
            raise pytest.UsageError(f"parity: {error}") from None

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a test function its pairs."""
        try:
            pairs = self._pairs_for(metafunc)
        except ParityError as error:
            self.config_error = str(error)
            self._tell(error=self.config_error)
            raise pytest.UsageError(f"parity: {error}") from None
        metafunc.parametrize(
            "parity", [pytest.param(pair, id=pair.id) for pair in pairs], indirect=True, scope="function"
        )

    def _pairs_for(self, metafunc: pytest.Metafunc) -> list[PairPlan]:
        marker = metafunc.definition.get_closest_marker("parity")
        if marker is not None and marker.args:
            raise ConfigurationError(
                f"{metafunc.definition.nodeid}: the parity marker",
                expected='claim="NAME"',
                found=", ".join(map(repr, marker.args)),
                mend="Name the claim by keyword.",
            )
        name = marker.kwargs.get("claim") if marker is not None else None
        pairs = self.session.plan.pairs
        if name is None:
            self._generic.add(metafunc.definition.nodeid)
            if len(self._generic) > 1:
                raise ConfigurationError(
                    metafunc.definition.nodeid,
                    expected="one generic parity test in a run",
                    found=f"another one: {', '.join(sorted(self._generic - {metafunc.definition.nodeid}))}",
                    mend='Mark one with @pytest.mark.parity(claim="…").',
                )
            return list(pairs)
        if name not in self.session.register.claims:
            raise ConfigurationError(
                f"{metafunc.definition.nodeid}: claim {name!r}",
                expected="a claim of the register",
                found=repr(name),
                mend="Correct the marker, or write the claim's row.",
            )
        self._own_test.add(name)
        return [pair for pair in pairs if pair.cell.claim == name]

    def select(self, items: list[pytest.Item], collected: list[pytest.Item]) -> None:
        """Keep parity items that were asked for, in the plan's order, behind all others.

        ``collected``: parity items before ``-k`` and ``-m`` took any away; a control is never filtered out.
        """
        if self.config_error is not None:
            return
        items.extend(self._missing_controls(items, collected))
        others = [item for item in items if item.get_closest_marker("parity") is None]
        mine = [item for item in items if item.get_closest_marker("parity") is not None]
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in mine:
            pair = self._pair_of_item(item)
            if pair is None and "parity" in getattr(item, "fixturenames", ()):
                continue  # no pair of its claim is asked for
            if pair is not None and self._is_generic(item) and pair.cell.claim in self._own_test:
                continue
            wanted = (self.active or self._is_named(item)) and not self.orphan
            (kept if wanted else dropped).append(item)
        order = {pair.id: number for number, pair in enumerate(self.session.plan.pairs)} if kept else {}
        kept.sort(key=lambda item: order.get(getattr(self._pair_of_item(item), "id", ""), 0))
        if dropped:
            self.deselected = len(dropped)
            self._tell(deselected=len(dropped))
            self.config.hook.pytest_deselected(items=dropped)
        items[:] = [*others, *kept]
        self.session.ask([item.nodeid for item in kept])

    def _missing_controls(self, items: list[pytest.Item], collected: list[pytest.Item]) -> list[pytest.Item]:
        """Controls that another filter took away although a whole cell that needs them is left."""
        left = {pair.id: pair for item in items if (pair := self._pair_of_item(item)) is not None}
        reps: dict[Cell, int] = {}
        for pair in left.values():
            reps[pair.cell] = reps.get(pair.cell, 0) + 1
        claims = self.session.register.claims if left and self.active else {}
        keys = {
            control_key(claims[cell.claim])
            for cell, count in reps.items()
            if cell.claim in claims and claims[cell.claim].performance and count == cell.pairs
        }
        return [
            item
            for item in collected
            if (pair := self._pair_of_item(item)) is not None
            and pair.cell.control_of in keys
            and pair.id not in left
        ]

    @staticmethod
    def _pair_of_item(item: pytest.Item) -> PairPlan | None:
        callspec = getattr(item, "callspec", None)
        found = callspec.params.get("parity") if callspec is not None else None
        return found if isinstance(found, PairPlan) else None

    @staticmethod
    def _is_generic(item: pytest.Item) -> bool:
        return not any("claim" in marker.kwargs for marker in item.iter_markers("parity"))

    def _is_named(self, item: pytest.Item) -> bool:
        rest = item.nodeid.partition("::")[2]
        return any(
            str(item.path.resolve()) == path and (rest == name or rest.startswith((name + "[", name + "::")))
            for path, name in self.named
        )

    # --- xdist ------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["parity_session"] = self.session.id
        node.workerinput["parity_named"] = self.named

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from pytest_parity.scheduling import make_scheduler

        return make_scheduler(config, log, self.session)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        # Where the register cannot be read, the workers tell so of themselves if they have a parity test at all.
        with suppress(ParityError):
            self.session.ask(ids)

    def _tell(self, **news: object) -> None:
        """From a worker to the controller; arrives when the worker ends."""
        if self.is_worker:
            self.config.workeroutput.setdefault("parity", {}).update(news)  # type: ignore[attr-defined]

    def hear(self, news: Mapping[str, Any]) -> None:
        """What a worker told. Each of them collects the same tests."""
        self.deselected = max(self.deselected, news.get("deselected", 0))
        self.config_error = self.config_error or news.get("error")

    # --- before and while running -----------------------------------------------------------------

    def pytest_report_header(self) -> list[str] | None:
        """The plan, before anything starts."""
        if self.is_worker or not self.active or self.config.getoption("--parity-plan"):
            return None
        return terminal.header(self.session)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        if self.config.getoption("--parity-plan"):
            self._print_plan()
            session.items.clear()
        if self.dry:
            return (yield)
        if not self.is_worker and (self.session.asked_ids or self.active):
            self._recover()
        with progress.pinned(self.session), self._alive():
            try:
                return (yield)
            finally:
                if not self.is_worker and self._something_asked():
                    self._decide(session)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """While pairs may be measured, others can see that this session lives."""
        if not self.session.asked_ids:
            yield
            return
        from pytest_parity.evidence.disk import storage_failed
        from pytest_parity.measurement.recovery import alive

        with ExitStack() as stack:
            try:
                stack.enter_context(alive(self.session.workspace.receipts, self.session.id))
            except OSError as error:
                failed = storage_failed(error, "receipts folder", self.session.workspace.receipts)
                if not self.is_worker:
                    raise pytest.UsageError(f"parity: {failed}") from None
                self.evidence_error = failed  # a usage error would end a worker without a word
            yield

    def _recover(self) -> None:
        from pytest_parity.measurement.recovery import recover

        try:
            found = recover(self.session.workspace)
        except ParityError as error:
            raise pytest.UsageError(f"parity: {error}") from None
        self.recovered = found.pairs
        self.rechained = found.logged

    def _print_plan(self) -> None:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and not self.is_worker:
            reporter.ensure_newline()
            for line in terminal.plan(self.session):
                reporter.write_line(line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """A second look that is not needed is passed over without a report."""
        pair = self._pair_of_item(item)
        if pair is None or not self._second_look_idle(pair):
            return None
        return True

    def _second_look_idle(self, pair: PairPlan) -> bool:
        claim = self.session.register.claims.get(pair.cell.claim)
        if claim is None or self.session.filter.other_plan(pair.cell) or pair.rep <= pair.cell.first_look:
            return False
        try:
            first = self._records_of(pair, range(1, pair.cell.first_look + 1))
            return not second_look_needed(claim, pair.cell, first, self._control(claim))
        except ParityError:
            return False  # its own set-up says what is wrong

    def _control(self, claim: Claim) -> ControlResult:
        planned = next((p for p in self.session.plan.pairs if p.cell.control_of == control_key(claim)), None)
        if planned is None or claim.metric is None:
            return ControlResult(None, "none was planned")
        return control_result(self._records_of(planned, range(1, CONTROL_PAIRS + 1)), claim.metric)

    def _records_of(self, pair: PairPlan, reps: range) -> list[PairRecord]:
        found = (self.session.conductor.read(PairPlan(pair.cell, rep, pair.group)) for rep in reps)
        return [record for record in found if record is not None]

    def settled(self, pair: PairPlan) -> str | None:
        """Why this pair need not be measured: its cell has diverged. Raises StorageFailed."""
        if self.evidence_error is not None:
            raise self.evidence_error
        claim = self.session.register.claims.get(pair.cell.claim)
        if claim is not None and claim.on_divergence == "continue":
            return None
        for record in self._records_of(pair, range(1, pair.rep)):
            if record.outcome == "diverged":
                return f"diverged at r{record.rep}"
        return None

    def progress_of(self, pair: PairPlan) -> Callable[[str, int, int], None] | None:
        """Tells people how far a long request is."""
        return None if self.is_worker else progress.reporter(self.config, pair)

    # --- reports ----------------------------------------------------------------------------------

    def properties(self, record: PairRecord) -> list[tuple[str, object]]:
        """Strings for the report: outcome, receipt, and ratios of a passed pair."""
        found: list[tuple[str, object]] = [
            ("parity_outcome", record.outcome),
            ("parity_receipt", record.name),
        ]
        if record.outcome == "passed" and record.timing is not None:
            found.append(("parity_exact_tokens", str(record.tokens)))
            for name in METRICS:
                value = ratio(record.timing, name)
                if value is not None:
                    found.append((f"parity_ratio_{name}", f"{value:.6f}"))
        return found

    def lease_text(self, text: str) -> str:
        """Who holds the lease: told once a process, then briefly."""
        told, self._lease_told = self._lease_told, text
        return "the lease is still held by the same" if told == text else text

    def mark_expected(self, pair: PairPlan, report: pytest.TestReport, error: BaseException | None) -> None:
        """A divergence, or a refusal as unsupported, that the register expects is an expected failure."""
        claim = self.session.register.claims.get(pair.cell.claim)
        expected = claim.expectation(pair.cell.depth, pair.cell.fixture) if claim is not None else None
        word = "FAIL" if isinstance(error, Diverged) else None
        if isinstance(error, Unfinished) and error.reason.code == "unsupported":
            word = "UNSUPPORTED"
        if expected is not None and word is not None and expected.verdict == word:
            report.outcome = "skipped"
            report.wasxfail = expected.because

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what failed, apart from claims (which are counted by their verdicts) and a lost lease."""
        if self.is_worker or not report.failed or verdict_reports.is_verdict(report):
            return
        pair = self.session.pair_of(report.nodeid) if self.session.asked_ids else None
        if pair is not None and ("parity_cause", "lease") in report.user_properties:
            self.session.lease_lost.add(pair.id)
        else:
            self.other_failures += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that could not be collected is a failure, also where others ran all the same."""
        if not self.is_worker and report.failed:
            self.other_failures += 1

    def _something_asked(self) -> bool:
        """Pairs, a gate, or claims by name: then there is something to decide, even if nothing was measured."""
        named = self.active and self.config.getoption("--claims") is not None
        return bool(self.session.asked_ids) or self.gate is not None or named

    def _decide(self, session: pytest.Session) -> None:
        try:
            self.verdicts = verdict_reports.decide(self.session)
        except ParityError as error:
            self.evidence_error = error
            return
        verdict_reports.emit(session, self.verdicts, self.session)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """2 interrupted, 4 unreadable, 1 something asked did not hold, 75 lease, 5 nothing, 0 all held."""
        if self.is_worker:
            return
        if self.config_error is not None:
            session.exitstatus = UNREADABLE
        elif self.config.getoption("--parity-plan") and self.session.asked_ids and exitstatus in (0, 5):
            session.exitstatus = pytest.ExitCode.OK
        elif exitstatus in (0, 1, 5) and not self.dry and self._something_asked():
            session.exitstatus = self._status(exitstatus)

    def _status(self, before: int) -> int:
        """``before``: pytest's own status; a failure that nothing here accounts for stays one."""
        lost_only = [v for v in self.verdicts if not v.held and verdict_reports.for_want_of_lease(v)]
        not_held = [v for v in self.verdicts if not v.held and v not in lost_only]
        if self.other_failures or not_held or self.evidence_error is not None:
            return int(pytest.ExitCode.TESTS_FAILED)
        if self.session.lease_lost:
            return LEASE_LOST
        return int(pytest.ExitCode.TESTS_FAILED if before == 1 else pytest.ExitCode.OK)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The verdicts, what was not asked, and where the receipts are."""
        mine = self.active or self.session.asked_ids or self.deselected
        if mine and not self.is_worker and self.config_error is None:
            found = terminal.Findings(
                self.deselected, self.recovered, self.rechained, self.evidence_error, self.verdicts
            )
            terminal.summary(terminalreporter, self.session, found)

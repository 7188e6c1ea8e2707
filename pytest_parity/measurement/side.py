"""One side of a pair: a fresh process, one real token, identity, warm-up, one measured request, the end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_parity.core.prompts import PromptFixture
from pytest_parity.core.receipts import clockwork_body, words_body
from pytest_parity.core.transcript import Clockwork, Transcript
from pytest_parity.engines.driver import Driver, Identity, Progress, Request
from pytest_parity.engines.drivers import connect
from pytest_parity.engines.environment import scrubbed_environment
from pytest_parity.engines.llama_log import facts_from_log
from pytest_parity.engines.ports import assert_owned, free_port
from pytest_parity.engines.process import EngineProcess, LaunchSpec
from pytest_parity.errors import EngineDied, IdentityMismatch, ParityError, SettingsIgnored
from pytest_parity.measurement.installed import InstalledEngine
from pytest_parity.measurement.redact import Redactor

__all__ = ["Role", "SideBroken", "SideJob", "SideRun", "run_side", "tokenize_once"]

Role = Literal["candidate", "reference"]
LOG_TAIL_LINES = 20
DEATH_S = 0.3
"""A connection is lost before the kernel tells how its process ended: how long to wait for that."""
LOG_HEAD_LINES = 2000
"""More than any engine prints before its first request."""


@dataclass(frozen=True, slots=True)
class SideJob:
    """What one side is to do.

    ``position``: 1 or 2, its place in the pair. ``expected_ids``: a text and the ids that both sides must
    make of it (trap T17), ``None`` where the ids are not made from text.
    """

    role: Role
    engine: InstalledEngine
    lane: str
    position: int
    prompt: PromptFixture
    output_tokens: int
    ignore_eos: bool
    expected_ids: tuple[str, tuple[int, ...]] | None = None
    free_cpus: tuple[int, ...] | None = None


@dataclass(slots=True)
class SideRun:
    """What one side did: facts for the receipt, and its transcript once there is one."""

    job: SideJob
    phase: str = "start"
    facts: dict[str, Any] = field(default_factory=dict)
    transcript: Transcript | None = None
    pid: int | None = None

    def forget_times(self) -> None:
        """Drop everything that a rate could be made of, for good."""
        if self.transcript is not None:
            self.transcript = replace(self.transcript, clockwork=Clockwork(0, (), 0))

    def body(self, redactor: Redactor, *, words: bool, clockwork: bool) -> dict[str, Any]:
        """This side as JSON values; without its words or its times where those must not be kept."""
        description = self.job.engine.description
        body: dict[str, Any] = {
            "engine": description.name,
            "lane": self.job.lane,
            "configuration": description.configuration(self.job.lane),
            "configuration_digest": description.digest(self.job.lane),
            "pin": self.job.engine.pin(),
            "position": self.job.position,
            "phase": self.phase,
            **self.facts,
            "words": None,
            "clockwork": None,
        }
        if self.transcript is not None and words:
            body["words"] = words_body(self.transcript.words)
            if clockwork:
                body["clockwork"] = clockwork_body(self.transcript.clockwork)
        redacted: dict[str, Any] = redactor.value(
            {k: v for k, v in body.items() if k not in ("words", "clockwork")}
        )
        return {**redacted, "words": body["words"], "clockwork": body["clockwork"]}


class SideBroken(Exception):
    """A side could not be finished; carries how far it came."""

    def __init__(self, run: SideRun, cause: ParityError) -> None:
        super().__init__(str(cause))
        self.run = run
        self.cause = cause


def run_side(job: SideJob, lease_fds: Sequence[int], log: Path, progress: Progress | None) -> SideRun:
    """Conduct one side. Raises SideBroken; whatever happens, its process group is gone afterwards."""
    run = SideRun(job)
    try:
        with _Started(run, lease_fds, log) as started:
            _measure(run, started.process, started.driver, progress)
        run.facts["ended"] = started.ended
        _with_peak(run, started.peak_rss_bytes)
    except ParityError as error:
        raise SideBroken(run, error) from error
    run.phase = "done"
    return run


def tokenize_once(engine: InstalledEngine, text: str, lease_fds: Sequence[int], log: Path) -> tuple[int, ...]:
    """An untimed start of ``engine`` that only tokenises. Raises EngineError."""
    prompt = PromptFixture("synthetic", (1,), "fixed", "none")
    run = SideRun(SideJob("reference", engine, "plain", 1, prompt, 1, ignore_eos=False))
    with _Started(run, lease_fds, log) as started:
        ids = started.driver.tokenize(text)
    if not ids:
        raise IdentityMismatch(
            f"{engine.name}: tokenising {len(text)} characters",
            expected="at least one token",
            found="none",
            mend="Check the engine's tokeniser.",
        )
    return ids


class _Started:
    """A running engine with its driver; leaving the block ends its process group."""

    def __init__(self, run: SideRun, lease_fds: Sequence[int], log: Path) -> None:
        job, description = run.job, run.job.engine.description
        self._run = run
        port = free_port()
        cpus = description.cpus or job.free_cpus
        kept, dropped = scrubbed_environment(os.environ, (), description.environment)
        argv = job.engine.argv(job.lane, port=port, position=job.position)
        run.facts |= {
            "argv": list(argv),
            "environment": {"kept": kept, "dropped": list(dropped)},
            "cpus": list(cpus) if cpus is not None else None,
            "port": port,
        }
        self._port = port
        self.driver: Driver = connect(description.driver, f"http://127.0.0.1:{port}")
        run.facts["driver"] = self.driver.name
        run.facts["boundary"] = self.driver.boundary
        self.process = EngineProcess.start(
            LaunchSpec(
                argv=argv,
                env=kept,
                cwd=None,
                cpus=cpus,
                log_path=log,
                memory_limit_bytes=description.memory_limit_bytes,
            ),
            lease_fds,
        )
        run.pid = self.process.pid
        run.facts["pid"] = self.process.pid
        self.ended: str | None = None
        self.peak_rss_bytes: int | None = None

    def __enter__(self) -> _Started:
        try:
            description = self._run.job.engine.description
            self._run.phase = "ready"
            self.driver.wait_ready(description.start_s, self.process.ended)
            assert_owned(self._port, self.process.pids())
            self._run.phase = "identity"
            identity = self.driver.identify()
            told = facts_from_log(self.process.log_tail(LOG_HEAD_LINES))
            identity = replace(identity, facts={**identity.facts, **told})
            self._run.facts["identity"] = _identity_body(identity)
            _check_identity(self._run.job, identity)
        except BaseException:
            self._close(failed=True)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._close(failed=error is not None)

    def _close(self, *, failed: bool) -> None:
        died = self.process.ended()
        until = time.monotonic() + DEATH_S
        while failed and died is None and time.monotonic() < until:
            time.sleep(0.01)
            died = self.process.ended()
        self.driver.close()
        outcome = self.process.stop(self._run.job.engine.description.grace_s)
        self.ended = died or str(outcome)
        self.peak_rss_bytes = self.process.peak_rss_bytes
        if failed:
            # A death is sometimes known only once the supervisor has had time to tell of it.
            itself = outcome.phase == "itself"
            self._run.facts["ended"] = died or (str(outcome) if itself else f"ended by us: {outcome}")
            self._run.facts["log_tail"] = list(self.process.log_tail(LOG_TAIL_LINES))


def _measure(run: SideRun, process: EngineProcess, driver: Driver, progress: Progress | None) -> None:
    job, description = run.job, run.job.engine.description
    lane = description.lanes[job.lane]
    if job.expected_ids is not None:
        run.phase = "tokenisation"
        _check_tokens(job, driver)
    run.phase = "warm-up"
    ids = job.prompt.ids
    warm = _elsewhere(ids, min(len(ids), description.warmup_tokens))
    ask = Request(
        warm, 1, ignore_eos=True, cache=False, silence_s=description.silence_s, extra=dict(lane.request)
    )
    _alive(process, job, driver.generate(ask))
    run.facts["warmup"] = {"prompt_tokens": len(warm), "output_tokens": 1, "cache": False}
    if lane.prime:
        run.phase = "prime"
        driver.generate(replace(ask, prompt_ids=ids, cache=True))
        run.facts["primed_tokens"] = len(ids)
    run.phase = "measured request"
    run.transcript = driver.generate(
        replace(
            ask,
            prompt_ids=ids,
            output_tokens=job.output_tokens,
            ignore_eos=job.ignore_eos,
            cache=lane.cache,
        ),
        progress,
    )
    _check_effective(
        job,
        {k: v for k, v in lane.effective.items() if k.startswith("request.")},
        run.transcript.words.settings,
    )
    died = process.ended()
    if died is not None:
        raise EngineDied(
            f"{job.engine.name} ({job.role})",
            expected="a process that outlives its request",
            found=died,
            mend="Its last lines are in the receipt.",
        )


def _alive(process: EngineProcess, job: SideJob, _warm: Transcript) -> None:
    died = process.ended()
    if died is not None:
        raise EngineDied(
            f"{job.engine.name} ({job.role}) after its warm-up",
            expected="a living process",
            found=died,
            mend="Its last lines are in the receipt.",
        )


def _elsewhere(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    """``count`` of the prompt's ids from another place: a prefix that an engine keeps must not be this prompt's."""
    start = next((i for i, token in enumerate(ids) if token != ids[0]), 0)
    return (*ids[start:], *ids[:start])[:count]


def _check_tokens(job: SideJob, driver: Driver) -> None:
    assert job.expected_ids is not None
    text, wanted = job.expected_ids
    found = driver.tokenize(text)
    if found != wanted:
        at = next(
            (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
            min(len(found), len(wanted)),
        )
        raise IdentityMismatch(
            f"tokenisation of the {job.role} {job.engine.name}",
            expected=f"the reference's {len(wanted)} ids, {wanted[at : at + 3]} at position {at}",
            found=f"{len(found)} ids, {found[at : at + 3]} there",
            mend="Two engines that read the text differently answer different prompts: mend the tokeniser or the model file.",
        )


def _check_identity(job: SideJob, identity: Identity) -> None:
    engine = job.engine
    served = Path(identity.model)
    if engine.model is not None and (
        served.name != engine.model.name
        or (served.is_absolute() and served.resolve() != engine.model.resolve())
    ):
        raise IdentityMismatch(
            f"model of {engine.name}",
            expected=str(engine.model),
            found=identity.model,
            mend="Another server answers, or argv names another model.",
        )
    if identity.slots not in {None, 1}:
        raise SettingsIgnored(
            f"slots of {engine.name}",
            expected="one: with several, the batch's shape changes what is written (T40)",
            found=f"{identity.slots}",
            mend='Start it with one, for llama-server "-np", "1".',
        )
    needed = job.prompt.depth + job.output_tokens
    if identity.context is not None and identity.context < needed:
        raise SettingsIgnored(
            f"context of {engine.name}",
            expected=f"at least {needed} tokens, for prompt and output",
            found=f"{identity.context}",
            mend="The engine cut what was asked: start it with a larger context.",
        )
    asked = engine.description.lanes[job.lane].effective
    _check_effective(job, {k: v for k, v in asked.items() if not k.startswith("request.")}, identity.facts)


def _check_effective(job: SideJob, asked: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """A setting that was asked for and did not take effect makes its comparison vacuous (trap T52)."""
    for name, wanted in asked.items():
        found = told.get(name.removeprefix("request."))
        if found != wanted:
            raise SettingsIgnored(
                f"{job.engine.name}, lane {job.lane}: {name}",
                expected=repr(wanted),
                found=repr(found),
                mend="The setting did not take effect: comparing it would be vacuous.",
            )


def _identity_body(identity: Identity) -> dict[str, Any]:
    return {
        "build": identity.build,
        "model": Path(identity.model).name,
        "context": identity.context,
        "slots": identity.slots,
        "facts": dict(identity.facts),
    }


def _with_peak(run: SideRun, peak: int | None) -> None:
    if run.transcript is not None:
        run.transcript = replace(
            run.transcript, clockwork=replace(run.transcript.clockwork, peak_rss_bytes=peak)
        )

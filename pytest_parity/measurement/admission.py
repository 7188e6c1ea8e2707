"""What can be refused before anything is started, and is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.core.claims import Claim
from pytest_parity.core.exactness import LEVELS, Level
from pytest_parity.core.plan import PairPlan, control_key
from pytest_parity.core.prompts import check_budget
from pytest_parity.core.receipts import Reason
from pytest_parity.engines.description import EngineDescription
from pytest_parity.engines.drivers import capabilities
from pytest_parity.errors import (
    AdmissionRefused,
    ConfigurationError,
    ContextExceeded,
    ParityError,
    PinMismatch,
    Unsupported,
)
from pytest_parity.measurement.installed import InstalledEngine
from pytest_parity.measurement.prompts import PromptStore
from pytest_parity.measurement.side import Role
from pytest_parity.measurement.workspace import Workspace

__all__ = ["Admitted", "admit", "reason_code"]

_CODES: tuple[tuple[type[ParityError], str], ...] = (
    (Unsupported, "unsupported"),
    (PinMismatch, "pin"),
    (ContextExceeded, "context"),
    (ConfigurationError, "configuration"),
    (AdmissionRefused, "refused"),
)


def reason_code(error: ParityError) -> str:
    """The short code of ``error`` in receipts: the cause's name in lower case where no shorter one exists."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    name = type(error).__name__
    return "".join("-" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


@dataclass(frozen=True, slots=True)
class Admitted:
    """A pair with everything that was decided before its start; ``refusal`` says why it may not."""

    plan: PairPlan
    claim: Claim | None
    claim_digest: str
    level: Level
    minimum_tokens: int
    ignore_eos: bool
    descriptions: Mapping[str, EngineDescription]
    lanes: Mapping[str, str]
    sides: Mapping[str, tuple[InstalledEngine, str]] = field(default_factory=dict)
    refusal: Reason | None = None

    def side(self, role: Role) -> tuple[InstalledEngine, str]:
        """The engine and lane of a role."""
        return self.sides[role]


def admit(
    workspace: Workspace, claims: Mapping[str, Claim], plan: PairPlan, lanes: tuple[str, str] | None
) -> Admitted:
    """Decide everything that needs no engine. Never starts one; a refusal is returned, not raised.

    Raises ConfigurationError for a lane that an engine does not have: there is nothing to write a receipt about.
    """
    if plan.cell.control_of is not None:
        users = [c for c in claims.values() if c.performance and control_key(c) == plan.cell.control_of]
        # As strict as the strictest claim that leans on it.
        claim = min(users, key=lambda c: LEVELS.index(c.exactness))
        engine = workspace.engines[claim.reference]
        descriptions = {"candidate": engine, "reference": engine}
        chosen = {"candidate": claim.other_lane, "reference": claim.other_lane}
        digest = (
            "sha256:"
            + hashlib.sha256(
                canonical_bytes({"control": plan.cell.control_of, "engine": engine.digest(claim.other_lane)})
            ).hexdigest()
        )
    else:
        claim = claims[plan.cell.claim]
        descriptions = {
            "candidate": workspace.engines[claim.candidate],
            "reference": workspace.engines[claim.reference],
        }
        pair_lanes = lanes or (claim.lane, claim.other_lane)
        chosen = {"candidate": pair_lanes[0], "reference": pair_lanes[1]}
        digest = claim.digest
    for role, description in descriptions.items():
        _check_lane(description, chosen[role])
    blank = Admitted(
        plan=plan,
        claim=claim,
        claim_digest=digest,
        level=claim.exactness,
        minimum_tokens=claim.minimum_tokens if plan.cell.control_of is None else 1,
        ignore_eos=claim.kind != "exact",
        descriptions=descriptions,
        lanes=chosen,
    )
    sides: dict[str, tuple[InstalledEngine, str]] = {}
    try:
        for description in descriptions.values():
            _check_cpus(description)
            _check_capabilities(description, blank)
            check_budget(plan.cell.depth, plan.cell.output_tokens, description.context, description.name)
        if plan.cell.control_of is None:
            _check_differ(blank)
        for role, description in descriptions.items():
            sides[role] = (workspace.installed(description.name), chosen[role])
            sides[role][0].check_pin(workspace.today())
        vocabulary = sides["reference"][0].vocabulary()
        PromptStore(workspace.prompts).check(plan.cell.fixture, plan.cell.depth, vocabulary, workspace.root)
    except ParityError as error:
        return _with(blank, {}, Reason(reason_code(error), str(error)))
    return _with(blank, sides, None)


def _with(
    blank: Admitted, sides: Mapping[str, tuple[InstalledEngine, str]], refusal: Reason | None
) -> Admitted:
    return Admitted(
        blank.plan,
        blank.claim,
        blank.claim_digest,
        blank.level,
        blank.minimum_tokens,
        blank.ignore_eos,
        blank.descriptions,
        blank.lanes,
        sides,
        refusal,
    )


def _check_lane(engine: EngineDescription, lane: str) -> None:
    if lane not in engine.lanes:
        raise ConfigurationError(
            f"lane {lane!r} of {engine.name}",
            expected=f"one of {', '.join(engine.lanes)}",
            found=repr(lane),
            mend=f"Describe it under [engines.{engine.name}.lanes.{lane}].",
        )


def _check_cpus(engine: EngineDescription) -> None:
    there = os.cpu_count() or 1
    beyond = sorted(cpu for cpu in engine.cpus or () if cpu >= there)
    if beyond:
        raise AdmissionRefused(
            f"cpus of {engine.name}",
            expected=f"processors of this machine, 0 to {there - 1}",
            found=", ".join(map(str, beyond)),
            mend=f"Correct 'cpus' of [engines.{engine.name}].",
        )


def _check_capabilities(engine: EngineDescription, pair: Admitted) -> None:
    can = capabilities(engine.driver)
    wanted = [("ids in", can.ids_in)]
    if pair.level == "tokens":
        wanted.append(("ids out", can.ids_out))
    if pair.ignore_eos:
        wanted.append(("ignore_eos", can.ignore_eos))
    lacking = [what for what, has in wanted if not has]
    if lacking:
        raise Unsupported(
            f"{engine.name} through driver {engine.driver}",
            expected=", ".join(what for what, _ in wanted),
            found=f"no {', no '.join(lacking)}",
            mend="Claim what this driver can do, or use another driver.",
        )


def _check_differ(pair: Admitted) -> None:
    ours, theirs = (
        pair.descriptions[role].behaviour(pair.lanes[role]) for role in ("candidate", "reference")
    )
    if ours == theirs:
        raise AdmissionRefused(
            f"claim {pair.plan.cell.claim}: candidate and reference",
            expected="two configurations that differ",
            found="the same one twice, a comparison that cannot fail (T52, T26)",
            mend="Compare different engines or lanes; an engine against itself is what the control is for.",
        )

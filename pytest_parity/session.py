"""What one run of pytest knows: configuration, register, plan, workspace. Built once, on first need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_parity import options
from pytest_parity.apparatus.identity import code_digest, machine_identity
from pytest_parity.configuration import Configuration, Register, load_configuration, load_register
from pytest_parity.core.claims import PLANS, Claim
from pytest_parity.core.plan import NO_CELL, Cell, Filter, PairPlan, SessionPlan, make_plan
from pytest_parity.errors import ConfigurationError
from pytest_parity.measurement.installed import why_not_installed
from pytest_parity.measurement.planning import estimate
from pytest_parity.measurement.workspace import Workspace

if TYPE_CHECKING:
    from pytest_parity.measurement.conduct import Conductor

__all__ = ["ParitySession"]


@dataclass
class ParitySession:
    """One run's state. ``id``: the session's name, made by the controller and given to its workers."""

    config: pytest.Config
    id: str
    names_pairs: bool = False
    """Does the command line name single pairs, as ``file::test[pair]``?"""
    asked_ids: dict[str, str] = field(default_factory=dict)
    """Pair id to the node id of the item that asks for it."""
    lease_lost: set[str] = field(default_factory=set)
    """Pair ids that failed only for want of the lease."""

    @cached_property
    def configuration(self) -> Configuration:
        """``parity.toml``."""
        given = self.config.getoption("--parity-config")
        path = (
            Path(self.config.invocation_params.dir) / given if given else self.config.rootpath / "parity.toml"
        )
        return load_configuration(path)

    @cached_property
    def register(self) -> Register:
        """All claims."""
        return load_register(self.configuration)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of this run: named by an option or a gate, else the default ones."""
        return tuple(self.register.claims[name] for name in self._names())

    def _names(self) -> Sequence[str]:
        known = self.register.claims
        gate = self.config.getoption("--parity-gate")
        asked = options.words(self.config.getoption("--claims"))
        source = "--claims"
        if gate is not None:
            if gate not in self.configuration.gates:
                raise ConfigurationError(
                    f"--parity-gate {gate}",
                    expected=f"a gate of {self.configuration.path.name}: {', '.join(self.configuration.gates) or 'none there'}",
                    found=repr(gate),
                    mend="Add it under [gates], or correct the name.",
                )
            asked, source = self.configuration.gates[gate], f"gate {gate}"
            if not asked:
                raise ConfigurationError(
                    source,
                    expected="at least one claim",
                    found="none",
                    mend="A gate over nothing passes nothing.",
                )
        if asked is None and self.names_pairs:
            return tuple(known)  # a pair that is named by its id may belong to any claim
        if asked is None and self.configuration.default_claims is not None:
            asked, source = self.configuration.default_claims, "default_claims"
        if asked is None or tuple(asked) == ("all",):
            return tuple(known)
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise ConfigurationError(
                f"{source}: claim {unknown[0]!r}",
                expected=f"a claim of the register: {_nearest(unknown[0], known)}",
                found=repr(unknown[0]),
                mend="Correct the name; parity plan --claims all lists every one.",
            )
        return tuple(dict.fromkeys(asked))

    @cached_property
    def filter(self) -> Filter:
        """What the options leave."""
        get = self.config.getoption
        reps, pairs = get("--reps"), get("--pairs")
        if reps is not None and reps < 1:
            raise ConfigurationError(
                f"--reps {reps}", expected="at least 1", found=str(reps), mend="Ask for one pair."
            )
        if pairs is not None and pairs not in PLANS:
            raise ConfigurationError(
                f"--pairs {pairs}",
                expected=f"one of {', '.join(PLANS)}",
                found=repr(pairs),
                mend="Name a plan.",
            )
        return Filter(
            options.integers("--depths", get("--depths")), options.words(get("--fixture-class")), reps, pairs
        )

    @cached_property
    def plan(self) -> SessionPlan:
        """Every pair of this run, before any selection by node id or ``-k``."""
        return make_plan(self.claims, self.filter, self.why_missing)

    def why_missing(self, claim: Claim) -> str | None:
        """Why an engine of ``claim`` is not on this machine, or ``None``."""
        for name in (claim.candidate, claim.reference):
            why = why_not_installed(self.configuration.engines[name], self.configuration.root)
            if why is not None:
                return why
        return None

    @cached_property
    def workspace(self) -> Workspace:
        """Folders and facts; makes nothing yet."""
        configuration = self.configuration
        hidden = configuration.root / ".parity"
        given = self.config.getoption("--receipts")
        return Workspace(
            session=self.id,
            root=configuration.root,
            receipts=Path(self.config.invocation_params.dir) / given if given else hidden / "receipts",
            prompts=hidden / "prompts",
            logs=hidden / "logs",
            engines=configuration.engines,
            device=configuration.device,
            lease=configuration.lease,
            quiet_s=configuration.quiet_s,
            machine=_machine(),
            code=_code(),
            harness_cpus=configuration.harness_cpus,
        )

    @cached_property
    def conductor(self) -> Conductor:
        """Measures pairs."""
        from pytest_parity.measurement.conduct import Conductor  # httpx is not wanted while collecting

        return Conductor(self.workspace, self.register.claims)

    @cached_property
    def by_id(self) -> dict[str, PairPlan]:
        """Pairs by id."""
        return self.plan.by_id()

    def unserved(self) -> list[tuple[str, str]]:
        """(claim, why) of planned claims that no selected item measures, where no ``-k`` or node id took them away."""
        if self.config.getoption("keyword", "") or self.names_pairs:
            return []
        planned = dict.fromkeys(pair.cell.claim for pair in self.plan.pairs if pair.cell.control_of is None)
        served = {self.by_id[pair].cell.claim for pair in self.asked_ids}
        return [(claim, "no test of this run measures it") for claim in planned if claim not in served]

    def must_be_measured(self, claim: str) -> bool:
        """Was ``claim`` named with ``--claims``, and is it unmeasured for another reason than a filter?

        Its engine is missing, or no test serves it: a wrong path must not turn a run green.
        """
        named = options.words(self.config.getoption("--claims")) or ()
        filtered = bool(self.config.getoption("keyword", "")) or self.names_pairs
        why = dict(self.plan.not_asked).get(claim, "")
        return claim in named and why != NO_CELL and not filtered

    def pair_of(self, nodeid: str) -> PairPlan | None:
        """The pair that a node id asks for."""
        bracket = nodeid.rpartition("[")[2].removesuffix("]") if nodeid.endswith("]") else ""
        if not bracket or bracket in self.by_id:
            return self.by_id.get(bracket)
        return next(
            (p for i, p in self.by_id.items() if bracket.startswith(i + "-") or bracket.endswith("-" + i)),
            None,
        )

    def ask(self, nodeids: Sequence[str]) -> None:
        """Note which items were selected."""
        for nodeid in nodeids:
            pair = self.pair_of(nodeid)
            if pair is not None:
                self.asked_ids[pair.id] = nodeid

    def asked_pairs(self) -> Iterator[PairPlan]:
        """Pairs that were selected, in the plan's order."""
        return (pair for pair in self.plan.pairs if pair.id in self.asked_ids)

    def seconds(self) -> Mapping[Cell, float | None]:
        """Machine time of one pair of each planned cell, from earlier receipts or the engines' descriptions."""
        return estimate(self.plan, self.workspace, self.register.claims)


def _machine() -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(machine_identity())


def _code() -> dict[str, Any]:
    from importlib.metadata import version

    folder = Path(__file__).parent
    return {
        "package": "pytest-parity",
        "version": version("pytest-parity"),
        "digest": code_digest(folder, (".py",)),
    }


def _nearest(name: str, known: Mapping[str, Claim]) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return ", ".join(near) if near else ", ".join(list(known)[:5])

"""``parity plan``: what a run would measure. Starts nothing."""

from __future__ import annotations

from pathlib import Path

from pytest_parity.configuration import load_configuration, load_register
from pytest_parity.core.claims import Claim
from pytest_parity.core.explain import plan_lines
from pytest_parity.core.plan import Filter, make_plan
from pytest_parity.errors import ConfigurationError
from pytest_parity.measurement.installed import why_not_installed
from pytest_parity.measurement.planning import estimate
from pytest_parity.measurement.workspace import Workspace, new_session_id

__all__ = ["plan"]


def plan(config: Path, claims: str | None) -> int:
    """Print the plan of the named claims (or the default ones) with its machine time."""
    configuration = load_configuration(config)
    register = load_register(configuration)
    names = claims.split(",") if claims not in (None, "all") and claims is not None else list(register.claims)
    source = "--claims"
    if claims is None and configuration.default_claims is not None:
        names, source = list(configuration.default_claims), "default_claims:"
    unknown = [name for name in names if name not in register.claims]
    if unknown:
        raise ConfigurationError(
            f"{source} {unknown[0]}",
            expected=f"claims of the register: {', '.join(register.claims)}",
            found=repr(unknown[0]),
            mend="Correct the name.",
        )
    chosen = [register.claims[name] for name in names]

    def missing(claim: Claim) -> str | None:
        engines = (configuration.engines[name] for name in (claim.candidate, claim.reference))
        return next(
            (why for engine in engines if (why := why_not_installed(engine, configuration.root))), None
        )

    session = make_plan(chosen, Filter(), missing)
    workspace = Workspace(
        session=new_session_id(),
        root=configuration.root,
        receipts=configuration.root / ".parity" / "receipts",
        prompts=configuration.root / ".parity" / "prompts",
        logs=configuration.root / ".parity" / "logs",
        engines=configuration.engines,
        device=configuration.device,
        lease=configuration.lease,
        quiet_s=configuration.quiet_s,
        machine={},
        code={},
    )
    for line in plan_lines(session, estimate(session, workspace, register.claims), ""):
        print(line)
    return 0

"""What stands in a receipt, and what the log says of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_parity.core.canonical import canonical_bytes, digest
from pytest_parity.core.exactness import Exact, compare
from pytest_parity.core.prompts import PromptFixture
from pytest_parity.core.receipts import FORMAT, divergence_body, exact_body, timing_body
from pytest_parity.errors import ParityError
from pytest_parity.measurement.admission import Admitted
from pytest_parity.measurement.pair import Result
from pytest_parity.measurement.redact import Redactor
from pytest_parity.measurement.window import Window
from pytest_parity.measurement.workspace import Workspace

__all__ = ["body_of", "prompt_body", "redactor_of", "subject_of"]


def redactor_of(admitted: Admitted, root: Path) -> Redactor:
    """What keeps this pair's secrets and places out of its receipt."""
    installed = [engine for engine, _ in admitted.sides.values()]
    declared = [(engine, admitted.lanes[role]) for role, engine in admitted.descriptions.items()]
    return Redactor(
        {
            "{root}": root,
            **{f"{{binary of {e.name}}}": e.binary for e in installed},
            **{f"{{model of {e.name}}}": e.model for e in installed},
        },
        [dict(os.environ), *(engine.environment for engine, _ in declared)],
        [engine.configuration(lane)["argv"] for engine, lane in declared],
    )


def subject_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the log says of a receipt beside its digest: enough to count attempts without opening it.

    ``seconds``: how long the pair held the lease, for planning; only of passed pairs. ``timed``: times of it
    are known, so that it counts as an attempt whatever came of it.
    """
    held = (body["lease"] or {}).get("held_s") if body["outcome"] == "passed" else None
    return {
        "seconds": held,
        "timed": body["sides"]["candidate"].get("clockwork") is not None,
        "session": body["session"],
        "claim": body["claim"]["name"],
        "claim_digest": body["claim"]["digest"],
        "depth": body["cell"]["depth"],
        "fixture": body["cell"]["fixture"],
        "rep": body["rep"],
        "outcome": body["outcome"],
        "candidate": _engine_key(body["sides"]["candidate"]),
        "reference": _engine_key(body["sides"]["reference"]),
    }


def prompt_body(prompt: PromptFixture | None) -> dict[str, Any] | None:
    """The prompt by its digest, and what it cannot see; ``None`` before there is one."""
    if prompt is None:
        return None
    return {
        "fixture": prompt.fixture_class,
        "tokens": prompt.depth,
        "digest": prompt.digest,
        "vocabulary": prompt.vocabulary,
        "source": prompt.source,
        "blind_spot": prompt.blind_spot,
    }


def _engine_key(side: Mapping[str, Any]) -> str:
    """What tells one engine from another in the log: configuration, binary, model, build id. A new build is new."""
    local = side.get("pin", {}).get("local", {})
    build = (side.get("identity") or {}).get("build")
    parts = [side["configuration_digest"], local.get("binary_sha256"), local.get("model_sha256"), build]
    return digest(canonical_bytes(parts))


def body_of(workspace: Workspace, window: Window, result: Result, minimum_tokens: int) -> dict[str, Any]:
    """The whole receipt of a pair as JSON values, secrets and this machine's places left out."""
    admitted = window.admitted
    plan = admitted.plan
    redactor = redactor_of(admitted, workspace.root)
    words = result.outcome in ("passed", "diverged", "void", "broken")
    times = result.outcome == "passed" or (result.outcome == "void" and _void_but_exact(window))
    sides = {}
    for role in ("candidate", "reference"):
        run = window.runs.get(role)
        if run is not None:
            sides[role] = run.body(redactor, words=words, clockwork=times)
        else:
            engine = admitted.descriptions[role]
            lane = admitted.lanes[role]
            unstarted = {
                "engine": engine.name,
                "lane": lane,
                "configuration": engine.configuration(lane),
                "configuration_digest": engine.digest(lane),
                "phase": "not started",
                "words": None,
                "clockwork": None,
            }
            sides[role] = redactor.value(unstarted)
    claim = admitted.claim
    return {
        "format": FORMAT,
        "session": workspace.session,
        "replay": redactor.text(window.replay),
        "pair": plan.id,
        "claim": {
            "name": plan.cell.claim,
            "digest": admitted.claim_digest,
            "row": claim.model_dump(mode="json")
            if claim is not None and plan.cell.control_of is None
            else None,
        },
        "cell": asdict(plan.cell),
        "rep": plan.rep,
        "attempt": 1,
        "order": plan.order,
        "level": admitted.level,
        "minimum_tokens": minimum_tokens,
        "ignore_eos": admitted.ignore_eos,
        "outcome": result.outcome,
        "reason": redactor.value(asdict(result.reason)) if result.reason is not None else None,
        "prompt": prompt_body(window.prompt),
        "sides": sides,
        "exactness": exact_body(result.exact) if result.exact is not None else None,
        "divergence": divergence_body(result.divergence) if result.divergence is not None else None,
        "timing": timing_body(result.timing) if result.timing is not None else None,
        "lease": _lease_body(window.lease, result.outcome),
        "scans": redactor.value(window.scans),
        "machine": dict(workspace.machine),
        "code": dict(workspace.code),
        "at": workspace.timestamp(),
    }


def _lease_body(lease: Mapping[str, Any] | None, outcome: str) -> dict[str, Any] | None:
    """What is told of the lease; how long it was held only where the pair passed."""
    if lease is None:
        return None
    return {key: value for key, value in lease.items() if key != "held_s" or outcome == "passed"}


def _void_but_exact(window: Window) -> bool:
    """A void pair keeps its times only where its words are equal: no time over divergent tokens, ever."""
    sides = [
        window.runs[role].transcript if role in window.runs else None for role in ("candidate", "reference")
    ]
    if sides[0] is None or sides[1] is None:
        return False
    try:
        return isinstance(compare(sides[0], sides[1], window.admitted.level), Exact)
    except ParityError:
        return False

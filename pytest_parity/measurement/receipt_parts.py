"""Parts of a receipt that need nothing but what they are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_parity.core.canonical import canonical_bytes, digest
from pytest_parity.core.prompts import PromptFixture
from pytest_parity.measurement.admission import Admitted
from pytest_parity.measurement.redact import Redactor

__all__ = ["prompt_body", "redactor_of", "subject_of"]


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

    ``seconds``: how long the pair held the lease, for planning; only of passed pairs.
    """
    held = body["lease"].get("held_s") if body["outcome"] == "passed" else None
    return {
        "seconds": held,
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

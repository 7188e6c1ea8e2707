"""``parity engine``: pinned engines and models."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pytest_parity.engines import provision
from pytest_parity.engines.provision import ENGINE_PINS, MODEL_PINS

__all__ = ["build", "listing", "model"]


def build(name: str) -> int:
    """Make or find an engine, and say what it is."""
    local = provision.build_engine(name, report=_say)
    print(f"{name}: {local.version_text.splitlines()[0]}")
    print(f"  binary SHA-256 {local.binary_sha256}")
    print(f"  source SHA-256 {local.source_sha256}")
    print(f"  {local.compiler} {local.compiler_version}, built in {local.build_seconds:.0f} s")
    return 0


def model(name: str, variants: Sequence[str]) -> int:
    """Make or find a model's variants, and say what they are."""
    from pytest_parity.engines.provision.pins import model_pin

    for variant in variants or model_pin(name).variants:
        file = provision.provide_model(name, variant, report=_say)
        print(f"{name} {variant}: {file.path.stat().st_size:,} bytes, SHA-256 {file.sha256}")
    return 0


def listing() -> int:
    """Every pin, and whether it is on this machine."""
    for name in ENGINE_PINS:
        local = provision.installed(name)
        state = (
            f"built, {local.version_text.splitlines()[0]}"
            if local
            else f"not built: parity engine build {name}"
        )
        print(f"{name:<16} {state}")
    for name, pin in MODEL_PINS.items():
        for variant in pin.variants:
            there = provision.model_path(name, variant) is not None
            print(
                f"{name + ' ' + variant:<16} {'there' if there else f'not there: parity engine model {name} {variant}'}"
            )
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

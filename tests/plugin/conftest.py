"""These tests start engines; the plugin refuses to measure beside anybody else's."""

from __future__ import annotations

import os

import pytest

from pytest_parity.apparatus.scan import scan


@pytest.fixture(scope="session", autouse=True)
def _no_foreign_engine() -> None:
    """Fail at once, and say how to be alone, where every pair would only be refused."""
    seen = scan(frozenset({os.getpid()})).processes
    if seen is None:
        pytest.exit(
            "the process list cannot be read: tests/plugin cannot tell whether it is alone", returncode=1
        )
    if seen:
        names = ", ".join(f"{found.name} (pid {found.pid})" for found in seen)
        pytest.exit(
            f"tests/plugin cannot measure beside {names}. Run it alone, or in a process namespace of its own: "
            "unshare -pf --mount-proc pytest tests/plugin",
            returncode=1,
        )

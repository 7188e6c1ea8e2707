"""The fixtures that a claim test uses: ``parity``, and the engines and lease behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_parity.stash import CONTROLLER, HANDLE

if TYPE_CHECKING:
    from pytest_parity.handle import ParityHandle

__all__ = ["candidate", "lease", "parity", "reference"]


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Iterator[ParityHandle]:
    """One pair of a claim: ``parity.measure().exact().record()``.

    Nothing is measured before ``measure()``, no timing exists before ``exact()``, and the item fails without
    ``record()``.
    """
    from pytest_parity.handle import ParityHandle

    handle = ParityHandle(request.config.stash[CONTROLLER], request.node, getattr(request, "param", None))
    request.node.stash[HANDLE] = handle
    handle.skip_if_settled()
    yield handle
    handle.close()


@pytest.fixture
def candidate(parity: ParityHandle) -> str:
    """Name of the engine under test."""
    return parity.engine("candidate")


@pytest.fixture
def reference(parity: ParityHandle) -> str:
    """Name of the pinned engine that defines what is right."""
    return parity.engine("reference")


@pytest.fixture
def lease(parity: ParityHandle) -> str:
    """Name of the device whose lease each pair takes."""
    return parity.device

"""Where pytest keeps this plugin's two objects: one a run, one an item."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_parity.control import Controller
    from pytest_parity.handle import ParityHandle

__all__ = ["CONTROLLER", "HANDLE"]

CONTROLLER: pytest.StashKey[Controller] = pytest.StashKey()
HANDLE: pytest.StashKey[ParityHandle] = pytest.StashKey()

"""Drivers by the name that ``parity.toml`` gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pytest_parity.engines.driver import Capabilities, Driver
from pytest_parity.engines.llama_server import LlamaServerDriver

__all__ = ["DRIVERS", "capabilities", "connect"]

DRIVERS: Mapping[str, Callable[[str], Driver]] = MappingProxyType({"llama-server": LlamaServerDriver})
NOWHERE = "http://127.0.0.1:9"
"""An address that nothing is asked at: what a dialect offers needs no running engine."""


def connect(name: str, url: str) -> Driver:
    """The driver called ``name``, bound to an address. Opens nothing yet."""
    return DRIVERS[name](url)


def capabilities(name: str) -> Capabilities:
    """What the dialect called ``name`` offers."""
    driver = connect(name, NOWHERE)
    try:
        return driver.capabilities()
    finally:
        driver.close()

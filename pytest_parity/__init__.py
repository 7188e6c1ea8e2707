"""Claims about LLM inference engines as pytest cases that can fail, and as evidence that a stranger can check.

A claim test uses the ``parity`` fixture; its type is :class:`ParityHandle`. Names are loaded on first use, so
that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_parity.core.claims import Claim
    from pytest_parity.core.exactness import Divergence, Exact
    from pytest_parity.core.timing import PairTiming, SideTiming
    from pytest_parity.errors import ParityError
    from pytest_parity.handle import ParityHandle
    from pytest_parity.measurement.pair import Diverged, ExactPair, MeasuredPair, Receipt, Unfinished

_PLACES = {
    "Claim": "pytest_parity.core.claims",
    "Diverged": "pytest_parity.measurement.pair",
    "Divergence": "pytest_parity.core.exactness",
    "Exact": "pytest_parity.core.exactness",
    "ExactPair": "pytest_parity.measurement.pair",
    "MeasuredPair": "pytest_parity.measurement.pair",
    "PairTiming": "pytest_parity.core.timing",
    "ParityError": "pytest_parity.errors",
    "ParityHandle": "pytest_parity.handle",
    "Receipt": "pytest_parity.measurement.pair",
    "SideTiming": "pytest_parity.core.timing",
    "Unfinished": "pytest_parity.measurement.pair",
}

__all__ = [
    "Claim",
    "Diverged",
    "Divergence",
    "Exact",
    "ExactPair",
    "MeasuredPair",
    "PairTiming",
    "ParityError",
    "ParityHandle",
    "Receipt",
    "SideTiming",
    "Unfinished",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)

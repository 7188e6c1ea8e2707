"""Mutants: the same weights under a forward pass with one small mistake, of the kind real engines have had.

Each is a change of the constants or a permutation of the weights, so both kernels run it at full speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pytest_parity.engines.embedded.weights import Geometry, LayerWeights, Weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mutation = Callable[[Weights], tuple[Geometry, Weights]]

WRONG_ROPE_BASE = 20_000.0
"""Twice the base that the weights are made for."""


def _rope_base(weights: Weights) -> tuple[Geometry, Weights]:
    return replace(weights.geometry, rope_base=WRONG_ROPE_BASE), weights


def _window_minus_one(weights: Weights) -> tuple[Geometry, Weights]:
    return replace(weights.geometry, window=weights.geometry.window - 1), weights


def _epsilon_x10(weights: Weights) -> tuple[Geometry, Weights]:
    return replace(weights.geometry, epsilon=weights.geometry.epsilon * 10.0), weights


def _swap_kv(weights: Weights) -> tuple[Geometry, Weights]:
    shape = weights.geometry

    def swapped(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
        heads = matrix.reshape(shape.width, shape.kv_heads, shape.head_width)
        return np.ascontiguousarray(heads[:, ::-1].reshape(shape.width, shape.kv_width))

    def layer_swapped(layer: LayerWeights) -> LayerWeights:
        return replace(layer, key=swapped(layer.key), value=swapped(layer.value))

    return shape, replace(weights, layers=tuple(layer_swapped(layer) for layer in weights.layers))


MUTANTS: MappingProxyType[str, Mutation] = MappingProxyType(
    {
        "rope-base": _rope_base,
        "swap-kv": _swap_kv,
        "window-minus-one": _window_minus_one,
        "epsilon-x10": _epsilon_x10,
    }
)
"""The mutants by name."""


def mutate(name: str | None, weights: Weights) -> tuple[Geometry, Weights]:
    """Return the constants and weights of mutant ``name``, or the right ones for None."""
    if name is None:
        return weights.geometry, weights
    if name not in MUTANTS:
        message = f"mutant: expected one of {', '.join(MUTANTS)}, found {name!r}; choose one of them"
        raise ValueError(message)
    return MUTANTS[name](weights)

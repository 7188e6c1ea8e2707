"""The same decode step with fewer, larger products and almost no temporaries.

Queries, keys and values come of one product, gate and up of another; the query scale is folded into the
weights; RoPE is one complex multiplication, because a rotated pair is a complex number; the rotations are
made once for many positions. It writes the same tokens; its rows may differ from the plain ones in the last
bits, as two kernels of a real engine do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_parity.engines.embedded.plain import SCORE_OFFSET, Cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytest_parity.engines.embedded.weights import Geometry, LayerWeights, Weights

_ROTATION_BLOCK = 256
"""Positions whose rotations are made at once."""


@dataclass(frozen=True, eq=False)
class _FusedLayer:
    """query|key|value side by side, gate|up side by side; the rest as it was."""

    attention: NDArray[np.float32]
    output: NDArray[np.float32]
    gate_up: NDArray[np.float32]
    down: NDArray[np.float32]

    @classmethod
    def of(cls, layer: LayerWeights, scale: np.float32) -> _FusedLayer:
        return cls(
            np.ascontiguousarray(np.hstack([layer.query * scale, layer.key, layer.value])),
            layer.output,
            np.ascontiguousarray(np.hstack([layer.gate, layer.up])),
            layer.down,
        )


class FusedKernels:
    """A faster ``decode``; prompts are read by the plain kernels, whose products are large already."""

    def __init__(self, weights: Weights, geometry: Geometry) -> None:
        """Lay ``weights`` out for decoding under ``geometry``."""
        self._geometry = geometry
        self._embedding = weights.embedding
        self._head = weights.head
        self._layers = [
            _FusedLayer.of(layer, np.float32(geometry.head_width**-0.5)) for layer in weights.layers
        ]
        self._mean = np.float32(1.0 / geometry.width)
        self._epsilon = np.float32(geometry.epsilon)
        self._rotations: dict[int, NDArray[np.complex64]] = {}

    def decode(self, cache: Cache, start: int, ids: Sequence[int]) -> NDArray[np.float32]:
        """Compute the logit rows (len(ids), vocabulary) of ``ids`` at positions ``start`` and on.

        As in the plain kernels each row is a matrix of its own, so that its bits do not depend on the others.
        """
        shape = self._geometry
        end = start + len(ids)
        rows = self._embedding.take(ids, axis=0)[:, None]
        turned = shape.heads + shape.kv_heads
        rotation = self._rotation(start, len(ids))
        for index, layer in enumerate(self._layers):
            projected = self._norm(rows) @ layer.attention
            split = projected.reshape(len(ids), -1, shape.head_width)
            pairs = split[:, :turned].view(np.complex64)
            pairs *= rotation
            keys, values = cache.keys[index], cache.values[index]
            keys[:, start:end] = split[:, shape.heads : turned].swapaxes(0, 1)
            values[:, start:end] = split[:, turned:].swapaxes(0, 1)
            attended = self._attend(keys, values, start, split[:, : shape.heads])
            rows += attended @ layer.output
            both = self._norm(rows) @ layer.gate_up
            gate, up = both[..., : shape.feed_forward], both[..., shape.feed_forward :]
            up *= gate
            np.negative(gate, out=gate)
            np.exp(gate, out=gate)
            gate += np.float32(1.0)
            up /= gate
            rows += up @ layer.down
        logits: NDArray[np.float32] = self._norm(rows) @ self._head
        return logits[:, 0]

    def _norm(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        scale = np.einsum("ijk,ijk->ij", rows, rows)
        scale *= self._mean
        scale += self._epsilon
        np.sqrt(scale, out=scale)
        normed: NDArray[np.float32] = rows / scale[..., None]
        return normed

    def _attend(
        self,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        start: int,
        queries: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        shape = self._geometry
        attended = np.empty((len(queries), shape.kv_heads, shape.group, shape.head_width), np.float32)
        for row, query in enumerate(queries):
            end = start + row + 1
            begin = end - shape.window if end > shape.window else 0
            grouped = query.reshape(shape.kv_heads, shape.group, shape.head_width)
            scores = grouped @ keys[:, begin:end].swapaxes(1, 2)
            scores -= SCORE_OFFSET
            np.exp(scores, out=scores)
            out = attended[row]
            np.matmul(scores, values[:, begin:end], out=out)
            out /= np.add.reduce(scores, axis=-1, keepdims=True)
        return attended.reshape(len(queries), 1, shape.query_width)

    def _rotation(self, start: int, count: int) -> NDArray[np.complex64]:
        """Return the unit rotations of positions ``start`` and on, (count, 1, pairs), from a table."""
        if count > _ROTATION_BLOCK:
            return self._rotations_from(start, count)
        block, offset = divmod(start, _ROTATION_BLOCK)
        table = self._rotations.get(block)
        if table is None:
            # Two blocks long, so that a step that crosses the end of the first finds its rotations here.
            table = self._rotations_from(block * _ROTATION_BLOCK, 2 * _ROTATION_BLOCK)
            self._rotations = {block: table}
        return table[offset : offset + count]

    def _rotations_from(self, start: int, count: int) -> NDArray[np.complex64]:
        positions = np.arange(start, start + count, dtype=np.float64)
        angles = positions[:, None] * self._geometry.frequencies
        turned: NDArray[np.complex64] = np.exp(1j * angles).astype(np.complex64)
        return turned[:, None]

"""The plain kernels: the forward pass as the papers write it, and its cache of keys and values.

The fused kernels do the same work in another way; ``model`` chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytest_parity.engines.embedded.weights import Geometry, Weights

ATTENTION_BLOCK = 256
"""Queries that attend at once while a prompt is read: bounds the score matrix whatever the prefill block."""

SCORE_OFFSET = np.float32(60.0)
"""Taken from every prefill score before exp, in place of the row maximum: softmax is the same for any offset.

The copy weights' scores lie within about +-90, so neither exp nor a row's sum overflows.
"""


class Cache:
    """Keys and values of every position seen, for each layer (kv_heads, capacity, head_width) float32.

    The arrays are zero pages until they are written: a large capacity costs nothing until it is used.
    """

    def __init__(self, geometry: Geometry, capacity: int) -> None:
        """Reserve room for ``capacity`` positions."""
        shape = (geometry.kv_heads, capacity, geometry.head_width)
        self.capacity = capacity
        self.keys = [np.zeros(shape, np.float32) for _ in range(geometry.layers)]
        self.values = [np.zeros(shape, np.float32) for _ in range(geometry.layers)]


_Attend = Callable[
    ["NDArray[np.float32]", "NDArray[np.float32]", int, "NDArray[np.float32]"], "NDArray[np.float32]"
]
"""Keys, values, position of the first query, queries -> what the queries gathered, shaped like them."""


def rms_norm(rows: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    """Divide each row by its root mean square; the gains of this model are one."""
    mean_square = np.mean(np.square(rows), axis=-1, keepdims=True)
    normed: NDArray[np.float32] = rows / np.sqrt(mean_square + np.float32(epsilon))
    return normed


def silu(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``x * sigmoid(x)``."""
    falling: NDArray[np.float32] = np.exp(-rows)
    return rows / (falling + np.float32(1.0))


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosines and sines of consecutive positions, each (positions, 1, pairs) float32."""

    cosines: NDArray[np.float32]
    sines: NDArray[np.float32]

    @classmethod
    def at(cls, geometry: Geometry, start: int, count: int) -> Rotation:
        """Make the rotation of positions ``start`` to ``start + count - 1``."""
        positions = np.arange(start, start + count, dtype=np.float64)
        angles = positions[:, None] * geometry.frequencies
        return cls(np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None])

    def turn(self, heads: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rotate interleaved pairs of (positions, heads, head_width), the layout of llama's GGUF files."""
        even, odd = heads[..., 0::2], heads[..., 1::2]
        turned = np.empty_like(heads)
        turned[..., 0::2] = even * self.cosines - odd * self.sines
        turned[..., 1::2] = even * self.sines + odd * self.cosines
        return turned


class PlainKernels:
    """The forward pass as the papers write it: one product for each matrix."""

    def __init__(self, weights: Weights, geometry: Geometry) -> None:
        """Run ``weights`` under ``geometry``, which may differ from the weights' own in a mutant."""
        self._weights = weights
        self._geometry = geometry
        self._scale = np.float32(geometry.head_width**-0.5)
        self._masks: dict[tuple[int, int, int], NDArray[np.float32]] = {}

    def prefill(
        self, cache: Cache, start: int, ids: NDArray[np.int64], *, last: bool
    ) -> NDArray[np.float32] | None:
        """Read one block of a prompt; with ``last`` return its last id's logits, (vocabulary,) float32."""
        rows = self._forward(cache, start, self._weights.embedding[ids], self._attend_blocks)
        if not last:
            return None
        logits: NDArray[np.float32] = self._logits(rows[-1:])[0]
        return logits

    def decode(self, cache: Cache, start: int, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logit rows (len(ids), vocabulary) of ``ids`` at positions ``start`` and on.

        The rows travel as a stack of one-row matrices, (len(ids), 1, width), and attend one at a time: BLAS
        adds up a product of one row in another order than one of two, of two in another than of nine. Taken
        one at a time, a row's bits can't depend on how many are decoded together, on any processor.
        """
        embedded: NDArray[np.float32] = self._weights.embedding[np.asarray(ids)][:, None]
        return self._logits(self._forward(cache, start, embedded, self._attend_rows))[:, 0]

    def _logits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = rms_norm(rows, self._geometry.epsilon) @ self._weights.head
        return logits

    def _forward(
        self, cache: Cache, start: int, rows: NDArray[np.float32], attend: _Attend
    ) -> NDArray[np.float32]:
        """Run all layers over embedded ``rows``, (positions, width) or (positions, 1, width), in place."""
        shape = self._geometry
        end = start + len(rows)
        rotation = Rotation.at(shape, start, len(rows))
        for index, layer in enumerate(self._weights.layers):
            normed = rms_norm(rows, shape.epsilon)
            queries = rotation.turn((normed @ layer.query).reshape(-1, shape.heads, shape.head_width))
            keys = rotation.turn((normed @ layer.key).reshape(-1, shape.kv_heads, shape.head_width))
            values = (normed @ layer.value).reshape(-1, shape.kv_heads, shape.head_width)
            cache.keys[index][:, start:end] = keys.transpose(1, 0, 2)
            cache.values[index][:, start:end] = values.transpose(1, 0, 2)
            queries *= self._scale
            attended = attend(cache.keys[index], cache.values[index], start, queries)
            rows += attended.reshape(*rows.shape[:-1], shape.query_width) @ layer.output
            normed = rms_norm(rows, shape.epsilon)
            rows += (silu(normed @ layer.gate) * (normed @ layer.up)) @ layer.down
        return rows

    def _attend_rows(
        self,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        start: int,
        queries: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Attend for each query on its own, over the window that ends with its own position."""
        shape = self._geometry
        attended = np.empty_like(queries)
        for row, query in enumerate(queries):
            end = start + row + 1
            begin = max(0, end - shape.window)
            grouped = query.reshape(shape.kv_heads, shape.group, shape.head_width)
            scores = grouped @ keys[:, begin:end].transpose(0, 2, 1)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (weights @ values[:, begin:end]) / weights.sum(axis=-1, keepdims=True)
            attended[row] = mixed.reshape(shape.heads, shape.head_width)
        return attended

    def _attend_blocks(
        self,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        start: int,
        queries: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Attend for many queries at once, in blocks that bound the memory of the score matrix."""
        shape = self._geometry
        attended = np.empty_like(queries)
        for first in range(0, len(queries), ATTENTION_BLOCK):
            block = queries[first : first + ATTENTION_BLOCK]
            count = len(block)
            begin = max(0, start + first - shape.window + 1)
            end = start + first + count
            grouped = block.reshape(count, shape.kv_heads, shape.group, shape.head_width).transpose(
                1, 2, 0, 3
            )
            stacked = grouped.reshape(shape.kv_heads, shape.group * count, shape.head_width)
            scores = stacked @ keys[:, begin:end].transpose(0, 2, 1)
            scores -= SCORE_OFFSET
            np.exp(scores, out=scores)
            masked = scores.reshape(shape.kv_heads, shape.group, count, end - begin)
            masked *= self._mask(count, start + first - begin, end - begin)
            mixed = (scores @ values[:, begin:end]) / scores.sum(axis=-1, keepdims=True)
            back = mixed.reshape(shape.kv_heads, shape.group, count, shape.head_width).transpose(2, 0, 1, 3)
            attended[first : first + count] = back.reshape(count, shape.heads, shape.head_width)
        return attended

    def _mask(self, queries: int, offset: int, keys: int) -> NDArray[np.float32]:
        """Return 1 where a query may see a key and 0 elsewhere, (queries, keys).

        ``offset`` is the place of the first query among the keys. Only the newest mask is kept: inside a long
        prompt every block has the same one.
        """
        wanted = (queries, offset, keys)
        if wanted not in self._masks:
            own = np.arange(queries)[:, None] + offset
            seen = np.arange(keys)[None]
            allowed = (seen <= own) & (seen > own - self._geometry.window)
            self._masks = {wanted: allowed.astype(np.float32)}
        return self._masks[wanted]

"""The shape of the model, and its weights, made from a seed without any training.

The *copy weights* make the model write the id that stands ``copy_distance`` positions before the id being
predicted. How: every embedding is (constant, code of the id); in layer 0 the keys carry only the constant,
as (1, 0) in each RoPE pair, so that after rotation a key says nothing but where it stands; the copy head's
query carries the same constant turned back by ``copy_distance - 1`` positions, so that its score peaks at
exactly that distance; the values carry the code, the output matrix reads the copied code.

Text that depends on every part of the forward pass comes of this: a wrong RoPE base, swapped heads, a window
short by one or another epsilon all change the tokens, which random weights do not show.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CODE_WIDTH = 32
"""Dimensions of the code that tells one id from another."""


@dataclass(frozen=True)
class Geometry:
    """Shape and constants of the model. The defaults are the engine's one model.

    ``window`` is how many positions a query sees, itself included; ``copy_distance`` is how far back the copy
    weights look. They are equal in the model as made; a mutant may change ``window`` alone.
    """

    window: int = 512
    copy_distance: int = 512
    width: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 16
    feed_forward: int = 128
    vocabulary: int = 260
    context: int = 131_072
    epsilon: float = 1e-5
    rope_base: float = 10_000.0

    def with_window(self, window: int) -> Geometry:
        """Return the same shape with attention over ``window`` positions."""
        if window < 1:
            message = f"window: expected at least 1 position, found {window}; widen it"
            raise ValueError(message)
        return replace(self, window=window)

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads

    @property
    def query_width(self) -> int:
        """Columns of a query projection."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Columns of a key or value projection."""
        return self.kv_heads * self.head_width

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """RoPE frequency of each pair in radians per position, shape (head_width / 2,)."""
        pairs = np.arange(self.head_width // 2, dtype=np.float64)
        return np.asarray(self.rope_base ** (-2.0 * pairs / self.head_width), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Float32 matrices of one layer, each of shape (inputs, outputs), row-major: ``rows @ matrix``."""

    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    output: NDArray[np.float32]
    gate: NDArray[np.float32]
    up: NDArray[np.float32]
    down: NDArray[np.float32]

    def named(self) -> tuple[tuple[str, NDArray[np.float32]], ...]:
        """Return the matrices with the names that llama's GGUF layout gives them, in a fixed order."""
        return (
            ("attn_q", self.query),
            ("attn_k", self.key),
            ("attn_v", self.value),
            ("attn_output", self.output),
            ("ffn_gate", self.gate),
            ("ffn_up", self.up),
            ("ffn_down", self.down),
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """Embedding (vocabulary, width), the layers, head (width, vocabulary). Norm gains are one."""

    geometry: Geometry
    seed: int
    embedding: NDArray[np.float32]
    layers: tuple[LayerWeights, ...]
    head: NDArray[np.float32]

    def digest(self) -> str:
        """SHA-256 over the bytes of every matrix in a fixed order, as little-endian float32."""
        digest = hashlib.sha256()
        matrices = [self.embedding, self.head]
        matrices += [matrix for layer in self.layers for _, matrix in layer.named()]
        for matrix in matrices:
            digest.update(repr(matrix.shape).encode())
            digest.update(np.ascontiguousarray(matrix, dtype="<f4").tobytes())
        return digest.hexdigest()


# Amplitudes of the construction. The embedding is small enough for the norm's epsilon to matter (an epsilon
# ten times too large is invisible from an embedding scale of 0.02 on).
_EMBEDDING_SCALE = 0.01
_CONSTANT = 2.0
_COPY_AMPLITUDE = 40.0
_KEY_NOISE = 0.02
_FREE_QUERY = 2.0
_FREE_OUTPUT = 0.8
_FREE_LAYER_OUTPUT = 0.3
_FREE_HEAD = 0.0005
_HEAD_LIFT = 4.0


@dataclass(frozen=True)
class _Plan:
    """Where the construction puts things in the residual stream, and their size after the first norm."""

    code: slice
    copied: slice
    free: slice
    constant_in: float
    code_in: float

    @classmethod
    def of(cls, geometry: Geometry) -> _Plan:
        mean_square = (_CONSTANT**2 + 1.0) * _EMBEDDING_SCALE**2 / geometry.width
        root = float(np.sqrt(mean_square + geometry.epsilon))
        return cls(
            code=slice(1, 1 + CODE_WIDTH),
            copied=slice(1 + CODE_WIDTH, 1 + 2 * CODE_WIDTH),
            free=slice(1 + 2 * CODE_WIDTH, geometry.width),
            constant_in=_CONSTANT * _EMBEDDING_SCALE / root,
            code_in=_EMBEDDING_SCALE / root,
        )

    def free_count(self) -> int:
        return self.free.stop - self.free.start if self.free.stop > self.free.start else 0


def build_weights(seed: int, geometry: Geometry | None = None) -> Weights:
    """Make the copy weights of ``seed``. The same seed gives the same weights on every run.

    Raises ValueError where the geometry leaves the construction no room.
    """
    shape = geometry if geometry is not None else Geometry()
    _check(shape)
    # The legacy generator is the one whose stream numpy promises never to change: a digest should hold.
    draw = np.random.RandomState(seed)
    plan = _Plan.of(shape)
    code = draw.standard_normal((shape.vocabulary, CODE_WIDTH))
    code /= np.linalg.norm(code, axis=1, keepdims=True)

    embedding = np.zeros((shape.vocabulary, shape.width))
    embedding[:, 0] = _CONSTANT
    embedding[:, plan.code] = code
    embedding *= _EMBEDDING_SCALE

    layers = [_copy_layer(draw, shape, plan)]
    layers += [_free_layer(draw, shape, plan) for _ in range(1, shape.layers)]

    head = np.zeros((shape.vocabulary, shape.width))
    # The constant lifts every logit alike. Greedy choice does not see it; a multiplicative repetition penalty
    # does, as it does on the mostly positive logits of a trained model.
    head[:, 0] = _HEAD_LIFT
    head[:, plan.copied] = code
    head[:, plan.free] = draw.standard_normal((shape.vocabulary, plan.free_count())) * _FREE_HEAD
    return Weights(shape, seed, _stored(embedding), tuple(layers), _stored(head.T))


def _check(shape: Geometry) -> None:
    if shape.kv_heads * shape.head_width != CODE_WIDTH:
        message = (
            f"geometry: the key and value heads together must be {CODE_WIDTH} wide (they carry the code), "
            f"found {shape.kv_heads} heads of {shape.head_width}; change kv_heads or head_width"
        )
        raise ValueError(message)
    if shape.heads != 2 * shape.kv_heads:
        message = (
            f"geometry: expected two query heads for each key head (a copy head and a free one), "
            f"found {shape.heads} query heads for {shape.kv_heads}; change heads"
        )
        raise ValueError(message)
    if shape.width <= 1 + 2 * CODE_WIDTH:
        message = f"geometry: expected a width above {1 + 2 * CODE_WIDTH}, found {shape.width}; widen it"
        raise ValueError(message)


def _stored(matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.ascontiguousarray(matrix, dtype=np.float32)


def _copy_layer(draw: np.random.RandomState, shape: Geometry, plan: _Plan) -> LayerWeights:
    """Layer 0. Matrices are laid out (outputs, inputs) while they are filled, and stored transposed."""
    wide = shape.head_width
    free = plan.free_count()
    query = np.zeros((shape.query_width, shape.width))
    key = np.zeros((shape.kv_width, shape.width))
    value = np.zeros((shape.kv_width, shape.width))
    output = np.zeros((shape.width, shape.query_width))
    turn = (shape.copy_distance - 1) * shape.frequencies
    for head in range(shape.kv_heads):
        own = slice(head * wide, (head + 1) * wide)
        copy = slice(head * shape.group * wide, (head * shape.group + 1) * wide)
        spare = slice(copy.stop, copy.stop + wide)
        code_part = slice(plan.code.start + own.start, plan.code.start + own.stop)
        copied_part = slice(plan.copied.start + own.start, plan.copied.start + own.stop)
        key[own.start : own.stop : 2, 0] = 1.0 / plan.constant_in
        key[own, plan.code] += draw.standard_normal((wide, CODE_WIDTH)) * _KEY_NOISE / plan.code_in
        query[copy.start : copy.stop : 2, 0] = _COPY_AMPLITUDE / plan.constant_in * np.cos(turn)
        query[copy.start + 1 : copy.stop : 2, 0] = -_COPY_AMPLITUDE / plan.constant_in * np.sin(turn)
        value[own, code_part] = np.eye(wide) / plan.code_in
        output[copied_part, copy] = np.eye(wide) * _EMBEDDING_SCALE
        query[spare, plan.code] = draw.standard_normal((wide, CODE_WIDTH)) * _FREE_QUERY / plan.code_in
        output[plan.free, spare] = draw.standard_normal((free, wide)) * _EMBEDDING_SCALE * _FREE_OUTPUT
    return _layer(draw, shape, plan, query=query, key=key, value=value, output=output)


def _free_layer(draw: np.random.RandomState, shape: Geometry, plan: _Plan) -> LayerWeights:
    """Any other layer: random attention that writes to the free dimensions only."""
    output = np.zeros((shape.width, shape.query_width))
    output[plan.free] = draw.standard_normal((plan.free_count(), shape.query_width)) * (
        _EMBEDDING_SCALE * _FREE_LAYER_OUTPUT
    )
    return _layer(
        draw,
        shape,
        plan,
        query=draw.standard_normal((shape.query_width, shape.width)) * 0.15,
        key=draw.standard_normal((shape.kv_width, shape.width)) * 0.15,
        value=draw.standard_normal((shape.kv_width, shape.width)) * 0.1,
        output=output,
    )


def _layer(
    draw: np.random.RandomState, shape: Geometry, plan: _Plan, **attention: NDArray[np.float64]
) -> LayerWeights:
    """Join attention matrices, given as (outputs, inputs), with a random feed-forward part."""
    gate = draw.standard_normal((shape.feed_forward, shape.width)) * 0.2
    up = draw.standard_normal((shape.feed_forward, shape.width)) * 0.2
    down = np.zeros((shape.width, shape.feed_forward))
    down[plan.free] = draw.standard_normal((plan.free_count(), shape.feed_forward)) * (
        _EMBEDDING_SCALE * _FREE_LAYER_OUTPUT
    )
    stored = {name: _stored(matrix.T) for name, matrix in attention.items()}
    return LayerWeights(**stored, gate=_stored(gate.T), up=_stored(up.T), down=_stored(down.T))

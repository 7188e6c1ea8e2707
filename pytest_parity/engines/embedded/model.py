"""The model as a library: sessions that read a prompt, decode, and give whole logit rows.

Set ``OPENBLAS_NUM_THREADS=1`` (and its kin) before numpy is imported: two BLAS threads on a busy machine
made a prompt of 65,536 ids fifteen times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytest_parity.engines.embedded.fused import FusedKernels
from pytest_parity.engines.embedded.mutants import mutate
from pytest_parity.engines.embedded.plain import Cache, PlainKernels
from pytest_parity.engines.embedded.weights import Geometry, Weights, build_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


class Decoder(Protocol):
    """How rows of one decode step are computed: the seam between the plain and the fused kernels."""

    def decode(self, cache: Cache, start: int, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logit rows (len(ids), vocabulary) of ``ids`` at positions ``start`` and on."""
        ...


class Session:
    """One sequence: what has been read so far, and the steps that extend it."""

    def __init__(self, prefiller: PlainKernels, decoder: Decoder, cache: Cache) -> None:
        """Start an empty sequence over ``cache``."""
        self._prefiller = prefiller
        self._decoder = decoder
        self._cache = cache
        self.length = 0

    def prefill_blocks(
        self, ids: Sequence[int], chunk: int = 256
    ) -> Iterator[tuple[int, NDArray[np.float32] | None]]:
        """Read a prompt block by block: yields (ids read so far, the last id's logit row or None)."""
        if not ids:
            message = "prefill: expected at least one prompt id, found none; give the prompt"
            raise ValueError(message)
        self._make_room(len(ids))
        array = np.asarray(ids, dtype=np.int64)
        for first in range(0, len(array), chunk):
            block = array[first : first + chunk]
            done = first + len(block)
            row = self._prefiller.prefill(self._cache, self.length, block, last=done == len(array))
            self.length += len(block)
            yield done, row

    def prefill(self, ids: Sequence[int], chunk: int = 256) -> NDArray[np.float32]:
        """Read a prompt in blocks of ``chunk`` ids; return the logits after its last id, (vocabulary,)."""
        row = [row for _, row in self.prefill_blocks(ids, chunk)][-1]
        assert row is not None  # the last block always has one
        return row

    def step(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Append ``ids`` and return the logits after each of them, (len(ids), vocabulary) float32."""
        if not ids:
            message = "step: expected at least one id, found none; give the ids to append"
            raise ValueError(message)
        self._make_room(len(ids))
        rows = self._decoder.decode(self._cache, self.length, ids)
        self.length += len(ids)
        return rows

    def rewind(self, length: int) -> None:
        """Forget everything from position ``length`` on (a rejected draft, the end of a reused prefix)."""
        if not 0 <= length <= self.length:
            message = (
                f"rewind: expected a length from 0 to {self.length}, found {length}; a session only shrinks"
            )
            raise ValueError(message)
        self.length = length

    def _make_room(self, count: int) -> None:
        if self.length + count > self._cache.capacity:
            message = (
                f"session: expected at most {self._cache.capacity} positions, found {self.length} used and "
                f"{count} more asked for; make the session with a larger capacity"
            )
            raise ValueError(message)


@dataclass(frozen=True, eq=False)
class EmbeddedModel:
    """Weights with the kernels that run them; makes sessions."""

    weights: Weights
    geometry: Geometry
    kernels: str
    prefiller: PlainKernels
    decoder: Decoder

    @classmethod
    def load(
        cls, seed: int = 0, *, kernels: str = "plain", mutant: str | None = None, window: int | None = None
    ) -> EmbeddedModel:
        """Make the model of ``seed``. ``window`` overrides how far attention looks, not what was made."""
        weights = build_weights(seed)
        geometry, weights = mutate(mutant, weights)
        if window is not None:
            geometry = geometry.with_window(window)
        plain = PlainKernels(weights, geometry)
        if kernels not in ("plain", "fused"):
            message = f"kernels: expected plain or fused, found {kernels!r}; choose one of the two"
            raise ValueError(message)
        decoder: Decoder = FusedKernels(weights, geometry) if kernels == "fused" else plain
        return cls(weights, geometry, kernels, plain, decoder)

    def session(self, capacity: int) -> Session:
        """Start an empty sequence with room for ``capacity`` positions."""
        return Session(self.prefiller, self.decoder, Cache(self.geometry, capacity))

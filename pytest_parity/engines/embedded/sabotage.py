"""Where the faults take hold of a completion: its prompt, its choices, its pace and its events.

A class without its fault does nothing, so the honest engine runs the same code.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_parity.engines.embedded.vocabulary import BEGIN, END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytest_parity.engines.embedded.faults import Faults
    from pytest_parity.engines.embedded.generation import Chooser

PENALTY = 1.1
PENALTY_WINDOW = 64
"""The hidden penalty: llama.cpp's once customary strength and its range of recent ids."""

LOST_EVERY = 4


class StreamCutError(Exception):
    """The connection shall end here, without a final event."""


def evaluated_prompt(faults: Faults, prompt: tuple[int, ...], copy_distance: int) -> tuple[int, ...]:
    """Return the ids that are read in place of ``prompt``."""
    if faults.wrong_prompt:
        # Inside the stretch that the model copies from, so that the third id shows it.
        place = max(0, len(prompt) - copy_distance + 2)
        prompt = (*prompt[:place], (prompt[place] + 1) % END, *prompt[place + 1 :])
    if faults.extra_bos:
        prompt = (BEGIN, *prompt)
    return prompt


class FaultyChooser:
    """A chooser that is led astray: a penalty on recent ids, logits that are no numbers, another id."""

    def __init__(self, faults: Faults, inner: Chooser, prompt: Sequence[int]) -> None:
        """Choose like ``inner``, with the faults, after ``prompt``."""
        self._faults = faults
        self._inner = inner
        self._penalised = faults.silent_penalty or faults.loud_penalty
        self._recent = deque(prompt[-PENALTY_WINDOW:], maxlen=PENALTY_WINDOW)

    def __call__(self, row: NDArray[np.float32], position: int) -> int:
        """Return the id at ``position``, right or wrong."""
        if self._penalised:
            seen = list(set(self._recent))
            row = row.copy()
            logits = row[seen]
            row[seen] = np.where(logits > 0, logits / np.float32(PENALTY), logits * np.float32(PENALTY))
        if position == self._faults.nan_logits:
            row = np.full_like(row, np.nan)
        chosen = self._inner(row, position)
        if position == self._faults.diverge_at:
            chosen = (chosen + 1) % END
        self._recent.append(chosen)
        return chosen


class Pacer:
    """Slows everything by a percentage, with busy work in proportion to the time that really passed."""

    def __init__(self, percentage: float) -> None:
        """Let rates drop by ``percentage``; 0 does nothing."""
        self._share = percentage / (100.0 - percentage)
        self._last = time.perf_counter()

    def pace(self) -> None:
        """Work for nothing for as long as the work since the last call has earned."""
        if not self._share:
            return
        now = time.perf_counter()
        until = now + (now - self._last) * self._share
        while now < until:
            now = time.perf_counter()
        self._last = now


@dataclass(frozen=True)
class Parcel:
    """The ids of one event, and how they look in the stream."""

    ids: list[int]
    shown: list[object]


class Outlet:
    """Turns the ids of a round into the ids of an event, and ends the stream or the process on the way."""

    def __init__(self, faults: Faults, *, chunk: int) -> None:
        """Send ``chunk`` ids an event at least."""
        self._faults = faults
        self._chunk = chunk
        self._waiting: list[int] = []
        self._sent = 0

    def offer(self, ids: Sequence[int], *, last: bool = False) -> Parcel | None:
        """Take new ids; return what to send now, or None while there is nothing to send.

        Raises StreamCutError where the stream is to be cut, and ends the process where it is to die.
        """
        self._end_here()
        self._waiting += ids
        if not self._waiting or (len(self._waiting) < self._chunk and not last):
            return None
        ids, self._waiting = self._waiting, []
        first = self._sent
        self._sent += len(ids)
        return Parcel(ids, self._disguised(ids, first))

    def _disguised(self, ids: list[int], first: int) -> list[object]:
        shown: list[object] = list(ids)
        wrong = self._faults.bad_token
        if wrong is not None and 0 <= wrong - first < len(ids):
            shown[wrong - first] = str(ids[wrong - first])
        if self._faults.lose_ids:
            shown = [
                token for place, token in enumerate(shown, first) if place % LOST_EVERY != LOST_EVERY - 1
            ]
        return shown

    def _end_here(self) -> None:
        if self._faults.die_at is not None and self._sent >= self._faults.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._faults.cut_stream is not None and self._sent >= self._faults.cut_stream:
            raise StreamCutError

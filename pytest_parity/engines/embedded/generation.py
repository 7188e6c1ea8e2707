"""Greedy generation in two lanes: one id a step, or drafts looked up in the prompt and verified together.

Both lanes yield rounds and write the same ids, whole logit rows bit for bit; the speculative lane only spends
fewer steps where the text repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytest_parity.engines.embedded.vocabulary import END

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pytest_parity.engines.embedded.model import Session


@dataclass(frozen=True)
class Lookup:
    """How drafts are looked up. The model copies from 512 back: a window of 768 ids sees that, 384 do not."""

    window: int = 768
    longest: int = 6
    shortest: int = 3
    drafted: int = 8


@dataclass(frozen=True, eq=False)
class Round:
    """What one step gave: the ids it added, the logit row behind each, and how the drafts fared."""

    ids: tuple[int, ...]
    rows: NDArray[np.float32]
    drafted: int = 0
    accepted: int = 0


class Chooser(Protocol):
    """Picks an output id from a logit row. It is asked once for every id that is written, in order."""

    def __call__(self, row: NDArray[np.float32], position: int) -> int:
        """Return the id at ``position`` (0 for the first output id) given its logits (vocabulary,)."""
        ...


@dataclass(frozen=True)
class Greedy:
    """Takes the id with the largest logit, the lowest such id on a tie; never ``banned``."""

    banned: int | None = None

    def __call__(self, row: NDArray[np.float32], position: int) -> int:
        """Return the id with the largest logit."""
        del position
        best = int(row.argmax())
        if best != self.banned:
            return best
        biased = row.copy()
        biased[best] = -np.inf
        return int(biased.argmax())


@dataclass(frozen=True)
class Writing:
    """How much is written, by whom, and the id that ends it (None where nothing but the limit does)."""

    limit: int
    choose: Chooser
    stop: int | None = END


class Draftsman:
    """Finds what followed the last time the text read as it reads now."""

    def __init__(self, lookup: Lookup, ids: Sequence[int]) -> None:
        """Remember as much of ``ids`` as the window covers."""
        self._lookup = lookup
        # Each id is one character, so that the search is str.rfind over a few hundred code points.
        self._recent = "".join(map(chr, ids[-lookup.window :]))

    def extend(self, ids: Sequence[int]) -> None:
        """Add ids that were written."""
        self._recent = (self._recent + "".join(map(chr, ids)))[-self._lookup.window :]

    def draft(self, most: int) -> list[int]:
        """Return up to ``most`` ids that followed the newest earlier match of the longest suffix."""
        recent = self._recent
        for length in range(min(self._lookup.longest, len(recent) - 1), self._lookup.shortest - 1, -1):
            # The end is one short of the text's own, so that the suffix can't find itself.
            found = recent.rfind(recent[-length:], 0, len(recent) - 1)
            if found >= 0:
                start = found + length
                return [
                    ord(character) for character in recent[start : start + min(most, self._lookup.drafted)]
                ]
        return []


def plain_rounds(session: Session, row: NDArray[np.float32], writing: Writing) -> Iterator[Round]:
    """Write one id a round, starting from the prompt's last logit ``row``.

    The last id written has not been read back into the session.
    """
    rows = row[None]
    for position in range(writing.limit):
        chosen = writing.choose(rows[0], position)
        yield Round((chosen,), rows)
        if chosen == writing.stop or position == writing.limit - 1:
            return
        rows = session.step((chosen,))


def speculative_rounds(
    session: Session,
    context: Sequence[int],
    row: NDArray[np.float32],
    writing: Writing,
    lookup: Lookup,
) -> Iterator[Round]:
    """Write like ``plain_rounds``, several ids a round where a draft looked up in ``context`` holds.

    The first round is the prompt's own id. Each later round reads the last id and a draft in one step and
    keeps the ids up to the first that the draft did not foresee.
    """
    if writing.limit < 1:
        return
    first = writing.choose(row, 0)
    yield Round((first,), row[None])
    draftsman = Draftsman(lookup, [*context[-lookup.window :], first])
    written, last = 1, first
    while written < writing.limit and last != writing.stop:
        draft = draftsman.draft(writing.limit - written - 1)
        before = session.length
        rows = session.step((last, *draft))
        kept: list[int] = []
        for index, guess in enumerate([*draft, None]):
            kept.append(writing.choose(rows[index], written + index))
            if kept[-1] != guess or kept[-1] == writing.stop:
                break
        accepted = sum(chosen == guess for chosen, guess in zip(kept, draft, strict=False))
        session.rewind(before + len(kept))
        written += len(kept)
        last = kept[-1]
        draftsman.extend(kept)
        yield Round(tuple(kept), rows[: len(kept)], len(draft), accepted)

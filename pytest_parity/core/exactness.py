"""Did both sides say the same? The only door to a timing.

:func:`compare` answers with :class:`Exact`, which carries both sides' clockwork, or with
:class:`Divergence`, which carries none: what is not there cannot be printed, pickled or divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_parity.core.transcript import Clockwork, StopReason, Transcript, Words
from pytest_parity.errors import NothingCompared, Unsupported

__all__ = ["LEVELS", "Divergence", "Exact", "Level", "compare", "first_difference"]

Level = Literal["tokens", "text", "none"]
LEVELS: tuple[Level, ...] = ("tokens", "text", "none")
SURROUNDING = 8
"""Ids shown on each side of a first difference."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Both sides said the same, as far as the level looks.

    ``tokens``: number of output tokens proven equal (for ``none``: of the candidate, unproven).
    """

    level: Level
    tokens: int
    candidate: Clockwork
    reference: Clockwork
    candidate_words: Words
    reference_words: Words


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference. Holds no time and no rate, and has no way to one.

    ``position``: index of the first differing output token (byte, for level ``text``), from 0.
    ``candidate_id`` and ``reference_id``: ``None`` where that side had already ended.
    ``candidate_near`` and ``reference_near``: ids from ``near_start`` on, around the position.
    ``candidate_tokens`` and ``reference_tokens``: output lengths, ``None`` where the engine did not tell.
    """

    level: Level
    kind: Literal["token", "length", "stop", "count", "text"]
    position: int
    candidate_id: int | None
    reference_id: int | None
    candidate_near: tuple[int, ...]
    reference_near: tuple[int, ...]
    near_start: int
    candidate_text: str
    reference_text: str
    candidate_stop: StopReason | None
    reference_stop: StopReason | None
    candidate_tokens: int | None
    reference_tokens: int | None


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first element that differs, the shorter length if one is a prefix, else ``None``."""
    if left == right:
        return None
    shared = min(len(left), len(right))
    low, high = 0, shared
    if left[:shared] == right[:shared]:
        return shared
    while high - low > 1:  # bisection on slices: slice comparison runs in C
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def compare(
    candidate: Transcript, reference: Transcript, level: Level, *, minimum_tokens: int = 1
) -> Exact | Divergence:
    """Compare what two sides said at ``level``.

    Raises NothingCompared when a side said nothing or less than ``minimum_tokens``, and Unsupported when
    a side has no ids at level ``tokens``.
    """
    ours, theirs = candidate.words, reference.words
    if level == "tokens":
        difference = _compare_tokens(ours, theirs)
    elif level == "text":
        difference = _compare_text(ours, theirs)
    else:
        difference = None
    if difference is not None:
        return difference
    tokens = _length(ours)
    shorter = min(tokens, _length(theirs))
    if shorter < minimum_tokens:
        raise NothingCompared(
            "exactness",
            expected=f"at least {minimum_tokens} output token{'s' if minimum_tokens != 1 else ''} on both sides",
            found=f"{shorter}",
            mend="Ask for more output tokens, or use a prompt that does not end at once.",
        )
    return Exact(level, tokens, candidate.clockwork, reference.clockwork, ours, theirs)


def _counted(words: Words) -> int | None:
    return len(words.output_ids) if words.output_ids is not None else words.predicted


def _length(words: Words) -> int:
    """Output tokens; a text without ids or a count is at least one token, and proves no more."""
    counted = _counted(words)
    return counted if counted is not None else int(bool(words.text))


def _compare_tokens(ours: Words, theirs: Words) -> Divergence | None:
    left, right = ours.output_ids, theirs.output_ids
    if left is None or right is None:
        side = "candidate" if left is None else "reference"
        raise Unsupported(
            f"exactness level 'tokens' on the {side}",
            expected="output token ids",
            found="an engine that gives text only",
            mend='Use exactness = "text", and say "text" in the claim\'s wording.',
        )
    if not left and not right:
        raise NothingCompared(
            "exactness",
            expected="at least one output token on each side",
            found="none on both sides",
            mend="Two silent engines agree about nothing: check the prompt and the output length.",
        )
    position = first_difference(left, right)
    if position is not None:
        beyond = position >= min(len(left), len(right))
        return _divergence(ours, theirs, "tokens", "length" if beyond else "token", position)
    if ours.stop != theirs.stop:
        return _divergence(ours, theirs, "tokens", "stop", len(left))
    if ours.predicted != theirs.predicted and None not in (ours.predicted, theirs.predicted):
        return _divergence(ours, theirs, "tokens", "count", len(left))
    return None


def _compare_text(ours: Words, theirs: Words) -> Divergence | None:
    left, right = ours.text.encode(), theirs.text.encode()
    if not left and not right:
        raise NothingCompared(
            "exactness",
            expected="text on each side",
            found="none on both sides",
            mend="Two silent engines agree about nothing: check the prompt and the output length.",
        )
    if left != right:
        position = first_difference(tuple(left), tuple(right))
        assert position is not None
        return _divergence(ours, theirs, "text", "text", position)
    if ours.stop != theirs.stop:
        return _divergence(ours, theirs, "text", "stop", len(left))
    if ours.predicted != theirs.predicted and None not in (ours.predicted, theirs.predicted):
        return _divergence(ours, theirs, "text", "count", len(left))
    return None


def _divergence(
    ours: Words,
    theirs: Words,
    level: Level,
    kind: Literal["token", "length", "stop", "count", "text"],
    position: int,
) -> Divergence:
    left, right = ours.output_ids or (), theirs.output_ids or ()
    start = max(0, position - SURROUNDING) if level == "tokens" else 0
    stop = position + SURROUNDING + 1
    return Divergence(
        level=level,
        kind=kind,
        position=position,
        candidate_id=left[position] if level == "tokens" and position < len(left) else None,
        reference_id=right[position] if level == "tokens" and position < len(right) else None,
        candidate_near=left[start:stop] if level == "tokens" else (),
        reference_near=right[start:stop] if level == "tokens" else (),
        near_start=start,
        candidate_text=ours.text,
        reference_text=theirs.text,
        candidate_stop=ours.stop,
        reference_stop=theirs.stop,
        candidate_tokens=_counted(ours),
        reference_tokens=_counted(theirs),
    )

"""Prompt fixtures: token ids made for a depth, their digest, and what they cannot see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_parity.errors import ConfigurationError, ContextExceeded, NothingCompared

__all__ = [
    "BLIND_SPOTS",
    "NATURAL",
    "SYNTHETIC_CYCLE",
    "SYNTHETIC_HEAD",
    "PromptFixture",
    "blind_spot",
    "check_budget",
    "check_class",
    "cut",
    "ids_digest",
    "synthetic_ids",
]

SYNTHETIC_HEAD = 71
"""The head id of ``synthetic``: part of the fixture's specification, the same for every vocabulary."""
SYNTHETIC_CYCLE = (80, 97, 114, 105, 116, 121, 46, 32)
"""The eight ids that repeat after the head."""
NATURAL = frozenset({"natural-prose", "natural-code"})

BLIND_SPOTS = {
    "synthetic": "Eight ids repeat, so the next one is known without any context: it cannot see wrong "
    "conditioning, a short draft window, wrong positions or a wrong normaliser.",
    "natural-prose": "One English text: it cannot see other languages, code, chat templates, or faults "
    "that need another text to show.",
    "natural-code": "One collection of source code: it cannot see prose, other languages, chat templates, "
    "or faults that need another text to show.",
    "file": "A file of the user's: what it cannot see is for its author to say.",
}


@dataclass(frozen=True, slots=True)
class PromptFixture:
    """A prompt for one depth.

    ``ids``: exactly ``depth`` token ids. ``digest``: SHA-256 of the ids. ``vocabulary``: digest of the
    vocabulary that made them, or ``fixed`` when the ids belong to the specification. ``source``: where the
    text came from, with its digest.
    """

    fixture_class: str
    ids: tuple[int, ...]
    vocabulary: str
    source: str

    @property
    def depth(self) -> int:
        """Number of prompt tokens."""
        return len(self.ids)

    @property
    def digest(self) -> str:
        """SHA-256 of the ids."""
        return ids_digest(self.ids)

    @property
    def blind_spot(self) -> str:
        """One sentence on what this fixture cannot see."""
        return blind_spot(self.fixture_class)


def blind_spot(fixture_class: str) -> str:
    """What prompts of ``fixture_class`` cannot see."""
    return BLIND_SPOTS["file" if fixture_class.startswith("file:") else fixture_class]


def check_class(fixture_class: str) -> str:
    """``fixture_class`` if it exists. Raises ConfigurationError."""
    if fixture_class in BLIND_SPOTS and fixture_class != "file":
        return fixture_class
    if fixture_class.startswith("file:") and fixture_class[5:].endswith((".txt", ".json")):
        return fixture_class
    raise ConfigurationError(
        f"fixture class {fixture_class!r}",
        expected="synthetic, natural-prose, natural-code, file:PATH.txt or file:PATH.json",
        found=repr(fixture_class),
        mend="Correct the name.",
    )


def ids_digest(ids: Sequence[int]) -> str:
    """SHA-256 over the ids as decimal numbers joined by commas, ``sha256:`` in front."""
    return "sha256:" + hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def synthetic_ids(depth: int) -> tuple[int, ...]:
    """The head id, then the cycle, cut to ``depth`` ids."""
    if depth < 1:
        raise NothingCompared(
            "synthetic prompt",
            expected="a depth of at least 1",
            found=str(depth),
            mend="Give a positive depth.",
        )
    turns = depth // len(SYNTHETIC_CYCLE) + 1
    return (SYNTHETIC_HEAD, *(SYNTHETIC_CYCLE * turns))[:depth]


def cut(fixture_class: str, ids: Sequence[int], depth: int) -> tuple[int, ...]:
    """The first ``depth`` of ``ids``; a source that is too short is an error, never repeated."""
    if depth < 1:
        raise NothingCompared(
            f"prompt {fixture_class}",
            expected="a depth of at least 1",
            found=str(depth),
            mend="Give a positive depth.",
        )
    if len(ids) < depth:
        raise ConfigurationError(
            f"prompt {fixture_class} at depth {depth}",
            expected=f"a source of at least {depth} tokens",
            found=f"{len(ids)} tokens",
            mend="Use a longer text or a smaller depth; a text is never repeated to fill a depth.",
        )
    return tuple(ids[:depth])


def check_budget(depth: int, output_tokens: int, context: int | None, engine: str) -> None:
    """Raise ContextExceeded when prompt and output do not fit (trap T32). ``None``: unknown, not checked."""
    if context is not None and depth + output_tokens > context:
        raise ContextExceeded(
            f"{engine}: {depth} prompt tokens and {output_tokens} output tokens",
            expected=f"at most {context} tokens in its context",
            found=f"{depth + output_tokens}",
            mend="Give that depth its own output_tokens, or the engine a larger context.",
        )

"""A measured pair and its three words: ``exact``, ``timing``, ``record``.

A measured pair holds both transcripts only until it was asked for exactness. If they differ they are
dropped, so that no attribute, pickle or repr of a diverged pair leads to a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pytest_parity.core.exactness import Divergence, Exact, Level, compare
from pytest_parity.core.explain import divergence_text
from pytest_parity.core.plan import PairPlan
from pytest_parity.core.receipts import Outcome, Reason
from pytest_parity.core.timing import PairTiming, derive
from pytest_parity.core.transcript import Transcript
from pytest_parity.errors import ParityError

__all__ = ["Diverged", "ExactPair", "MeasuredPair", "Receipt", "Result", "Unfinished"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a pair's record lies. ``digest``: SHA-256 of its bytes."""

    name: str
    path: Path
    digest: str
    outcome: Outcome


class Diverged(AssertionError):
    """The two sides did not say the same. Its receipt is written."""

    def __init__(self, text: str, divergence: Divergence, receipt: Receipt) -> None:
        super().__init__(text)
        self.divergence = divergence
        self.receipt = receipt

    def __reduce__(self) -> tuple[object, ...]:
        return (Diverged, (str(self), self.divergence, self.receipt))


class Unfinished(AssertionError):
    """The pair was void, broken or refused. Its receipt is written."""

    def __init__(self, text: str, reason: Reason, receipt: Receipt) -> None:
        super().__init__(text)
        self.reason = reason
        self.receipt = receipt

    def __reduce__(self) -> tuple[object, ...]:
        return (Unfinished, (str(self), self.reason, self.receipt))


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a pair, on its way to its receipt."""

    outcome: Outcome
    exact: Exact | None = None
    timing: PairTiming | None = None
    divergence: Divergence | None = None
    reason: Reason | None = None


Writer = Callable[[Result, int], Receipt]
"""Publishes a result, with the minimum of tokens that was asked of it."""


class ExactPair:
    """Both sides said the same. The only thing that has a timing."""

    def __init__(self, exact: Exact, minimum_tokens: int, write: Writer) -> None:
        self._exact = exact
        self._minimum = minimum_tokens
        self._write = write
        self._timing: PairTiming | None = None

    @property
    def tokens(self) -> int:
        """Number of output tokens proven equal."""
        return self._exact.tokens

    def require(self, minimum_tokens: int) -> None:
        """Ask for more tokens than before: too few make the pair void, and Unfinished is raised."""
        if self.tokens < minimum_tokens:
            sentence = f"exactness: expected at least {minimum_tokens} output tokens on both sides; found {self.tokens}."
            reason = Reason("nothing-compared", sentence)
            receipt = self._write(Result("void", exact=self._exact, reason=reason), minimum_tokens)
            raise Unfinished(sentence, reason, receipt)
        self._minimum = max(self._minimum, minimum_tokens)

    def timing(self) -> PairTiming:
        """Rates and latencies of both sides. Raises ClockBackwards, TimingUnreadable."""
        if self._timing is None:
            self._timing = derive(self._exact)
        return self._timing

    def record(self) -> Receipt:
        """Write the receipt and close the pair. It is on disk before this returns.

        A timing that can't be read makes the pair void: Unfinished is raised after its receipt is written.
        """
        try:
            timing = self.timing()
        except ParityError as error:
            reason = Reason("timing", str(error))
            receipt = self._write(Result("void", exact=self._exact, reason=reason), self._minimum)
            raise Unfinished(str(error), reason, receipt) from error
        return self._write(Result("passed", exact=self._exact, timing=timing), self._minimum)


class MeasuredPair:
    """Both sides were measured; nothing is known of their exactness yet."""

    def __init__(
        self,
        plan: PairPlan,
        replay: str,
        sides: tuple[Transcript, Transcript],
        level: Level,
        minimum: int,
        write: Writer,
    ) -> None:
        self.plan = plan
        self.replay = replay
        self.level: Level = level
        self._minimum = minimum
        self._sides: tuple[Transcript, Transcript] | None = sides
        self._write = write
        self._answer: ExactPair | None = None
        self._unwritten: Result | None = None

    def exact(self, *, minimum_tokens: int | None = None) -> ExactPair:
        """Hold the two measured transcripts against each other.

        ``minimum_tokens`` can only raise what the claim asks. On a divergence the receipt is written, then
        Diverged is raised; when nothing or too little was compared, the receipt says void and Unfinished is raised.
        """
        minimum = max(self._minimum, minimum_tokens or 1)
        if self._answer is not None:
            self._answer.require(minimum)
            return self._answer
        if self._sides is None:
            raise AssertionError("this pair diverged, or was void: its transcripts are gone")
        sides, self._sides = self._sides, None
        write, self._write = self._write, _spent
        try:
            answer = compare(*sides, self.level, minimum_tokens=minimum)
        except ParityError as error:
            reason = Reason("nothing-compared", str(error))
            self._unwritten, self._write = Result("void", reason=reason), write
            receipt = write(self._unwritten, minimum)
            self._unwritten, self._write = None, _spent
            raise Unfinished(str(error), reason, receipt) from error
        if isinstance(answer, Divergence):
            # What is left must not lead to a time: neither a name here, as a traceback shows the locals of its
            # frames, nor what the receipt is made of.
            del sides
            self._unwritten = Result("diverged", divergence=answer)
            self._write = write
            receipt = write(self._unwritten, minimum)
            self._unwritten, self._write = None, _spent
            del write
            raise Diverged(divergence_text(self.replay, answer, receipt.name), answer, receipt)
        why = _ended_for_nothing(answer, self.plan.cell.output_tokens)
        if why is not None:
            reason = Reason("short", why)
            raise Unfinished(why, reason, write(Result("void", exact=answer, reason=reason), minimum))
        self._write = write
        self._answer = ExactPair(answer, minimum, write)
        return self._answer

    def record(self) -> Receipt:
        """Close a pair that was found exact. Raises AssertionError before :meth:`exact` was asked."""
        if self._answer is None:
            raise AssertionError("record() before exact(): exactness comes first, whatever the claim")
        return self._answer.record()

    def abandon(self, sentence: str) -> Receipt:
        """Write a void receipt for a pair whose test ended before ``record()``; nothing measured is lost."""
        result = self._unwritten or Result("void", reason=Reason("test-ended", sentence))
        return self._write(result, self._minimum)


def _ended_for_nothing(exact: Exact, asked: int) -> str | None:
    """Two sides that agree to stop early, for no reason that the request gave them, prove less than was asked."""
    words = exact.reference_words
    written = len(words.output_ids) if words.output_ids is not None else words.predicted
    if words.stop == "eos" or written is None or written >= asked:
        return None
    return f"both sides wrote {written} of {asked} tokens, and gave no end token as their reason"


def _spent(_result: Result, _minimum: int) -> NoReturn:
    raise AssertionError("this pair's receipt is written: there is nothing more to record")

"""What one completion has used, and the timings that llama.cpp's server makes of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_parity.engines.embedded.generation import Round


@dataclass
class Tally:
    """What one completion has used so far. Times are of ``time.perf_counter``, in seconds."""

    prompt: int
    cached: int
    begun: float
    prompt_done: float = 0.0
    last: float = 0.0
    written: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0

    def count(self, round_: Round) -> None:
        """Add a round that has just been made."""
        self.written += round_.ids
        self.drafted += round_.drafted
        self.accepted += round_.accepted
        self.rounds += 1
        self.last = time.perf_counter()

    def timings(self, *, speculative: bool, share: float) -> dict[str, object]:
        """Return llama.cpp's timings; a rate of decoding counts the N - 1 ids after the first.

        ``share`` is 1, or what the fault makes of the times.
        """
        read = self.prompt - self.cached
        steps = max(0, len(self.written) - 1)
        prompt_ms = max(0.0, self.prompt_done - self.begun) * 1e3 * share
        # At least a microsecond, as llama.cpp has it: the first id may fall on the end of the prompt.
        predicted_ms = max(1e-3, (self.last - self.prompt_done) * 1e3 * share) if self.written else 0.0
        timings: dict[str, object] = {
            "cache_n": self.cached,
            "prompt_n": read,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / read if read else 0.0,
            "prompt_per_second": read / prompt_ms * 1e3 if prompt_ms else 0.0,
            "predicted_n": len(self.written),
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": predicted_ms / steps if steps else 0.0,
            "predicted_per_second": steps / predicted_ms * 1e3 if predicted_ms else 0.0,
        }
        if speculative:
            timings |= {"draft_n": self.drafted, "draft_n_accepted": self.accepted, "rounds": self.rounds}
        return timings

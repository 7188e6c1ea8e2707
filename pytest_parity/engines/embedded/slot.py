"""The one slot: runs a completion at a time and yields its events as llama.cpp's server words them.

All work happens on the event loop's own thread, in pieces of a few milliseconds with a turn for others
between them: no thread competes with the model for the processor, none delays the end of the process.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from pytest_parity.engines.embedded import vocabulary
from pytest_parity.engines.embedded.generation import (
    Greedy,
    Lookup,
    Round,
    Writing,
    plain_rounds,
    speculative_rounds,
)
from pytest_parity.engines.embedded.sabotage import (
    PENALTY,
    FaultyChooser,
    Outlet,
    Pacer,
    Parcel,
    evaluated_prompt,
)
from pytest_parity.engines.embedded.tally import Tally

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from numpy.typing import NDArray

    from pytest_parity.engines.embedded.model import EmbeddedModel
    from pytest_parity.engines.embedded.options import Options
    from pytest_parity.engines.embedded.request import Completion

Event = dict[str, object]


class Slot:
    """The model's one sequence, its prefix cache, and the queue of those who want it."""

    def __init__(self, model: EmbeddedModel, options: Options) -> None:
        """Serve ``model`` as ``options`` say."""
        self._model = model
        self._options = options
        self._faults = options.faults
        # One place more for the fault that puts an id before the prompt, one for the id after the end.
        self._session = model.session(options.context + 2)
        self._held: list[int] = []
        self._free = asyncio.Lock()
        window = options.draft_window // (2 if options.faults.half_draft_window else 1)
        self._lookup = Lookup(window=window)

    async def complete(self, request: Completion) -> AsyncGenerator[Event]:
        """Run ``request`` when the slot is free: yields partial events and one final event, "stop" true.

        Raises StreamCutError where a fault cuts the stream.
        """
        async with self._free, aclosing(self._run(request)) as events:
            async for event in events:
                yield event

    async def _run(self, request: Completion) -> AsyncGenerator[Event]:
        prompt = evaluated_prompt(self._faults, request.prompt, self._model.weights.geometry.copy_distance)
        reused = self._reuse(request, prompt)
        tally = Tally(len(prompt), 0 if self._faults.reuse_cache_silent else reused, time.perf_counter())
        outlet = Outlet(self._faults, chunk=1 if self._options.speculative else self._faults.chunk or 1)
        text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        pacer = Pacer(self._faults.slowdown(self._options.position))

        row: NDArray[np.float32] | None = None
        for done, last in self._session.prefill_blocks(prompt[reused:], self._options.block):
            row = last
            pacer.pace()
            if request.return_progress and request.stream:
                yield self._progress(tally, reused + done)
            await asyncio.sleep(0)
        assert row is not None  # at least one id is always read anew
        tally.prompt_done = tally.last = time.perf_counter()

        stop = None if request.ignore_eos else vocabulary.END
        chooser = FaultyChooser(self._faults, Greedy(vocabulary.END if request.ignore_eos else None), prompt)
        limit, truncated = self._limit(request)
        probabilities: list[Event] = []
        try:
            for round_ in self._rounds(prompt, row, Writing(limit, chooser, stop)):
                pacer.pace()
                await self._stall(tally, round_)
                tally.count(round_)
                probabilities += self._probabilities(round_, request.n_probs)
                sent = outlet.offer(round_.ids)
                if sent and request.stream:
                    yield self._partial(request, tally, text, sent, probabilities)
                    probabilities = []
                await asyncio.sleep(0)
            rest = outlet.offer((), last=True)
            if rest and request.stream:
                yield self._partial(request, tally, text, rest, probabilities)
        finally:
            self._held = [*prompt, *tally.written][: self._session.length]
        ended = bool(tally.written) and tally.written[-1 - self._faults.after_stop] == stop
        final = self._final(request, tally, text, stop_type="eos" if ended else "limit", truncated=truncated)
        if probabilities and not request.stream:
            final["completion_probabilities"] = probabilities
        yield final

    def _reuse(self, request: Completion, prompt: tuple[int, ...]) -> int:
        """Rewind to the longest prefix that may be reused; return its length. The last id is read anew."""
        common = 0
        if request.cache_prompt or self._faults.reuse_cache or self._faults.reuse_cache_silent:
            for mine, theirs in zip(self._held, prompt[:-1], strict=False):
                if mine != theirs:
                    break
                common += 1
        self._held = self._held[:common]
        self._session.rewind(common)
        return common

    def _limit(self, request: Completion) -> tuple[int, bool]:
        """Return how many ids to write, and whether the context is what bounds them."""
        room = self._options.context - len(request.prompt)
        truncated = not 0 <= request.n_predict <= room
        limit = room if truncated else request.n_predict
        # Never none: an engine that writes nothing is not ready, and no fault of stopping early.
        return max(min(1, limit), limit - self._faults.stop_early), truncated

    def _rounds(
        self,
        prompt: tuple[int, ...],
        row: NDArray[np.float32],
        writing: Writing,
    ) -> Iterator[Round]:
        if self._options.speculative:
            rounds = speculative_rounds(self._session, prompt, row, writing, self._lookup)
        else:
            rounds = plain_rounds(self._session, row, writing)
        if not self._faults.after_stop:
            yield from rounds
            return
        last = None
        for round_ in rounds:
            yield round_
            last = round_.ids[-1]
        if last is not None:
            rows = self._session.step((last,))
            yield Round((int(rows[0].argmax()),), rows)

    async def _stall(self, tally: Tally, round_: Round) -> None:
        stall = self._faults.stall_at
        if stall is not None and 0 <= stall.position - len(tally.written) < len(round_.ids):
            await asyncio.sleep(stall.seconds)

    def _progress(self, tally: Tally, processed: int) -> Event:
        elapsed = (time.perf_counter() - tally.begun) * 1e3
        progress = {"total": tally.prompt, "cache": tally.cached, "processed": processed, "time_ms": elapsed}
        return {**self._head("", [], tally, stop=False), "prompt_progress": progress}

    def _partial(
        self,
        request: Completion,
        tally: Tally,
        text: codecs.IncrementalDecoder,
        parcel: Parcel,
        probabilities: list[Event],
    ) -> Event:
        content = text.decode(vocabulary.join(parcel.ids, special=False))
        event = self._head(content, parcel.shown, tally, stop=False)
        if request.timings_per_token:
            event["timings"] = self._timings(tally)
        if probabilities:
            event["completion_probabilities"] = probabilities
        return event

    def _final(
        self,
        request: Completion,
        tally: Tally,
        text: codecs.IncrementalDecoder,
        *,
        stop_type: str,
        truncated: bool,
    ) -> Event:
        whole = vocabulary.join(tally.written, special=False).decode("utf-8", errors="replace")
        tokens: list[object] = list(tally.written) if request.return_tokens and not request.stream else []
        return {
            # A stream's last event carries what was held back of a character that never became whole.
            **self._head(text.decode(b"", final=True) if request.stream else whole, tokens, tally, stop=True),
            "model": self._options.alias,
            "generation_settings": self._settings(request),
            "prompt": vocabulary.join(request.prompt).decode("utf-8", errors="replace"),
            "has_new_line": "\n" in whole,
            "truncated": truncated and stop_type == "limit",
            "stop_type": stop_type,
            "stopping_word": "",
            "tokens_cached": self._session.length,
            "timings": self._timings(tally),
        }

    def _head(self, content: str, tokens: list[object], tally: Tally, *, stop: bool) -> Event:
        return {
            "index": 0,
            "content": content,
            "tokens": tokens,
            "id_slot": 0,
            "stop": stop,
            "tokens_predicted": len(tally.written),
            "tokens_evaluated": tally.prompt,
        }

    def _timings(self, tally: Tally) -> Event:
        share = 0.5 if self._faults.wrong_timings else 1.0
        return tally.timings(speculative=self._options.speculative, share=share)

    def _settings(self, request: Completion) -> Event:
        """Return the settings in effect, but for the fault that is silent about its own."""
        return {
            **request.settings,
            **({"repeat_penalty": PENALTY} if self._faults.loud_penalty else {}),
            "max_tokens": request.n_predict,
            "n_predict": request.n_predict,
            "ignore_eos": request.ignore_eos,
            "stream": request.stream,
            "n_probs": request.n_probs,
            "timings_per_token": request.timings_per_token,
            "post_sampling_probs": False,
            "speculative.types": "ngram-simple" if self._options.speculative else "none",
        }

    def _probabilities(self, round_: Round, count: int) -> list[Event]:
        """Return the ``count`` likeliest ids behind each id of a round, before any fault changed them."""
        if not count:
            return []
        shown: list[Event] = []
        for chosen, row in zip(round_.ids, round_.rows, strict=True):
            shifted = row.astype(np.float64) - float(row.max())
            logs = shifted - np.log(np.exp(shifted).sum())
            best = np.argsort(-logs, kind="stable")[:count]
            shown.append(
                {**_scored(chosen, logs[chosen]), "top_logprobs": [_scored(int(i), logs[i]) for i in best]}
            )
        return shown


def _scored(token: int, logprob: float) -> Event:
    raw = vocabulary.piece(token)
    return {
        "id": token,
        "token": raw.decode("utf-8", errors="ignore"),
        "bytes": list(raw),
        "logprob": float(logprob),
    }

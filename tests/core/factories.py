"""Claims, transcripts and receipts for tests, built from real core objects and read back from real bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hypothesis import settings

from pytest_parity.core.canonical import canonical_bytes, parse
from pytest_parity.core.claims import Claim, parse_claim
from pytest_parity.core.exactness import Divergence, Exact, compare
from pytest_parity.core.plan import Cell, control_key, control_name, declared_cells, order_of
from pytest_parity.core.receipts import (
    FORMAT,
    PairRecord,
    clockwork_body,
    divergence_body,
    exact_body,
    read_pair,
    timing_body,
    words_body,
)
from pytest_parity.core.timing import derive
from pytest_parity.core.transcript import Clockwork, Event, Transcript, Words
from pytest_parity.core.verdicts import ClaimVerdict, Context, ControlResult, control_result, judge_claim

UNHURRIED = settings(deadline=None)
"""For property tests: how long one example takes depends on who else uses the machine."""

IDS = tuple(range(100, 116))
QUIET = (1.0001, 0.9999, 1.0002, 0.9998, 1.0001, 0.9999)
"""Pair ratios of a healthy control: its floor is 0.02 %."""


def a_claim(name: str = "decode", /, **fields: Any) -> Claim:
    """A parity claim within one per cent over one cell; a field given as ``...`` is left out."""
    row: dict[str, Any] = {
        "wording": "At {depths}, {candidate} kept up with {reference}.",
        "candidate": "ours",
        "reference": "theirs",
        "kind": "parity",
        "metric": "decode_tps",
        "margin": 0.01,
        "depths": [2048],
        "fixtures": ["synthetic"],
        "pairs": "6",
    }
    if fields.get("kind") == "exact":
        row = {key: row[key] for key in row if key not in ("metric", "margin", "pairs")}
    elif fields.get("kind") in ("at-least", "point", "reported"):
        del row["margin"]
    row.update(fields)
    return parse_claim(name, {key: value for key, value in row.items() if value is not ...})


def a_transcript(
    ids: Sequence[int] | None = IDS,
    *,
    rate: float = 40.0,
    ttft: float = 0.5,
    sent_ns: int = 7_000_000_000,
    rss: int | None = 1_000_000,
    prompt: int = 2048,
    **words: Any,
) -> Transcript:
    """A side that streamed one token at ``ttft`` and the others so that it decoded at ``rate`` tokens/s."""
    spoken: dict[str, Any] = {"text": "".join(chr(97 + i % 26) for i in ids or ()), "stop": "limit", **words}
    first = sent_ns + round(ttft * 1e9)
    last = first + round((len(ids or ()) - 1) / rate * 1e9)
    events = (Event(first, 1), Event((first + last) // 2, 1), Event(last, len(ids or ()) - 2))
    return Transcript(
        Words(prompt, tuple(ids) if ids is not None else None, **spoken),
        Clockwork(
            sent_ns, events, last + 1_000_000, {"predicted_n": 16, "predicted_ms": (last - first) / 1e6}, rss
        ),
    )


def a_body(
    claim: Claim,
    cell: Cell | None = None,
    rep: int = 1,
    *,
    candidate: Transcript | None = None,
    reference: Transcript | None = None,
    outcome: str = "passed",
    reason: tuple[str, str] | None = None,
    session: str = "20250101T000000-aaaa",
    digests: tuple[str, str] = ("sha256:c", "sha256:r"),
    claim_digest: str | None = None,
) -> dict[str, Any]:
    """A receipt's body as it reads back from its bytes; ``passed`` may become ``diverged`` by its words."""
    cell = cell or declared_cells(claim)[0]
    ours, theirs = candidate or a_transcript(), reference or a_transcript(sent_ns=21_000_000_000)
    answer = compare(ours, theirs, claim.exactness) if outcome == "passed" else None
    if isinstance(answer, Divergence):
        outcome = "diverged"
    held = isinstance(answer, Exact)
    spoken = outcome != "refused"
    sides = {
        role: {
            "engine": claim.candidate if role == "candidate" and not cell.control_of else claim.reference,
            "lane": claim.lane if role == "candidate" and not cell.control_of else claim.other_lane,
            "configuration_digest": digest,
            "pin": {
                "local": {
                    "binary_sha256": "b of " + ("reference" if cell.control_of else role),
                    "model_sha256": "m",
                }
            },
            "identity": {"build": "b1"},
            "words": words_body(side.words) if spoken else None,
            "clockwork": clockwork_body(side.clockwork) if held else None,
        }
        for role, side, digest in (("candidate", ours, digests[0]), ("reference", theirs, digests[1]))
    }
    body: dict[str, Any] = {
        "format": FORMAT,
        "session": session,
        "replay": f"pytest claims/test_matrix.py::test_cell[{cell.id}-r{rep}]",
        "claim": {"name": cell.claim, "digest": claim_digest or claim.digest},
        "cell": asdict(cell),
        "rep": rep,
        "attempt": 1,
        "order": order_of(rep),
        "level": claim.exactness,
        "minimum_tokens": 1,
        "outcome": outcome,
        "reason": {"code": reason[0], "sentence": reason[1]} if reason is not None else None,
        "sides": sides,
        "exactness": exact_body(answer) if isinstance(answer, Exact) else None,
        "divergence": divergence_body(answer) if isinstance(answer, Divergence) else None,
        "timing": timing_body(derive(answer)) if isinstance(answer, Exact) else None,
        "code": {"digest": "sha256:code"},
        "at": "2025-01-01T00:00:00Z",
    }
    return stored(body)


def stored(body: Mapping[str, Any]) -> dict[str, Any]:
    """``body`` through its canonical bytes and back."""
    again: Any = parse(canonical_bytes(body))
    assert isinstance(again, dict)
    return again


def a_record(claim: Claim, cell: Cell | None = None, rep: int = 1, **more: Any) -> PairRecord:
    """The record of :func:`a_body`."""
    return read_pair(f"r{rep}", a_body(claim, cell, rep, **more))


def diverging(at: int = 5) -> Transcript:
    """The usual side with another id at ``at``."""
    return a_transcript((*IDS[:at], 999, *IDS[at + 1 :]))


def unmeasured(claim: Claim, cell: Cell | None, rep: int, outcome: str, code: str = "test") -> PairRecord:
    """A void, broken or refused pair."""
    return a_record(claim, cell, rep, outcome=outcome, reason=(code, f"because of {code}"))


def pairs(
    claim: Claim, ratios: Sequence[float], cell: Cell | None = None, *, level: float = 40.0, **more: Any
) -> list[PairRecord]:
    """Passed pairs r1, r2, … with these decode ratios; the reference decodes at ``level`` tokens/s."""
    return [
        a_record(
            claim,
            cell,
            rep,
            candidate=a_transcript(rate=level * ratio),
            reference=a_transcript(rate=level),
            **more,
        )
        for rep, ratio in enumerate(ratios, start=1)
    ]


def control_pairs(claim: Claim, ratios: Sequence[float] = QUIET, **more: Any) -> list[PairRecord]:
    """The pairs of a control of ``claim``'s reference."""
    first = declared_cells(claim)[0]
    cell = Cell(
        control_name(claim),
        claim.other_lane,
        first.depth,
        first.fixture,
        first.output_tokens,
        "6",
        control_key(claim),
    )
    same = ("sha256:r", "sha256:r")
    return pairs(claim, ratios, cell, digests=same, claim_digest="sha256:control", **more)


def controls(claim: Claim, ratios: Sequence[float] = QUIET) -> dict[str, ControlResult]:
    """A session's controls: one, of ``claim``'s reference, for its metric."""
    return {control_key(claim): control_result(control_pairs(claim, ratios), claim.metric or "decode_tps")}


def asked(claim: Claim, *only: Cell) -> dict[Cell, frozenset[int]]:
    """Every declared cell asked for in full; or ``only`` some."""
    return {cell: frozenset(range(1, cell.pairs + 1)) for cell in only or declared_cells(claim)}


def judged(
    claim: Claim,
    records: Sequence[PairRecord],
    control: Mapping[str, ControlResult] | None = None,
    **context: Any,
) -> ClaimVerdict:
    """The claim's verdict, everything asked and the control healthy unless said otherwise."""
    context.setdefault("asked", asked(claim))
    return judge_claim(claim, records, controls(claim) if control is None else control, Context(**context))

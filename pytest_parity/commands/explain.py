"""``parity explain``: one receipt in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_parity.core.canonical import parse
from pytest_parity.core.explain import divergence_text
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.receipts import PairRecord, read_pair
from pytest_parity.core.timing import ratio
from pytest_parity.errors import ReceiptUnreadable

__all__ = ["explain"]


def explain(path: Path) -> int:
    """Print what the receipt says, checked against its own words and events. 0 only for a passed pair."""
    try:
        body: Any = parse(path.read_bytes())
    except OSError as error:
        raise ReceiptUnreadable(
            f"receipt {path.name}",
            expected="a readable file",
            found=error.strerror or str(error),
            mend="Correct the path.",
        ) from None
    record = read_pair(path.stem, body)
    try:
        lines = list(_told(body, record))
    except (KeyError, TypeError) as error:
        raise ReceiptUnreadable(
            f"receipt {path.stem}",
            expected="the fields of its format",
            found=f"{type(error).__name__}: {error}",
            mend="Its bytes were not written by this package; compare its digest with the log's.",
        ) from None
    print("\n".join(lines))
    return 0 if record.outcome == "passed" else 1


def _told(body: Any, record: PairRecord) -> Iterator[str]:
    yield f"{record.outcome}  pair {body['pair']} of session {record.session}, order {record.order}"
    for role in ("reference", "candidate"):
        side = body["sides"][role]
        yield f"  {role}: {side['engine']}, lane {side['lane']}"
        if "argv" in side:
            yield f"    {' '.join(side['argv'])}"
    prompt = body["prompt"]
    if prompt is not None:
        yield f"  prompt: {prompt['tokens']:,} ids of {prompt['fixture']}, {prompt['digest']}"
        yield f"    {prompt['blind_spot']}"
    if record.divergence is not None:
        yield divergence_text(body["replay"], record.divergence, record.name)
    elif record.reason is not None:
        yield f"  {record.reason.code}: {record.reason.sentence}"
    elif record.timing is not None:
        yield f"  exact: {record.tokens} tokens at level {record.level}"
        yield "  ratios (above 1 the candidate wins):"
        for name, metric in METRICS.items():
            value = ratio(record.timing, name)
            if value is not None:
                ours, theirs = record.timing.candidate.value(name), record.timing.reference.value(name)
                yield f"    {name:<16} {value:.4f}   candidate {ours:.6g}, reference {theirs:.6g} {metric.unit}"
                yield f"    {'':<16} {metric.formula}"

"""``parity explain``: one receipt in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_parity.core.canonical import parse
from pytest_parity.core.explain import divergence_text
from pytest_parity.core.metrics import METRICS
from pytest_parity.core.receipts import read_pair
from pytest_parity.core.timing import ratio
from pytest_parity.errors import ReceiptUnreadable

__all__ = ["explain"]


def explain(path: Path) -> int:
    """Print what the receipt says, checked against its own words and events. 0 only for a passed pair."""
    try:
        body: Any = parse(path.read_bytes())
    except OSError as error:
        raise ReceiptUnreadable(
            f"receipt {path.name}", expected="a readable file", found=error.strerror or str(error), mend="Correct the path."
        ) from None
    record = read_pair(path.stem, body)
    print(f"{record.outcome}  pair {body['pair']} of session {record.session}, order {record.order}")
    for role in ("reference", "candidate"):
        side = body["sides"][role]
        print(f"  {role}: {side['engine']}, lane {side['lane']}")
        if "argv" in side:
            print(f"    {' '.join(side['argv'])}")
    prompt = body["prompt"]
    if prompt is not None:
        print(f"  prompt: {prompt['tokens']:,} ids of {prompt['fixture']}, {prompt['digest']}")
        print(f"    {prompt['blind_spot']}")
    if record.divergence is not None:
        print(divergence_text(body["replay"], record.divergence, record.name))
    elif record.reason is not None:
        print(f"  {record.reason.code}: {record.reason.sentence}")
    elif record.timing is not None:
        print(f"  exact: {record.tokens} tokens at level {record.level}")
        print("  ratios (above 1 the candidate wins):")
        for name, metric in METRICS.items():
            value = ratio(record.timing, name)
            if value is not None:
                print(f"    {name:<16} {value:.4f}   ({metric.unit}: {metric.formula})")
    return 0 if record.outcome == "passed" else 1

"""The one table of what can be measured: name, unit, formula, clock and direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_parity.errors import ConfigurationError

__all__ = ["METRICS", "Direction", "Metric", "metric"]

Direction = Literal["rate", "time"]
"""``rate``: more is better, ratio is candidate / reference. ``time``: less is better, reference / candidate."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity: its unit, how it is computed, by which clock, and which way is better."""

    name: str
    unit: str
    formula: str
    clock: str
    direction: Direction


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric(
            "decode_tps",
            "tokens/s",
            "(N - n_first) / (t_last - t_first); n_first = tokens in the first event that carries any",
            "client monotonic, arrival of events",
            "rate",
        ),
        Metric(
            "prefill_tps",
            "tokens/s",
            "prompt tokens / (t_first - t_sent)",
            "client monotonic, request sent to first event that carries tokens",
            "rate",
        ),
        Metric("ttft_s", "s", "t_first - t_sent", "client monotonic", "time"),
        Metric("wall_s", "s", "t_end - t_sent", "client monotonic", "time"),
        Metric("acceptance", "1", "accepted / drafted", "none: counts of the engine", "rate"),
        Metric("tokens_per_round", "tokens", "N / rounds", "none: counts of the engine", "rate"),
        Metric("peak_rss_bytes", "bytes", "largest sum over the process tree", "sampled", "time"),
    )
}


def metric(name: str) -> Metric:
    """The metric called ``name``. Raises ConfigurationError for a name that is not in the table."""
    try:
        return METRICS[name]
    except KeyError:
        raise ConfigurationError(
            f"metric {name!r}",
            expected=f"one of {', '.join(METRICS)}",
            found=repr(name),
            mend="Use a name from the metrics table.",
        ) from None

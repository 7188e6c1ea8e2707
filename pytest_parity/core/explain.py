"""All the words that people read: failure texts, table rows, plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_parity.core.exactness import Divergence
from pytest_parity.core.plan import Cell, SessionPlan
from pytest_parity.core.verdicts import CellVerdict, ClaimVerdict

__all__ = [
    "claim_failure",
    "claim_lines",
    "divergence_text",
    "duration",
    "pair_block",
    "plan_lines",
]

WIDTH = 80
TEXT_AROUND = 24


def divergence_text(replay: str, divergence: Divergence, receipt: str) -> str:
    """What differs, where, what stands around it, and the command that shows it again."""
    d = divergence
    lines = [_headline(d)]
    if d.level == "tokens":
        lines += [
            f"  reference ids from {d.near_start}: {_ids(d.reference_near, d.near_start, d.position)}",
            f"  candidate ids from {d.near_start}: {_ids(d.candidate_near, d.near_start, d.position)}",
        ]
    at = _common_prefix(d.reference_text, d.candidate_text)
    lines += [
        f"  reference text: {_around(d.reference_text, at)}",
        f"  candidate text: {_around(d.candidate_text, at)}",
        f"  lengths and ends: reference {_told(d.reference_tokens)} ({_told(d.reference_stop)}), "
        f"candidate {_told(d.candidate_tokens)} ({_told(d.candidate_stop)})",
        "  No timing exists: a rate over different tokens measures two different computations.",
        f"  receipt: {receipt}",
        f"  replay:  {replay}",
    ]
    return "\n".join(lines)


def _headline(d: Divergence) -> str:
    if d.kind == "token":
        return f"first difference at output token {d.position}: candidate {d.candidate_id}, reference {d.reference_id}"
    if d.kind == "length":
        short = "candidate" if d.candidate_id is None else "reference"
        return (
            f"first difference at output token {d.position}: the {short} ended there, the other side went on"
        )
    if d.kind == "stop":
        same = f"the same {d.candidate_tokens} tokens" if d.level == "tokens" else "the same text"
        return f"{same}, another stop reason: candidate {_told(d.candidate_stop)}, reference {_told(d.reference_stop)}"
    if d.kind == "count":
        return "the same tokens, but the two engines count them differently"
    return f"first difference at byte {d.position} of the text"


def _told(value: object) -> str:
    return "not told" if value is None else str(value)


def _ids(ids: Sequence[int], start: int, position: int) -> str:
    shown = [f"[{i}]" if start + n == position else str(i) for n, i in enumerate(ids)]
    if start + len(ids) <= position:
        shown.append("[end]")
    return " ".join(shown)


def _common_prefix(left: str, right: str) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def _around(text: str, at: int) -> str:
    before, after = text[max(0, at - TEXT_AROUND) : at], text[at : at + TEXT_AROUND]
    return f"{'…' if at > TEXT_AROUND else ''}{before!r} | {after!r}{'…' if len(text) > at + TEXT_AROUND else ''}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def plan_lines(plan: SessionPlan, seconds: Mapping[Cell, float | None], places: str) -> list[str]:
    """The plan as a table: cell, pairs, order, machine time where it can be estimated."""
    reps: dict[Cell, int] = {}
    for pair in plan.pairs:
        reps[pair.cell] = reps.get(pair.cell, 0) + 1
    width = max([len(cell.id) for cell in reps] + [4])
    lines = [f"{'cell':<{min(width, 52)}}  pairs  out  machine time"]
    total, unknown = 0.0, 0
    for cell, count in reps.items():
        per_pair = seconds.get(cell)
        if per_pair is None:
            unknown += 1
            cost = "unknown"
        else:
            total += per_pair * count
            cost = duration(per_pair * count)
        name = cell.id if len(cell.id) <= 52 else cell.id[:51] + "…"
        lines.append(f"{name:<{min(width, 52)}}  {count:>5}  {cell.output_tokens:>3}  {cost}")
    more = f"; {unknown} cell{'s' * (unknown != 1)} never measured before" if unknown else ""
    known = f"about {duration(total)} of machine time" if unknown < len(reps) else "machine time unknown"
    count = len(plan.pairs)
    lines += _wrapped(f"{count} pair{'s' * (count != 1)}, {2 * count} engine starts, {known}{more}", "")
    lines.append("order R C | C R | R C | …, fixed; a ratio above 1: the candidate wins")
    lines.extend(f"not asked: {name}: {why}" for name, why in plan.not_asked)
    if places:
        lines.append(places)
    return lines


def claim_lines(verdict: ClaimVerdict, attempts: Mapping[Cell, int], *, verbose: bool = False) -> list[str]:
    """One claim: its word, its cells as a table, one sentence and the next command for every non-PASS."""
    claim = verdict.claim
    mark = " (as expected)" if verdict.expected_met and verdict.word not in ("PASS",) else ""
    lines = [f"{verdict.word}{mark}  {claim.name}"]
    if verdict.word not in ("PASS",):
        lines += _wrapped(verdict.sentence, "  ")
    lines += _wrapped(f"claim: {claim.sentence()}", "  ")
    shown = [cell for cell in verdict.cells if cell.asked or verbose]
    if shown:
        lines.append(
            f"  {'depth':>7}  {'fixture':<14} {'pairs':>5}  {'ratio':>7}  {'exact bounds':<18} {'word'}"
        )
    for cell in shown:
        lines.append("  " + _cell_row(cell))
        if cell.sentence not in verdict.sentence or cell.word == "PASS":
            lines += _wrapped(cell.sentence, "           ")
        for note in cell.notes:
            lines += _wrapped(note, "           ")
        if attempts.get(cell.cell, 1) > 1:
            times = attempts[cell.cell]
            lines += _wrapped(
                f"attempt {times} at this cell with these engines; earlier ones stand in the log",
                "           ",
            )
        if cell.asked and cell.expected is not None:
            met = "met" if cell.held else "NOT met"
            lines += _wrapped(
                f"expected {cell.expected.verdict}, {met}: {cell.expected.because}", "           "
            )
        if verbose and cell.description is not None:
            lines += ["           " + line for line in pair_block(cell)]
    if verdict.minimum_lower is not None:
        lines.append(f"  smallest exact lower bound over all cells: {verdict.minimum_lower:.4f}")
    if verdict.command is not None:
        lines.append(f"  next: {verdict.command}")
    return lines


def _cell_row(cell: CellVerdict) -> str:
    ratio = f"{cell.description.median_pair_ratio:.4f}" if cell.description is not None else "-"
    bounds = "-"
    if cell.decision is not None and cell.decision.bounds is not None:
        bounds = f"[{cell.decision.bounds.lower:.4f}, {cell.decision.bounds.upper:.4f}]"
    done = sum(record.outcome == "passed" for record in cell.records)
    word = "diagnostic" if cell.diagnostic else cell.word
    return f"{cell.cell.depth:>7}  {cell.cell.fixture[:14]:<14} {done:>5}  {ratio:>7}  {bounds:<18} {word}"


def pair_block(cell: CellVerdict) -> list[str]:
    """Everything that describes a cell and decides nothing (CVs with n - 1)."""
    d = cell.description
    assert d is not None
    lines = [
        f"ratio of medians {d.ratio_of_medians:.4f}   median pair {d.median_pair_ratio:.4f}",
        f"pairs {d.smallest_pair_ratio:.4f} (r{d.smallest_pair}) .. {d.largest_pair_ratio:.4f} (r{d.largest_pair})",
    ]
    for role, side in (("candidate", d.candidate), ("reference", d.reference)):
        cv = f"{side.cv_sample * 100:.2f} %" if side.cv_sample is not None else "-"
        lines.append(f"{role} median {side.median:.4g}  CV {cv} (n - 1)  min {side.minimum:.4g}")
    if d.pair_sd_log is not None:
        worth = f", pairing worth {d.pairing_worth:.1f}x" if d.pairing_worth is not None else ""
        lines.append(f"pair SD {d.pair_sd_log * 100:.2f} %{worth}")
    if d.resolvable_log is not None:
        lines.append(f"resolvable at this noise, 80 % power: {d.resolvable_log * 100:.1f} %")
    if cell.decision is not None and cell.decision.floor_log is not None:
        lines.append(f"floor from the control: {cell.decision.floor_log * 100:.1f} %")
    if d.order_effect is not None:
        lines.append(f"order effect {d.order_effect.effect_log * 100:+.2f} %")
    if d.drift_per_pair_log is not None:
        lines.append(f"drift {d.drift_per_pair_log * 100:+.2f} % per pair")
    if cell.decision is not None and cell.decision.look is not None:
        looks = len(cell.decision.plan.looks)
        lines.append(
            f"looks used {cell.decision.look} of {looks}   alpha spent {cell.decision.alpha_spent:.4f} a direction"
        )
    return lines


def claim_failure(verdict: ClaimVerdict) -> str:
    """The text of a claim's failed report: word, sentence, the cells that do not hold, the next command."""
    lines = [f"{verdict.word}: {verdict.sentence}", f"  {verdict.claim.sentence()}"]
    for cell in verdict.cells:
        if cell.asked and not cell.held:
            lines.append(f"  {cell.cell.id}: {cell.word}: {cell.sentence}")
            if cell.expected is not None:
                lines.append(f"    expected {cell.expected.verdict}: {cell.expected.because}")
    if verdict.command is not None:
        lines.append(f"  next: {verdict.command}")
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    lines, line = [], indent
    for word in text.split():
        if len(line) + len(word) + 1 > WIDTH and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += word + " "
    if line.strip():
        lines.append(line.rstrip())
    return lines

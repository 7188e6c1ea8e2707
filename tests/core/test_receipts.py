"""The record of one pair: written as it was, read back bit for bit, and never believed."""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from factories import (
    IDS,
    UNHURRIED,
    a_body,
    a_claim,
    a_record,
    a_transcript,
    asked,
    controls,
    diverging,
    pairs,
    stored,
    unmeasured,
)
from hypothesis import given
from hypothesis import strategies as st

from pytest_parity.core.canonical import canonical_bytes, parse
from pytest_parity.core.exactness import Divergence, Exact, compare
from pytest_parity.core.plan import order_of
from pytest_parity.core.receipts import (
    FORMAT,
    Measured,
    PairRecord,
    Reason,
    clockwork_body,
    clockwork_of,
    read_pair,
    words_body,
    words_of,
)
from pytest_parity.core.timing import derive
from pytest_parity.core.transcript import Clockwork, Event
from pytest_parity.core.verdicts import Context, judge_claim
from pytest_parity.errors import ReceiptUnreadable

CLAIM = a_claim()
Path = tuple[str | int, ...]


# --- there and back --------------------------------------------------------------------------------------


def test_a_passed_pair_comes_back_whole() -> None:
    ours, theirs = a_transcript(rate=41.3), a_transcript(rate=40.1)
    exact = compare(ours, theirs, "tokens")
    assert isinstance(exact, Exact)
    found = a_record(CLAIM, rep=2, candidate=ours, reference=theirs)
    assert found == PairRecord(
        name="r2",
        session="20250101T000000-aaaa",
        replay="pytest claims/test_matrix.py::test_cell[decode-d2048-synthetic-r2]",
        claim="decode",
        claim_digest=CLAIM.digest,
        depth=2048,
        fixture="synthetic",
        output_tokens=256,
        plan="6",
        control_of=None,
        rep=2,
        attempt=1,
        order="CR",
        outcome="passed",
        reason=None,
        level="tokens",
        tokens=16,
        timing=derive(exact),
        divergence=None,
        candidate_digest="sha256:c",
        reference_digest="sha256:r",
        candidate=Measured("ours", "plain", ("b of candidate", "m", "b1")),
        reference=Measured("theirs", "plain", ("b of reference", "m", "b1")),
        code_digest="sha256:code",
        measured_at="2025-01-01T00:00:00Z",
        ids_from="stream",
    )
    assert found.readings("decode_tps") == (
        derive(exact).candidate.decode_tps,
        derive(exact).reference.decode_tps,
    )
    assert found.readings("acceptance") is None


def test_a_diverged_pair_comes_back_with_its_difference_and_no_time() -> None:
    found = a_record(CLAIM, candidate=diverging(7))
    assert found.outcome == "diverged"
    assert isinstance(found.divergence, Divergence) and found.divergence.position == 7
    assert found.timing is None and found.readings("decode_tps") is None and found.tokens is None
    sides = a_body(CLAIM, candidate=diverging(7))["sides"]
    assert sides["candidate"]["clockwork"] is None and sides["reference"]["clockwork"] is None


@pytest.mark.parametrize("outcome", ["void", "broken", "refused"])
def test_a_pair_that_did_not_pass_comes_back_with_its_reason_and_no_time(outcome: str) -> None:
    found = unmeasured(CLAIM, None, 1, outcome, "cached")
    assert (found.outcome, found.reason) == (outcome, Reason("cached", "because of cached"))
    assert found.timing is None and found.divergence is None and found.readings("wall_s") is None


@pytest.mark.parametrize("level", ["tokens", "text", "none"])
def test_every_level_comes_back(level: str) -> None:
    fields = {"kind": "reported", "exactness": level, "because": "numbers that are context only"}
    assert a_record(a_claim(**fields)).level == level


def test_ids_of_a_repeat_are_labelled_whichever_side_needed_it() -> None:
    repeat, stream = a_transcript(ids_from="repeat"), a_transcript()
    assert a_record(CLAIM, candidate=repeat, reference=stream).ids_from == "repeat"
    assert a_record(CLAIM, candidate=stream, reference=repeat).ids_from == "repeat"


@UNHURRIED
@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.none() | st.integers(0, 9)), max_size=6),
    st.integers(0, 2**62),
    st.dictionaries(
        st.text(max_size=6), st.floats(allow_nan=False, allow_infinity=False) | st.integers(), max_size=3
    ),
)
def test_clockwork_reads_back_as_it_was(
    gaps: list[tuple[int, int | None]], sent: int, engine: dict[str, float]
) -> None:
    clock = Clockwork(sent, tuple(Event(sent + after, tokens) for after, tokens in gaps), sent + 5, engine)
    assert clockwork_of(stored(clockwork_body(clock))) == clock


@UNHURRIED
@given(
    st.none() | st.lists(st.integers(0, 300_000), max_size=9),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_words_read_back_as_they_were(ids: list[int] | None, text: str) -> None:
    words = a_transcript(ids, text=text, settings={"top_k": 1}, drafted=3).words
    assert words_of(stored(words_body(words))) == words


@UNHURRIED
@given(st.floats(1e-3, 1e6), st.floats(1e-6, 1e3))
def test_figures_read_back_bit_for_bit(rate: float, ttft: float) -> None:
    body = a_body(CLAIM, candidate=a_transcript(rate=rate, ttft=ttft))
    timing = read_pair("r", body).timing
    assert timing is not None
    for name, value in body["timing"]["candidate"].items():
        now = getattr(timing.candidate, name)
        if isinstance(value, float):
            assert struct.pack(">d", value) == struct.pack(">d", now), name
        else:
            assert value == now, name


# --- a receipt that says something else than its own words and events --------------------------------------

CONTRADICTION = (
    "receipt r1: expected the {} that its own words and events give; found another one. "
    "It was edited, or written by another version: it counts for nothing."
)


def edited(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(body)
    place = copied
    for step in path[:-1]:
        place = place[step]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    return copied


def refusal(body: Any) -> str:
    with pytest.raises(ReceiptUnreadable) as caught:
        read_pair("r1", body)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("sides", "candidate", "words", "output_ids", 3), 999, "exactness"),
        (("sides", "reference", "words", "output_ids"), [*IDS, 1], "exactness"),
        (("sides", "candidate", "words", "stop"), "eos", "exactness"),
        (("exactness", "tokens"), 17, "exactness"),
        (("exactness", "level"), "text", "exactness"),
        (("level",), "text", "exactness"),
        (("level",), "none", "exactness"),
        (("sides", "candidate", "words", "ids_from"), "repeat", "exactness"),
        (("sides", "candidate", "clockwork", "events", 0, 0), 400_000_000, "timing"),
        (("sides", "candidate", "clockwork", "events", 2, 0), 800_000_000, "timing"),
        (("sides", "candidate", "clockwork", "events", 2, 1), 15, "timing"),
        (("sides", "candidate", "clockwork", "end_after_ns"), 10_000_000_000, "timing"),
        (("sides", "reference", "clockwork", "peak_rss_bytes"), 999, "timing"),
        (("sides", "reference", "words", "prompt_tokens"), 999, "timing"),
        (("timing", "ratios", "decode_tps"), math.nextafter(1.0, 2.0), "timing"),
        (("timing", "candidate", "decode_tps"), 44.0, "timing"),
        (("timing", "ratios", "decode_tps"), True, "timing"),
        (("timing", "ratios", "decode_tps"), 1, "timing"),
        (("outcome",), "diverged", "divergence"),
        (("outcome",), "void", "reason"),
        (("outcome",), "broken", "reason"),
        (("outcome",), "refused", "reason"),
        (("reason",), {"code": "x", "sentence": "y"}, "reason"),
        (("divergence",), {}, "divergence"),
        (("order",), "CR", "order of the sides"),
        (("rep",), 2, "order of the sides"),
    ],
)
def test_an_edit_of_a_passed_pair_is_found(path: Path, value: Any, what: str) -> None:
    assert refusal(edited(a_body(CLAIM), path, value)) == CONTRADICTION.format(what)


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("outcome",), "passed", "exactness"),
        (("outcome",), "void", "reason"),
        (("sides", "candidate", "words", "output_ids"), list(IDS), "divergence"),
        (("timing",), {"ratios": {"decode_tps": 1.05}}, "timing, which is none,"),
        (
            ("sides", "candidate", "clockwork"),
            clockwork_body(a_transcript().clockwork),
            "timing, which is none,",
        ),
        (("divergence",), None, "divergence"),
        (("divergence", "position"), 4, "divergence"),
        (("divergence", "candidate_id"), 998, "divergence"),
    ],
)
def test_an_edit_of_a_diverged_pair_is_found(path: Path, value: Any, what: str) -> None:
    assert refusal(edited(a_body(CLAIM, candidate=diverging()), path, value)) == CONTRADICTION.format(what)


@pytest.mark.parametrize("outcome", ["void", "broken", "refused"])
def test_a_pair_that_did_not_pass_cannot_be_made_to(outcome: str) -> None:
    body = a_body(CLAIM, outcome=outcome, reason=("cached", "a sentence"))
    assert refusal(edited(body, ("outcome",), "passed"))
    assert refusal(edited(edited(body, ("outcome",), "passed"), ("reason",), None))
    assert refusal(edited(body, ("outcome",), "diverged"))


# --- a receipt that is none --------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["pytest-parity/receipt/2", None, 1])
def test_an_unknown_format(found: Any) -> None:
    assert refusal(edited(a_body(CLAIM), ("format",), found)) == (
        f"receipt r1: expected format {FORMAT}; found {found!r}. Use the version that wrote it."
    )


@pytest.mark.parametrize("body", [[], None, "text", 3])
def test_bytes_that_hold_no_object(body: Any) -> None:
    assert (
        refusal(body)
        == f"receipt r1: expected format {FORMAT}; found {body!r}. Use the version that wrote it."
    )


FOREIGN = "Its bytes were not written by this package; compare its digest with the log's."


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("outcome",), "PASSED", "ValueError: outcome 'PASSED' at level 'tokens'"),
        (("outcome",), None, "ValueError: outcome None at level 'tokens'"),
        (("level",), "rows", "ValueError: outcome 'passed' at level 'rows'"),
        (("rep",), "1", "TypeError: rep is '1'"),
        (("rep",), True, "TypeError: rep is True"),
        (("cell", "depth"), 2048.0, "TypeError: cell.depth is 2048.0"),
        (("claim", "digest"), None, "TypeError: claim.digest is None"),
        (("cell", "control_of"), 3, "TypeError: cell.control_of is 3"),
        (("sides", "candidate", "lane"), None, "TypeError: sides.candidate.lane is None"),
        (
            ("sides", "candidate", "identity", "build"),
            3,
            "TypeError: the build of ours is ('b of candidate', 'm', 3)",
        ),
        (("sides", "candidate", "words", "output_ids", 0), 100.0, "ValueError: 100.0 is no whole number"),
        (("sides", "candidate", "words", "output_ids", 0), True, "ValueError: True is no whole number"),
        (("sides", "candidate", "clockwork", "events", 0, 0), 0.5, "ValueError: 0.5 is no whole number"),
        (("sides", "candidate", "clockwork", "events", 0, 1), 1.0, "ValueError: 1.0 is no whole number"),
        (
            ("sides", "candidate", "clockwork", "engine"),
            3,
            "AttributeError: 'int' object has no attribute 'get'",
        ),
    ],
)
def test_a_value_that_this_package_never_writes(path: Path, value: Any, said: str) -> None:
    assert refusal(edited(a_body(CLAIM), path, value)) == (
        f"receipt r1: expected the fields of its format; found {said}. {FOREIGN}"
    )


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    steps: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for step, item in steps:
        yield from leaves(item, (*path, step))


PATHS = sorted((p for p in leaves(a_body(CLAIM)) if p), key=repr)
REQUIRED = [p for p in PATHS if len(p) < 3 and isinstance(p[-1], str)]


@pytest.mark.parametrize("path", REQUIRED, ids=lambda path: ".".join(map(str, path)))
def test_a_missing_field_is_found(path: Path) -> None:
    body = a_body(CLAIM)
    place = body
    for step in path[:-1]:
        place = place[step]  # type: ignore[index]
    del place[path[-1]]  # type: ignore[arg-type]
    if path in (("cell", "claim"), ("cell", "lane")):
        assert read_pair("r1", body).outcome == "passed", "bound by the claim's digest"
    else:
        assert refusal(body)


# What may change without changing the word: names, texts for people, and what no rule reads.
DECIDES_NOTHING = {
    ("session",),
    ("replay",),
    ("attempt",),
    ("at",),
    ("minimum_tokens",),
    ("cell", "claim"),
    ("cell", "lane"),
    ("cell", "output_tokens"),
    ("cell", "plan"),
}
UNREAD_WORDS = {"text", "evaluated", "cached", "predicted", "settings", "drafted", "accepted", "rounds"}
"""Of words at level ``tokens``; counts that enter a figure are held against the stored figure."""
UNREAD_CLOCKWORK = {("events", 1, 0), ("events", 0, 1), ("sent_ns",), ("stamps",)}
"""Between the first and the last event times are kept and enter no figure; so does the first event's count."""
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.sampled_from(["passed", "tokens", "eos", "repeat"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@UNHURRIED
@given(st.sampled_from(PATHS), json_values)
def test_no_edit_of_one_value_keeps_a_pass_in_silence(path: Path, value: Any) -> None:
    rows = [1.01, 1.011, 1.012, 1.013, 1.014, 1.015]
    records = pairs(CLAIM, rows)
    body = a_body(CLAIM, candidate=a_transcript(rate=40.4), reference=a_transcript())
    whole = judge_claim(CLAIM, records, controls(CLAIM), Context(asked(CLAIM)))
    assert whole.word == "PASS"
    changed = edited(body, path, value)
    if canonical_bytes(changed) == canonical_bytes(body):
        return
    try:
        record = read_pair("r1", stored(changed))
    except ReceiptUnreadable:
        return
    verdict = judge_claim(CLAIM, [record, *records[1:]], controls(CLAIM), Context(asked(CLAIM)))
    harmless = (
        path in DECIDES_NOTHING
        or ("words" in path[:3] and len(path) > 3 and path[3] in UNREAD_WORDS)
        or (path[2:3] == ("clockwork",) and path[3:] in UNREAD_CLOCKWORK)
        or path[2:4] == ("clockwork", "engine")
        or path
        in (("cell",), ("claim",), ("code",), ("sides",), ("sides", "candidate"), ("sides", "reference"))
    )
    assert verdict.word != "PASS" or harmless, path


def test_the_bytes_of_a_receipt_parse_to_what_was_written() -> None:
    body = a_body(CLAIM)
    again: Any = parse(canonical_bytes(body))
    assert again == body and canonical_bytes(again) == canonical_bytes(body)
    assert read_pair("r1", again).order == order_of(1)

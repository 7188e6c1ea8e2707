"""All the words that people read: exact texts, and no line of a claim's table beyond eighty columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from factories import (
    IDS,
    QUIET,
    UNHURRIED,
    a_claim,
    a_record,
    a_transcript,
    controls,
    diverging,
    judged,
    pairs,
    unmeasured,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_parity.core.exactness import Divergence, compare
from pytest_parity.core.explain import (
    WIDTH,
    claim_failure,
    claim_lines,
    divergence_text,
    duration,
    plan_lines,
)
from pytest_parity.core.plan import Filter, declared_cells, make_plan
from pytest_parity.core.transcript import Transcript

REPLAY = "pytest 'claims/test_matrix.py::test_cell[decode-d2048-synthetic-r3]'"
RECEIPT = "20250101T000000-aaaa.decode-d2048-synthetic-r3"
TAIL = f"""\
  No timing exists: a rate over different tokens measures two different computations.
  receipt: {RECEIPT}
  replay:  {REPLAY}"""


def text_of(ours: Transcript, theirs: Transcript, level: str = "tokens") -> str:
    found = compare(ours, theirs, "text" if level == "text" else "tokens")
    assert isinstance(found, Divergence)
    return divergence_text(REPLAY, found, RECEIPT)


def test_another_token() -> None:
    text = "The lighthouse keeper wrote in his log every evening"
    ours = a_transcript((*IDS[:9], 7, *IDS[10:]), text=text.replace("log", "dog"))
    assert text_of(ours, a_transcript(text=text)) == (
        f"""\
first difference at output token 9: candidate 7, reference 109
  reference ids from 1: 101 102 103 104 105 106 107 108 [109] 110 111 112 113 114 115
  candidate ids from 1: 101 102 103 104 105 106 107 108 [7] 110 111 112 113 114 115
  reference text: …'use keeper wrote in his ' | 'log every evening'
  candidate text: …'use keeper wrote in his ' | 'dog every evening'
  lengths and ends: reference 16 (limit), candidate 16 (limit)
{TAIL}"""
    )


def test_a_side_that_ended() -> None:
    assert text_of(a_transcript(IDS[:2], stop="eos", text="ab"), a_transcript(IDS[:4], text="abcd")) == (
        f"""\
first difference at output token 2: the candidate ended there, the other side went on
  reference ids from 0: 100 101 [102] 103
  candidate ids from 0: 100 101 [end]
  reference text: 'ab' | 'cd'
  candidate text: 'ab' | ''
  lengths and ends: reference 4 (limit), candidate 2 (eos)
{TAIL}"""
    )
    assert text_of(a_transcript(), a_transcript(IDS[:2])).startswith(
        "first difference at output token 2: the reference ended there, the other side went on\n"
    )


def test_another_stop_reason() -> None:
    assert text_of(a_transcript(IDS[:2], stop=None, text="ab"), a_transcript(IDS[:2], text="ab")) == (
        f"""\
the same 2 tokens, another stop reason: candidate not told, reference limit
  reference ids from 0: 100 101 [end]
  candidate ids from 0: 100 101 [end]
  reference text: 'ab' | ''
  candidate text: 'ab' | ''
  lengths and ends: reference 2 (limit), candidate 2 (not told)
{TAIL}"""
    )


def test_another_count() -> None:
    first, *_ = text_of(a_transcript(predicted=17), a_transcript(predicted=16)).splitlines()
    assert first == "the same tokens, but the two engines count them differently"


def test_another_text() -> None:
    ours, theirs = a_transcript(None, text="naïve"), a_transcript(None, text="naïf", predicted=3)
    assert text_of(ours, theirs, "text") == (
        f"""\
first difference at byte 4 of the text
  reference text: 'naï' | 'f'
  candidate text: 'naï' | 've'
  lengths and ends: reference 3 (limit), candidate not told (limit)
{TAIL}"""
    )


def test_the_same_text_with_another_stop_reason() -> None:
    ours, theirs = a_transcript(None, text="ab", stop="eos"), a_transcript(None, text="ab")
    first, *_ = text_of(ours, theirs, "text").splitlines()
    assert first == "the same text, another stop reason: candidate eos, reference limit"


def test_control_characters_cannot_draw_on_the_terminal() -> None:
    shown = text_of(a_transcript((1, 2), text="a\x1b[2J\n"), a_transcript((1, 3), text="a\x1b[2K\n"))
    assert "\x1b" not in shown and len(shown.splitlines()) == 9


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (600, "10 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (86_400, "24.0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- the plan --------------------------------------------------------------------------------------------


def test_the_plan_as_a_table() -> None:
    claims = [
        a_claim("decode", depths=[2048, {"depth": 131_008, "output_tokens": 64}]),
        a_claim("x", candidate="gone"),
    ]
    plan = make_plan(claims, Filter(), lambda c: "gone is not installed." if c.candidate == "gone" else None)
    control, shallow, deep = plan.cells()
    assert plan_lines(plan, {control: 10.0, shallow: 20.0, deep: None}, "receipts: here") == [
        "cell                                  pairs  out  machine time",
        "control-theirs-plain-d2048-synthetic      6  256  60 s",
        "decode-d2048-synthetic                    6  256  2 min",
        "decode-d131008-synthetic                  6   64  unknown",
        "18 pairs, 36 engine starts, about 3 min of machine time; 1 cell never measured",
        "before",
        "order R C | C R | R C | …, fixed; a ratio above 1: the candidate wins",
        "not asked: x: gone is not installed.",
        "receipts: here",
    ]


def test_a_plan_of_which_nothing_is_known() -> None:
    plan = make_plan([a_claim("tokens", kind="exact")], Filter(reps=1))
    assert plan_lines(plan, {}, "")[-2] == (
        "1 pair, 2 engine starts, machine time unknown; 1 cell never measured before"
    )


def test_an_empty_plan_still_says_what_was_not_asked() -> None:
    plan = make_plan([a_claim("tokens", kind="exact")], Filter(), lambda claim: "not installed")
    assert plan_lines(plan, {}, "")[-1] == "not asked: tokens: not installed"


# --- a claim ---------------------------------------------------------------------------------------------

ABOVE = (1.020, 1.021, 1.022, 1.023, 1.024, 1.025)
BELOW = (0.900, 0.901, 0.902, 0.903, 0.904, 0.905)


def test_a_pass() -> None:
    claim = a_claim()
    assert claim_lines(judged(claim, pairs(claim, ABOVE)), {}) == [
        "PASS  decode",
        "  claim: At 2,048, ours kept up with theirs.",
        "    depth  fixture        pairs    ratio  exact bounds       word",
        "     2048  synthetic          6   1.0225  [1.0210, 1.0240]   PASS",
        "           exact lower bound 1.0210 >= 0.9900",
        "  smallest exact lower bound over all cells: 1.0210",
    ]


def test_a_miss_as_expected() -> None:
    claim = a_claim(expected=[{"verdict": "MISS", "because": "the reference drafts better"}])
    (cell,) = declared_cells(claim)
    assert claim_lines(judged(claim, pairs(claim, BELOW)), {cell: 2}) == [
        "MISS (as expected)  decode",
        "  2,048 synthetic: exact upper bound 0.9040 < 0.9900",
        "  claim: At 2,048, ours kept up with theirs.",
        "    depth  fixture        pairs    ratio  exact bounds       word",
        "     2048  synthetic          6   0.9025  [0.9010, 0.9040]   MISS",
        "           attempt 2 at this cell with these engines; earlier ones stand in the",
        "           log",
        "           expected MISS, met: the reference drafts better",
        "  next: pytest -m parity --claims decode --depths 2048 --fixture-class synthetic",
    ]


def test_better_than_expected_is_not_met() -> None:
    claim = a_claim(expected=[{"verdict": "MISS", "because": "the reference drafts better"}])
    lines = claim_lines(judged(claim, pairs(claim, ABOVE)), {})
    assert "           expected MISS, NOT met: the reference drafts better" in lines
    assert lines[0] == "PASS  decode"


def test_a_diagnostic_run_has_no_word_and_no_number() -> None:
    claim = a_claim()
    (cell,) = declared_cells(claim)
    lines = claim_lines(judged(claim, pairs(claim, ABOVE)[:2], asked={cell: frozenset({1, 2})}), {})
    assert "     2048  synthetic          2        -  -                  diagnostic" in lines
    assert not any("1.02" in line for line in lines)


def test_cells_that_were_not_asked_are_shown_only_to_those_who_ask_for_more() -> None:
    claim = a_claim(depths=[2048, 8192])
    first = declared_cells(claim)[0]
    verdict = judged(claim, pairs(claim, ABOVE, first), asked={first: frozenset(range(1, 7))})
    assert not any("8192" in line for line in claim_lines(verdict, {}))
    assert any("8192" in line for line in claim_lines(verdict, {}, verbose=True))


def test_everything_that_describes_a_cell() -> None:
    claim = a_claim(pairs="6+6")
    lines = claim_lines(judged(claim, pairs(claim, ABOVE)), {}, verbose=True)
    assert lines[5:] == [
        "           look 2 not needed",
        "           ratio of medians 1.0225   median pair 1.0225",
        "           pairs 1.0200 (r1) .. 1.0250 (r6)",
        "           candidate median 40.9  CV 0.18 % (n - 1)  min 40.8",
        "           reference median 40  CV 0.00 % (n - 1)  min 40",
        "           pair SD 0.18 %, pairing worth 1.0x",
        "           resolvable at this noise, 80 % power: 0.2 %",
        "           floor from the control: 0.0 %",
        "           order effect +0.05 %",
        "           drift +0.05 % per pair",
        "           looks used 1 of 2   alpha spent 0.0156 a direction",
        "  smallest exact lower bound over all cells: 1.0200",
    ]


def test_the_text_of_a_failed_report() -> None:
    claim = a_claim(
        depths=[2048, 8192], expected=[{"verdict": "MISS", "because": "a cell that is slow", "depth": 8192}]
    )
    first, second = declared_cells(claim)
    verdict = judged(claim, [*pairs(claim, BELOW, first), *pairs(claim, ABOVE, second)])
    assert claim_failure(verdict) == (
        """\
MISS: 2,048 synthetic: exact upper bound 0.9040 < 0.9900
  At 2,048 and 8,192, ours kept up with theirs.
  decode-d2048-synthetic: MISS: exact upper bound 0.9040 < 0.9900
  decode-d8192-synthetic: PASS: exact lower bound 1.0210 >= 0.9900
    expected MISS: a cell that is slow
  next: pytest -m parity --claims decode --depths 2048 --fixture-class synthetic"""
    )


@pytest.mark.parametrize(
    "word", ["FAIL", "INVALID", "INCOMPLETE", "UNSUPPORTED", "STALE", "UNRESOLVED", "MISS"]
)
def test_every_word_but_pass_comes_with_a_sentence_and_a_command(word: str) -> None:
    claim = a_claim()
    context: dict[str, Any] = {"stale": "the pin of theirs expired"} if word == "STALE" else {}
    records, control = {
        "FAIL": ([a_record(claim, candidate=diverging())], None),
        "INVALID": (pairs(claim, ABOVE), controls(claim, (1.1, 1.2, 1.1, 1.2, 1.1, 1.2))),
        "INCOMPLETE": (pairs(claim, ABOVE)[:5], None),
        "UNSUPPORTED": ([unmeasured(claim, None, 1, "refused", "unsupported")], None),
        "STALE": (pairs(claim, ABOVE), None),
        "UNRESOLVED": (pairs(claim, ABOVE), {}),
        "MISS": (pairs(claim, BELOW), None),
    }[word]
    lines = claim_lines(judged(claim, records, control, **context), {})
    assert lines[0] == f"{word}  decode"
    assert lines[1].startswith("  2,048 synthetic: ") and len(lines[1]) > 25
    assert lines[-1].startswith("  next: pytest ")


# Exempt from the width: the command (it is copied whole) and the first line, whose name may be as long as
# names may be. A single word longer than the line (a path, a digest) is never broken.
WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)


@settings(UNHURRIED, max_examples=60)
@given(
    st.sampled_from(
        [
            "PASS",
            "MISS",
            "UNRESOLVED",
            "FAIL",
            "INVALID",
            "INCOMPLETE",
            "UNSUPPORTED",
            "STALE",
            "RECORDED",
            "PASS(point)",
        ]
    ),
    st.lists(WORDS, min_size=1, max_size=30).map(" ".join),
    st.lists(WORDS, min_size=3, max_size=12).map(" ".join),
    st.sampled_from(["synthetic", "natural-prose", "file:prompts/a/very/long/path/to/a/prompt-of-mine.json"]),
    st.integers(1, 1_048_576),
    st.lists(st.floats(0.3, 3.0), min_size=6, max_size=6).map(tuple),
    st.booleans(),
)
def test_no_line_of_a_claim_is_wider_than_eighty_columns(
    word: str, sentence: str, because: str, fixture: str, depth: int, ratios: tuple[float, ...], verbose: bool
) -> None:
    expected = [{"verdict": "MISS", "because": because + ", as everybody knows"}]
    claim = a_claim(
        wording=f"{sentence} at {{depths}}", fixtures=[fixture], depths=[depth], expected=expected
    )
    verdict = judged(claim, pairs(claim, ratios), controls(claim, QUIET))
    cell = replace(verdict.cells[0], word=word, sentence=sentence)
    shown = claim_lines(
        replace(verdict, word=word, sentence=sentence, cells=(cell,)), {cell.cell: 12}, verbose=verbose
    )
    wide = [line for line in shown[1:] if len(line) > WIDTH and not line.startswith("  next: ")]
    assert wide == []


@settings(UNHURRIED, max_examples=60)
@given(
    st.lists(st.integers(1, 1_048_576), min_size=1, max_size=5, unique=True),
    st.from_regex(r"\A[a-z][a-z0-9-]{0,79}\Z"),
    st.floats(0, 1e6) | st.none(),
)
def test_no_line_of_a_plan_is_wider_than_eighty_columns(
    depths: list[int], name: str, seconds: float | None
) -> None:
    plan = make_plan([a_claim(name, depths=depths, fixtures=["synthetic", "natural-prose"])], Filter())
    lines = plan_lines(plan, dict.fromkeys(plan.cells(), seconds), "")
    assert [line for line in lines if len(line) > WIDTH] == []

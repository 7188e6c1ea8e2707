"""From records to words: every row of the verdict table, and what must never become a PASS."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from factories import (
    QUIET,
    UNHURRIED,
    a_claim,
    a_record,
    a_transcript,
    asked,
    control_pairs,
    controls,
    diverging,
    judged,
    pairs,
    unmeasured,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_parity.core.claims import Claim
from pytest_parity.core.plan import Cell, declared_cells
from pytest_parity.core.receipts import PairRecord
from pytest_parity.core.verdicts import ClaimVerdict, ControlResult, control_result, second_look_needed

FEWER = settings(UNHURRIED, max_examples=40)
ABOVE = (1.020, 1.021, 1.022, 1.023, 1.024, 1.025)
BELOW = (0.900, 0.901, 0.902, 0.903, 0.904, 0.905)
ASTRIDE = (0.970, 1.010, 0.975, 1.005, 0.980, 1.000)
"""Around 0.99, whose order effect is mended by the test that uses it."""
CLAIM = a_claim()
CELL = declared_cells(CLAIM)[0]
EXACT = a_claim("tokens", kind="exact")
BECAUSE = "this much is known already"


def words(verdict: ClaimVerdict) -> list[str]:
    return [cell.word for cell in verdict.cells]


def said(verdict: ClaimVerdict, word: str, sentence: str, *, held: bool) -> None:
    assert (verdict.word, verdict.sentence, verdict.held) == (word, sentence, held)


# --- PASS and MISS ---------------------------------------------------------------------------------------


def test_pass_by_the_lower_bound() -> None:
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE))
    said(verdict, "PASS", "every declared cell", held=True)
    (cell,) = verdict.cells
    assert (cell.word, cell.held, cell.asked) == ("PASS", True, True)
    assert cell.sentence == "exact lower bound 1.0210 >= 0.9900"
    assert verdict.command is None
    assert verdict.minimum_lower == pytest.approx(1.021, abs=1e-6)
    assert cell.exact_tokens == 16


def test_a_pass_within_the_margin_says_when_it_is_resolved_slower() -> None:
    verdict = judged(CLAIM, pairs(CLAIM, (0.9950, 0.9951, 0.9952, 0.9951, 0.9950, 0.9952)))
    assert verdict.word == "PASS"
    assert verdict.cells[0].sentence == (
        "exact lower bound 0.9950 >= 0.9900, and resolved 0.5 % slower or more within the margin"
    )


def test_miss_by_the_upper_bound_is_recorded_as_it_is() -> None:
    verdict = judged(CLAIM, pairs(CLAIM, BELOW))
    said(verdict, "MISS", "2,048 synthetic: exact upper bound 0.9040 < 0.9900", held=False)
    assert verdict.command == "pytest -m parity --claims decode --depths 2048 --fixture-class synthetic"
    assert verdict.minimum_lower is None, "only a PASS has a number that may be claimed"


def test_exact_claims_pass_without_a_control() -> None:
    verdict = judged(EXACT, [a_record(EXACT, rep=rep) for rep in (1, 2)], {})
    said(verdict, "PASS", "every declared cell", held=True)
    assert verdict.cells[0].sentence == "16 tokens equal, greedy, one slot, prompt of 2,048 ids, 2 pairs"
    assert verdict.minimum_lower is None


def test_the_shortest_output_is_the_length_proven() -> None:
    short = a_transcript((1, 2, 3))
    records = [a_record(EXACT), a_record(EXACT, rep=2, candidate=short, reference=short)]
    assert judged(EXACT, records).cells[0].sentence.startswith("3 tokens equal")


def test_ids_from_a_repeat_are_labelled_in_the_sentence() -> None:
    repeat = a_transcript(ids_from="repeat")
    records = [a_record(EXACT), a_record(EXACT, rep=2, reference=repeat)]
    assert judged(EXACT, records).cells[0].sentence.endswith("2 pairs (ids from an unstreamed repeat)")


def test_times_are_judged_as_reference_over_candidate() -> None:
    claim = a_claim(metric="ttft_s")
    slow, fast = a_transcript(ttft=0.6), a_transcript(ttft=0.5)
    quick = [a_record(claim, None, rep, candidate=fast, reference=slow) for rep in range(1, 7)]
    assert judged(claim, quick).word == "PASS"
    lame = [a_record(claim, None, rep, candidate=slow, reference=fast) for rep in range(1, 7)]
    assert judged(claim, lame).word == "MISS"


J3 = (35.0973, 35.0850, 35.1586, 35.1939, 35.1910), (33.3817, 33.3035, 33.4304, 33.4261, 33.4900)
J3_PREFILL = (
    (317.6623, 317.4944, 317.8869, 317.5583, 317.9913),
    (306.5062, 306.3196, 306.3874, 306.2955, 305.9840),
)


def published(claim: Claim) -> list[PairRecord]:
    """The five pairs of a published table, as receipts."""
    rows = zip(*J3, *J3_PREFILL, strict=True)
    return [
        a_record(
            claim,
            None,
            rep,
            candidate=a_transcript(rate=ours, ttft=2048 / ours_in),
            reference=a_transcript(rate=theirs, ttft=2048 / theirs_in),
        )
        for rep, (ours, theirs, ours_in, theirs_in) in enumerate(rows, start=1)
    ]


@pytest.mark.parametrize(
    ("fields", "word", "sentence"),
    [
        ({"kind": "at-least", "threshold": 1.05}, "PASS", "exact lower bound 1.0508 >= 1.0500"),
        ({"margin": 0.01}, "PASS", "exact lower bound 1.0508 >= 0.9900"),
        ({"kind": "at-least", "threshold": 1.051}, "UNRESOLVED", "bounds [1.0508, 1.0535] straddle 1.0510"),
        ({"kind": "at-least", "threshold": 1.06}, "MISS", "exact upper bound 1.0535 < 1.0600"),
        (
            {"kind": "at-least", "threshold": 1.03, "metric": "prefill_tps"},
            "PASS",
            "exact lower bound 1.0364 >= 1.0300",
        ),
        (
            {"kind": "at-least", "threshold": 1.05, "metric": "prefill_tps"},
            "MISS",
            "exact upper bound 1.0392 < 1.0500",
        ),
        (
            {"kind": "point", "threshold": 1.0518, "statistic": "ratio-of-medians"},
            "PASS(point)",
            "ratio-of-medians 1.0518 >= 1.0518: a point, without error bounds",
        ),
    ],
)
def test_the_published_table_with_a_quiet_control(fields: dict[str, Any], word: str, sentence: str) -> None:
    claim = a_claim(**fields, pairs="5")
    verdict = judged(claim, published(claim))
    assert verdict.word == word
    assert verdict.cells[0].sentence.startswith(sentence)
    assert judged(claim, published(claim), {}).word == "UNRESOLVED", (
        "historic readings give bounds, never a PASS"
    )


# --- UNRESOLVED ------------------------------------------------------------------------------------------


def test_unresolved_because_the_bounds_straddle_says_how_many_pairs_would_settle_it() -> None:
    claim = a_claim(kind="at-least", threshold=0.985)
    verdict = judged(claim, pairs(claim, ASTRIDE))
    assert (verdict.word, verdict.held) == ("UNRESOLVED", False)
    assert verdict.sentence == (
        "2,048 synthetic: bounds [0.9750, 1.0050] straddle 0.9850; about 75 pairs would settle it"
    )


def test_unresolved_inside_the_floor() -> None:
    noisy = (1.04, 0.96, 1.03, 0.97, 1.02, 0.98)
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE), controls(CLAIM, noisy))
    assert (verdict.word, verdict.held) == ("UNRESOLVED", False)
    assert verdict.cells[0].sentence == (
        "median 1.0225 lies within the session's floor (4.1 %) of 0.9900: not decidable here"
    )


@pytest.mark.parametrize("control", [{}, {"others/plain": controls(CLAIM)["theirs/plain"]}])
def test_never_a_pass_without_a_control_of_that_reference(control: dict[str, ControlResult]) -> None:
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE), control)
    said(verdict, "UNRESOLVED", "2,048 synthetic: no control in the session: none was planned", held=False)


@pytest.mark.parametrize(("taken", "more"), [(5, []), (0, []), (6, [6]), (5, [7])])
def test_a_control_that_is_not_six_pairs_is_none(taken: int, more: list[int]) -> None:
    six = control_pairs(CLAIM)
    records = [*six[:taken], *(replace(six[0], rep=rep) for rep in more)]
    found = control_result(records, "decode_tps")
    assert found.control is None and not found.diverged
    assert judged(CLAIM, pairs(CLAIM, ABOVE), {"theirs/plain": found}).word == "UNRESOLVED"


def test_a_control_with_a_void_pair_is_none() -> None:
    six = control_pairs(CLAIM)
    found = control_result([*six[:5], replace(six[5], outcome="void", timing=None)], "decode_tps")
    assert found == ControlResult(None, "the control has 5 of 6 pairs")


def test_a_control_that_cannot_be_read_is_none_and_loses_no_verdict() -> None:
    claim = a_claim(metric="acceptance")
    side = a_transcript(drafted=10, accepted=0)
    cell = replace(CELL, claim="control-theirs-plain", control_of="theirs/plain")
    records = [a_record(claim, cell, rep, candidate=side, reference=side) for rep in range(1, 7)]
    found = control_result(records, "acceptance")
    assert found.control is None and found.why.startswith(
        "the control cannot be read: reading of the candidate"
    )
    own = [a_record(claim, None, rep, candidate=side, reference=side) for rep in range(1, 7)]
    verdict = judged(claim, own, {"theirs/plain": found})
    assert verdict.word == "INCOMPLETE"
    assert verdict.sentence.startswith(
        "2,048 synthetic: reading of the candidate in pair 1: expected a finite number"
    )
    assert second_look_needed(claim, CELL, own, found), "unknown counts as yes"


def test_an_order_effect_beyond_half_the_margin_is_told_and_decides_nothing() -> None:
    swaying = judged(CLAIM, pairs(CLAIM, (1.020, 1.034, 1.020, 1.034, 1.020, 1.034)))
    assert swaying.word == "PASS"
    assert swaying.cells[0].notes[0] == (
        "going first is worth +0.7 %, more than half the margin: mind warm-up and quiet"
    )
    steady = judged(CLAIM, pairs(CLAIM, (1.020, 1.028, 1.020, 1.028, 1.020, 1.028)))
    assert steady.word == "PASS"
    assert not any("going first" in note for note in steady.cells[0].notes)


# --- INVALID ---------------------------------------------------------------------------------------------


def test_invalid_by_a_control_that_tells_an_engine_from_itself() -> None:
    shifted = (1.001, 1.002, 1.003, 1.001, 1.002, 1.003)
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE), controls(CLAIM, shifted))
    said(
        verdict,
        "INVALID",
        "2,048 synthetic: the control told the reference from itself: [1.0010, 1.0030] leaves 1 out",
        held=False,
    )


def test_invalid_by_a_control_that_writes_other_tokens() -> None:
    six = control_pairs(CLAIM)
    cell = replace(CELL, claim="control-theirs-plain", control_of="theirs/plain")
    apart = control_result(
        [*six[:3], a_record(CLAIM, cell, 4, candidate=diverging()), *six[4:]], "decode_tps"
    )
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE), {"theirs/plain": apart})
    said(
        verdict,
        "INVALID",
        "2,048 synthetic: the control's pair r4 did not write the same tokens twice",
        held=False,
    )
    assert verdict.minimum_lower is None


def test_an_invalid_control_hits_only_claims_on_that_reference_and_lane() -> None:
    bad = controls(CLAIM, (1.1, 1.2, 1.3, 1.1, 1.2, 1.3))
    other = a_claim("other", lane="fast")
    assert judged(CLAIM, pairs(CLAIM, ABOVE), bad).word == "INVALID"
    assert judged(other, pairs(other, ABOVE), {**bad, **controls(other)}).word == "PASS"
    assert judged(EXACT, [a_record(EXACT, rep=rep) for rep in (1, 2)], bad).word == "PASS"


# --- FAIL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [CLAIM, EXACT, a_claim(kind="reported")])
def test_fail_on_a_divergence_whatever_the_kind(claim: Claim) -> None:
    records = [a_record(claim), a_record(claim, rep=2, candidate=diverging(5))]
    verdict = judged(claim, records)
    said(
        verdict,
        "FAIL",
        "2,048 synthetic: diverged at r2: token 5 is 999, the reference wrote 105",
        held=False,
    )
    assert verdict.command == records[1].replay, "the command that replays the pair that failed"
    assert verdict.cells[0].decision is None and verdict.cells[0].description is None, (
        "no number beside a FAIL"
    )


@pytest.mark.parametrize(
    ("change", "level", "sentence"),
    [
        ({"ids": (100, 101)}, "tokens", "the candidate ended at token 2, the other went on"),
        ({"ids": tuple(range(100, 120))}, "tokens", "the reference ended at token 16, the other went on"),
        ({"stop": "eos"}, "tokens", "the same tokens, another stop reason"),
        ({"predicted": 17}, "tokens", "the same tokens, another count"),
        ({"text": "zzz"}, "text", "byte 0 of the text differs"),
    ],
)
def test_each_kind_of_divergence_has_its_words(change: dict[str, Any], level: str, sentence: str) -> None:
    claim = a_claim("x", kind="exact", exactness=level)
    record = a_record(claim, candidate=a_transcript(**change), reference=a_transcript(predicted=16))
    assert judged(claim, [record]).cells[0].sentence == f"diverged at r1: {sentence}"


def drafted(claim: Claim, accepted: int, *, theirs: bool = False) -> list[PairRecord]:
    ours = a_transcript(rate=41.0, drafted=100, accepted=accepted)
    other = a_transcript(rate=40.0, drafted=100, accepted=99) if theirs else a_transcript(rate=40.0)
    reps = range(1, 3 if claim.kind == "exact" else 7)
    return [a_record(claim, None, rep, candidate=ours, reference=other) for rep in reps]


@pytest.mark.parametrize("kind", ["parity", "exact", "reported"])
def test_fail_by_a_floor_that_is_broken(kind: str) -> None:
    claim = a_claim(kind=kind, floors={"acceptance": 0.95})
    verdict = judged(claim, drafted(claim, 94, theirs=True))
    said(verdict, "FAIL", "2,048 synthetic: floor acceptance >= 0.95 broken in r1: 0.94", held=False)
    assert judged(claim, drafted(claim, 95, theirs=True)).held


def test_a_floor_is_the_candidates_alone() -> None:
    claim = a_claim(floors={"acceptance": 0.95})
    assert judged(claim, drafted(claim, 96)).word == "PASS", "the reference does not draft"
    assert judged(claim, drafted(claim, 94)).word == "FAIL"


def test_a_floor_on_a_time_or_a_size_is_a_ceiling() -> None:
    claim = a_claim(floors={"ttft_s": 0.4})
    verdict = judged(claim, pairs(claim, ABOVE))
    assert (verdict.word, verdict.cells[0].sentence) == ("FAIL", "floor ttft_s <= 0.4 broken in r1: 0.5")
    assert (
        judged(a_claim(floors={"ttft_s": 0.6}), pairs(a_claim(floors={"ttft_s": 0.6}), ABOVE)).word == "PASS"
    )


def test_a_floor_that_cannot_be_looked_at_is_not_broken_and_does_not_hold() -> None:
    claim = a_claim(floors={"acceptance": 0.95})
    verdict = judged(claim, pairs(claim, ABOVE))
    said(
        verdict,
        "INCOMPLETE",
        "2,048 synthetic: floor acceptance >= 0.95: acceptance is unknown in r1",
        held=False,
    )


# --- INCOMPLETE ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rep", range(1, 7))
def test_incomplete_by_a_missing_rep(rep: int) -> None:
    records = [r for r in pairs(CLAIM, ABOVE) if r.rep != rep]
    said(judged(CLAIM, records), "INCOMPLETE", f"2,048 synthetic: not measured: r{rep}", held=False)


def test_nothing_measured_is_incomplete() -> None:
    said(judged(EXACT, []), "INCOMPLETE", "2,048 synthetic: not measured: r1, r2", held=False)


@pytest.mark.parametrize("outcome", ["void", "broken"])
@pytest.mark.parametrize("claim", [CLAIM, EXACT])
def test_incomplete_by_a_pair_that_did_not_pass(claim: Claim, outcome: str) -> None:
    records = [a_record(claim, None, rep) for rep in range(1, CELL.pairs if claim is CLAIM else 2)]
    records.append(unmeasured(claim, None, len(records) + 1, outcome, "cached"))
    last = len(records)
    said(
        judged(claim, records),
        "INCOMPLETE",
        f"2,048 synthetic: r{last} is {outcome}: because of cached",
        held=False,
    )


def test_incomplete_by_a_figure_that_is_unknown() -> None:
    claim = a_claim(metric="acceptance")
    records = pairs(claim, ABOVE)
    said(
        judged(claim, records),
        "INCOMPLETE",
        "2,048 synthetic: acceptance is unknown in 6 of 6 pairs",
        held=False,
    )


@pytest.mark.parametrize("digest", ["candidate_digest", "reference_digest", "code_digest"])
def test_pairs_of_different_engines_or_code_are_never_put_together(digest: str) -> None:
    records = pairs(CLAIM, ABOVE)
    records[3] = replace(records[3], **{digest: "sha256:other"})  # type: ignore[arg-type]
    said(
        judged(CLAIM, records),
        "INCOMPLETE",
        "2,048 synthetic: pairs of different engines or code are never put together",
        held=False,
    )


@pytest.mark.parametrize("role", ["candidate", "reference"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_pairs_of_different_builds_are_never_put_together(role: str, part: int) -> None:
    records = pairs(CLAIM, ABOVE)
    side = getattr(records[3], role)
    build = tuple("other" if at == part else known for at, known in enumerate(side.build))
    records[3] = replace(records[3], **{role: replace(side, build=build)})
    assert judged(CLAIM, records).sentence == (
        "2,048 synthetic: pairs of different engines or code are never put together"
    )


def test_another_lane_than_the_claims_proves_nothing_of_the_claim() -> None:
    other = a_claim("decode", lane="fast")
    records = [replace(record, claim_digest=CLAIM.digest) for record in pairs(other, ABOVE)]
    said(
        judged(CLAIM, records),
        "INCOMPLETE",
        "2,048 synthetic: other engines or lanes were measured than the claim names: ours/fast against theirs/fast",
        held=False,
    )


def test_a_divergence_on_another_lane_than_the_claims_is_no_failure_of_the_claim() -> None:
    """Nor can it meet an expected FAIL: it says nothing of the lanes that the claim names."""
    reason = {"verdict": "FAIL", "because": "the draft is lighter"}
    claim = a_claim("tokens", kind="exact", expected=[reason])
    other = a_claim("tokens", kind="exact", lane="fast")
    record = replace(a_record(other, None, candidate=diverging()), claim_digest=claim.digest)
    assert record.outcome == "diverged"
    said(
        judged(claim, [record]),
        "INCOMPLETE",
        "2,048 synthetic: other engines or lanes were measured than the claim names: ours/fast against theirs/fast",
        held=False,
    )


def test_ratios_never_cross_sessions() -> None:
    mixed = pairs(CLAIM, ABOVE)
    mixed[3] = replace(mixed[3], session="another")
    twice = [*pairs(CLAIM, ABOVE), *pairs(CLAIM, BELOW)]
    claim = a_claim(pairs="6+6")
    two_looks = [*pairs(claim, ASTRIDE), *pairs(claim, ABOVE)]
    for whose, records in ((CLAIM, mixed), (CLAIM, twice), (claim, two_looks)):
        said(
            judged(whose, records),
            "INCOMPLETE",
            "2,048 synthetic: pairs of several sessions are never put together",
            held=False,
        )


def test_a_record_that_proves_less_than_the_claim_asks_does_not_count() -> None:
    claim = a_claim("tokens", kind="exact", minimum_tokens=17)
    verdict = judged(claim, [a_record(claim, None, rep) for rep in (1, 2)])
    said(
        verdict,
        "INCOMPLETE",
        "2,048 synthetic: r1 proves 16 tokens at level 'tokens', less than the claim asks",
        held=False,
    )
    by_text = a_claim("tokens", kind="exact", exactness="text")
    swapped = [replace(a_record(by_text, None, rep), claim_digest=EXACT.digest) for rep in (1, 2)]
    assert judged(EXACT, swapped).word == "INCOMPLETE"


MATRIX = a_claim(depths=[2048, 8192], fixtures=["synthetic", "natural-prose"])


def matrix(claim: Claim, *rows: tuple[float, ...]) -> list[PairRecord]:
    cells = declared_cells(claim)
    return [record for cell, ratios in zip(cells, rows, strict=True) for record in pairs(claim, ratios, cell)]


def test_a_filter_makes_a_claim_incomplete_and_what_was_asked_still_holds() -> None:
    first = declared_cells(MATRIX)[0]
    verdict = judged(MATRIX, pairs(MATRIX, ABOVE, first), asked=asked(MATRIX, first))
    said(verdict, "INCOMPLETE", "3 of 4 declared cells were not asked for", held=True)
    assert words(verdict) == ["PASS", "INCOMPLETE", "INCOMPLETE", "INCOMPLETE"]
    assert [cell.asked for cell in verdict.cells] == [True, False, False, False]
    assert verdict.minimum_lower is None
    assert verdict.command == "pytest -m parity --claims decode"


def test_a_filter_does_not_hide_what_was_asked_and_did_not_hold() -> None:
    first = declared_cells(MATRIX)[0]
    verdict = judged(MATRIX, pairs(MATRIX, BELOW, first), asked=asked(MATRIX, first))
    assert (verdict.word, verdict.held) == ("INCOMPLETE", False)


def test_nothing_asked_holds_nothing() -> None:
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE), asked={})
    said(verdict, "INCOMPLETE", "1 of 1 declared cells were not asked for", held=False)


def test_want_of_the_lease_is_said_and_marked() -> None:
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE)[:4], lease_lost=frozenset({CELL}))
    said(verdict, "INCOMPLETE", "2,048 synthetic: the lease was not to be had: r5, r6", held=False)
    assert verdict.cells[0].for_want_of_lease
    assert not judged(CLAIM, pairs(CLAIM, ABOVE)[:4]).cells[0].for_want_of_lease


# --- diagnostic runs -------------------------------------------------------------------------------------

PERFORMANCE_WORDS = {"PASS", "MISS", "UNRESOLVED", "INVALID", "PASS(point)", "RECORDED"}


@pytest.mark.parametrize("ratios", [ABOVE, BELOW, ASTRIDE])
@pytest.mark.parametrize("taken", [1, 2, 5, 6, 12])
@pytest.mark.parametrize("kind", ["parity", "exact", "reported"])
def test_another_plan_than_declared_has_no_word_on_speed(
    kind: str, taken: int, ratios: tuple[float, ...]
) -> None:
    claim = a_claim(kind=kind)
    records = pairs(claim, (ratios * 2)[:taken])
    cell = declared_cells(claim)[0]
    verdict = judged(
        claim, records, other_plan=frozenset({cell}), asked={cell: frozenset(range(1, taken + 1))}
    )
    assert verdict.word == "INCOMPLETE" and not set(words(verdict)) & PERFORMANCE_WORDS
    assert verdict.cells[0].diagnostic and verdict.held, "exactness alone decides"
    assert verdict.cells[0].decision is None and verdict.minimum_lower is None


@pytest.mark.parametrize("reps", [{1}, {2, 3}, {1, 2, 3, 4, 5}])
def test_fewer_pairs_than_declared_have_no_word_on_speed(reps: set[int]) -> None:
    records = [r for r in pairs(CLAIM, ABOVE) if r.rep in reps]
    verdict = judged(CLAIM, records, asked={CELL: frozenset(reps)})
    assert verdict.cells[0].diagnostic and verdict.held
    count = f"{len(reps)} pair{'s' * (len(reps) > 1)}"
    said(
        verdict,
        "INCOMPLETE",
        f"2,048 synthetic: diagnostic: {count} of another plan than '6'; exact in each, and no verdict on speed exists",
        held=True,
    )


def test_a_diagnostic_run_fails_on_a_divergence_and_on_a_missing_pair() -> None:
    two = {CELL: frozenset({1, 2})}
    apart = [a_record(CLAIM), a_record(CLAIM, rep=2, candidate=diverging())]
    assert (judged(CLAIM, apart, asked=two).word, judged(CLAIM, apart, asked=two).held) == ("FAIL", False)
    assert not judged(CLAIM, [a_record(CLAIM)], asked=two).held
    late = {declared_cells(TWICE)[0]: frozenset({3, 7})}
    assert not judged(TWICE, pairs(TWICE, ABOVE)[2:3], asked=late).held, "r7 was asked for and is not there"


@pytest.mark.parametrize("word", ["MISS", "UNRESOLVED", "PASS"])
def test_a_diagnostic_run_is_not_held_against_an_expected_word_on_speed(word: str) -> None:
    claim = a_claim(expected=[{"verdict": word, "because": BECAUSE}])
    verdict = judged(claim, [a_record(claim)], asked={CELL: frozenset({1})})
    assert verdict.held and verdict.cells[0].expected is None and not verdict.expected_met


def test_a_diagnostic_run_is_held_against_an_expected_divergence() -> None:
    claim = a_claim(expected=[{"verdict": "FAIL", "because": BECAUSE}])
    assert not judged(claim, [a_record(claim)], asked={CELL: frozenset({1})}).held, "better than expected"
    verdict = judged(claim, [a_record(claim, candidate=diverging())], asked={CELL: frozenset({1})})
    assert verdict.held and verdict.expected_met


# --- UNSUPPORTED, STALE, refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "word"),
    [("unsupported", "UNSUPPORTED"), ("pin", "STALE"), ("context", "INCOMPLETE"), ("foreign", "INCOMPLETE")],
)
def test_what_was_refused_says_why(code: str, word: str) -> None:
    records = [unmeasured(CLAIM, None, rep, "refused", code) for rep in range(1, 7)]
    said(judged(CLAIM, records), word, f"2,048 synthetic: because of {code}", held=False)


def test_stale_by_an_edited_claim() -> None:
    edited = a_claim(margin=0.02)
    verdict = judged(edited, pairs(CLAIM, ABOVE))
    said(verdict, "STALE", "2,048 synthetic: the claim was edited after it was measured", held=False)
    approved = a_claim(review="approved")
    assert judged(approved, pairs(CLAIM, ABOVE)).word == "PASS", "approving a wording is no edit"


def test_stale_by_an_expired_pin() -> None:
    verdict = judged(CLAIM, pairs(CLAIM, ABOVE), stale="the pin of theirs expired on 2025-01-01")
    said(verdict, "STALE", "2,048 synthetic: the pin of theirs expired on 2025-01-01", held=False)


# --- RECORDED and points -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ratios", [ABOVE, BELOW])
def test_reported_claims_are_recorded_whatever_they_read(ratios: tuple[float, ...]) -> None:
    claim = a_claim(kind="reported")
    verdict = judged(claim, pairs(claim, ratios), {})
    said(verdict, "RECORDED", "recorded as context; it satisfies no claim", held=True)
    middle = (ratios[2] * ratios[3]) ** 0.5
    assert verdict.cells[0].sentence == f"median pair {middle:.4f}; recorded, never a pass"
    assert verdict.minimum_lower is None


def a_point(threshold: float, statistic: str = "minimum-of-pairs", plan: str = "6") -> Claim:
    return a_claim(kind="point", threshold=threshold, statistic=statistic, pairs=plan)


@pytest.mark.parametrize(
    ("statistic", "value"),
    [
        ("ratio-of-medians", 1.0225),
        ("ratio-of-means", 1.0225),
        ("median-of-pairs", 1.0225),
        ("minimum-of-pairs", 1.02),
    ],
)
def test_a_point_passes_or_misses_by_its_own_statistic(statistic: str, value: float) -> None:
    claim = a_point(value - 0.0001, statistic)
    verdict = judged(claim, pairs(claim, ABOVE))
    said(verdict, "PASS(point)", "every declared cell, by a point statistic without error bounds", held=True)
    claim = a_point(value + 0.0001, statistic)
    verdict = judged(claim, pairs(claim, ABOVE))
    assert (verdict.word, verdict.held) == ("MISS", False)
    assert verdict.cells[0].sentence == (
        f"{statistic} {value:.4f} < {value + 0.0001:g}: a point, without error bounds"
    )


@pytest.mark.parametrize(
    "statistic", ["ratio-of-medians", "ratio-of-means", "median-of-pairs", "minimum-of-pairs"]
)
def test_a_point_that_is_just_reached_is_reached(statistic: str) -> None:
    claim = a_point(1.0, statistic)
    assert judged(claim, pairs(claim, (1.0,) * 6)).word == "PASS(point)"


def test_a_point_needs_a_clean_control_as_well() -> None:
    claim = a_point(1.0)
    assert judged(claim, pairs(claim, ABOVE), {}).word == "UNRESOLVED"
    assert (
        judged(claim, pairs(claim, ABOVE), controls(claim, (1.1, 1.2, 1.1, 1.2, 1.1, 1.2))).word == "INVALID"
    )


@pytest.mark.parametrize("kind", ["point", "reported"])
def test_what_has_no_stopping_rule_needs_all_its_pairs(kind: str) -> None:
    claim = a_point(1.0, plan="6+6") if kind == "point" else a_claim(kind="reported", pairs="6+6")
    half = pairs(claim, ABOVE)
    assert second_look_needed(claim, declared_cells(claim)[0], half, controls(claim)["theirs/plain"])
    verdict = judged(claim, half)
    said(verdict, "INCOMPLETE", "2,048 synthetic: not measured: r7, r8, r9, r10, r11, r12", held=False)
    assert judged(claim, pairs(claim, ABOVE * 2)).held


# --- speculative lanes -------------------------------------------------------------------------------------


def test_a_speculative_lane_on_synthetic_text_alone_certifies_nothing() -> None:
    claim = a_claim("spec", kind="exact", minimum_tokens=16)
    records = [a_record(claim, None, rep) for rep in (1, 2)]
    verdict = judged(claim, records, speculative=True)
    said(
        verdict,
        "INCOMPLETE",
        "a speculative lane needs a natural fixture class as well: synthetic alone certified a broken one (T07)",
        held=False,
    )
    assert judged(claim, records).word == "PASS"


def test_a_speculative_lane_needs_a_stated_length() -> None:
    for minimum, word in ((1, "INCOMPLETE"), (16, "PASS")):
        claim = a_claim("spec", kind="exact", fixtures=["synthetic", "natural-prose"], minimum_tokens=minimum)
        records = [a_record(claim, cell, rep) for cell in declared_cells(claim) for rep in (1, 2)]
        verdict = judged(claim, records, speculative=True)
        assert (verdict.word, verdict.held) == (word, word == "PASS")
        if word != "PASS":
            assert verdict.sentence == (
                "a speculative lane needs a stated minimum_tokens: a short output hides its faults (T16)"
            )


# --- two looks ---------------------------------------------------------------------------------------------

TWICE = a_claim(pairs="6+6")
TWICE_CELL = declared_cells(TWICE)[0]
UNDECIDED = (1.020, 0.985, 1.021, 0.986, 1.022, 1.023)


def looks(first: tuple[float, ...], *second: float, claim: Claim = TWICE) -> tuple[ClaimVerdict, bool]:
    records = pairs(claim, (*first, *second))
    control = controls(claim)
    return judged(claim, records, control), second_look_needed(
        claim, TWICE_CELL, records[:6], control["theirs/plain"]
    )


@pytest.mark.parametrize(("first", "word"), [(ABOVE, "PASS"), (BELOW, "MISS")])
def test_a_first_look_that_decides_needs_no_second(first: tuple[float, ...], word: str) -> None:
    verdict, needed = looks(first)
    assert (verdict.word, needed) == (word, False)
    assert verdict.cells[0].notes == ("look 2 not needed",)
    assert not verdict.cells[0].diagnostic


def test_a_second_look_that_was_not_needed_changes_nothing() -> None:
    verdict, _ = looks(ABOVE, *BELOW)
    assert (verdict.word, verdict.cells[0].sentence) == ("PASS", "exact lower bound 1.0200 >= 0.9900")


def test_a_second_look_that_is_needed_and_missing() -> None:
    claim = a_claim(kind="at-least", threshold=0.99, pairs="6+6")
    for taken in (6, 7, 11):
        records = pairs(claim, (*UNDECIDED, *ABOVE)[:taken])
        verdict = judged(claim, records)
        assert (verdict.word, verdict.held) == ("INCOMPLETE", False)
    assert second_look_needed(claim, TWICE_CELL, records[:6], controls(claim)["theirs/plain"])
    said(
        judged(claim, records[:6]),
        "INCOMPLETE",
        "2,048 synthetic: look 1 did not decide, and look 2 was not measured in full",
        held=False,
    )


def test_a_second_look_that_is_needed_decides() -> None:
    claim = a_claim(kind="at-least", threshold=0.99, pairs="6+6")
    verdict, needed = looks(UNDECIDED, *ABOVE, claim=claim)
    assert (verdict.word, needed) == ("PASS", True)
    assert verdict.cells[0].notes == ("stall suspected, kept: r2, r4",)
    assert verdict.cells[0].decision is not None and verdict.cells[0].decision.look == 2
    verdict, _ = looks(ASTRIDE, *ASTRIDE, claim=claim)
    assert verdict.word == "UNRESOLVED"


def test_what_look_one_decided_later_pairs_do_not_undo() -> None:
    swaying = (1.020, 1.034, 1.020, 1.034, 1.020, 1.034)
    verdict, needed = looks(swaying, *(0.93, 0.916) * 3)
    assert not needed
    decision = verdict.cells[0].decision
    assert decision is not None and (decision.look, decision.pairs_used, decision.pairs_given) == (1, 6, 12)
    assert verdict.word == "PASS" and decision.undeclared_continuation


def test_unknown_counts_as_a_second_look_that_is_needed() -> None:
    control = controls(TWICE)["theirs/plain"]
    assert second_look_needed(TWICE, TWICE_CELL, pairs(TWICE, ABOVE)[:5], control)
    assert second_look_needed(TWICE, TWICE_CELL, pairs(TWICE, ABOVE), ControlResult(None, "none was planned"))
    assert second_look_needed(EXACT, TWICE_CELL, [], control)


def test_an_invalid_session_needs_no_second_look() -> None:
    bad = controls(TWICE, (1.1, 1.2, 1.1, 1.2, 1.1, 1.2))["theirs/plain"]
    assert not second_look_needed(TWICE, TWICE_CELL, pairs(TWICE, ABOVE), bad)


# --- several cells -----------------------------------------------------------------------------------------


def test_a_matrix_passes_when_every_cell_does_and_claims_its_least_bound() -> None:
    verdict = judged(MATRIX, matrix(MATRIX, ABOVE, ABOVE, tuple(r + 0.01 for r in ABOVE), (0.995,) * 6))
    assert verdict.word == "PASS"
    assert verdict.minimum_lower == pytest.approx(0.995, abs=1e-6)


def test_a_matrix_misses_only_at_the_level_that_all_cells_ask() -> None:
    two = a_claim(depths=[2048, 8192])
    verdict = judged(two, matrix(two, ABOVE, BELOW))
    said(verdict, "MISS", "8,192 synthetic: exact upper bound 0.9040 < 0.9900", held=False)
    many = a_claim(depths=[1, 2, 3, 4])
    verdict = judged(many, matrix(many, ABOVE, ABOVE, ABOVE, BELOW))
    assert words(verdict) == ["PASS", "PASS", "PASS", "MISS"]
    said(
        verdict,
        "UNRESOLVED",
        "4 synthetic: exact upper bound 0.9040 < 0.9900 (below the threshold in its own cell, not at the level "
        "that all cells together ask)",
        held=False,
    )


def test_a_matrix_names_the_cell_that_misses_firmly() -> None:
    claim = a_claim(kind="at-least", threshold=0.99, depths=[1, 2, 3, 4], pairs="6+6")
    ranks = (12, -1, -2, -4, -5, -6, 3, -7, -8, -9, -10, -11)
    barely = tuple(0.99 * math.exp(rank / 1000) for rank in ranks)  # 15 is all that look 2 forgives
    firmly = (0.991, *[0.9] * 11)
    assert words(judged(claim, matrix(claim, ABOVE, barely, ABOVE, ABOVE)))[1] == "MISS"
    assert judged(claim, matrix(claim, ABOVE, barely, ABOVE, ABOVE)).word == "UNRESOLVED"
    verdict = judged(claim, matrix(claim, ABOVE, barely, firmly, ABOVE))
    assert words(verdict) == ["PASS", "MISS", "MISS", "PASS"]
    assert verdict.word == "MISS" and verdict.sentence.startswith("3 synthetic: exact upper bound 0.9")


def test_an_unresolved_matrix_names_every_open_cell() -> None:
    claim = a_claim(kind="at-least", threshold=0.985, depths=[1, 2, 3])
    verdict = judged(claim, matrix(claim, ASTRIDE, ABOVE, ASTRIDE))
    assert verdict.sentence == (
        "1 synthetic: bounds [0.9750, 1.0050] straddle 0.9850; about 75 pairs would settle it; open as well: 3 synthetic"
    )


@pytest.mark.parametrize(
    ("worse", "word"),
    [("diverged", "FAIL"), ("unsupported", "UNSUPPORTED"), ("pin", "STALE"), ("broken", "INCOMPLETE")],
)
def test_the_gravest_cell_gives_the_claim_its_word(worse: str, word: str) -> None:
    two = a_claim(depths=[2048, 8192])
    first, second = declared_cells(two)
    bad = {
        "diverged": lambda: a_record(two, second, candidate=diverging()),
        "unsupported": lambda: unmeasured(two, second, 1, "refused", "unsupported"),
        "pin": lambda: unmeasured(two, second, 1, "refused", "pin"),
        "broken": lambda: unmeasured(two, second, 1, "broken", "engine-died"),
    }[worse]()
    verdict = judged(two, [*pairs(two, BELOW, first), bad])
    assert (verdict.word, verdict.held) == (word, False)
    assert verdict.sentence.startswith("8,192 synthetic: ")


def test_a_divergence_is_graver_than_an_invalid_session() -> None:
    two = a_claim(depths=[2048, 8192])
    first, second = declared_cells(two)
    records = [*pairs(two, ABOVE, first), a_record(two, second, candidate=diverging())]
    verdict = judged(two, records, controls(two, (1.1, 1.2, 1.1, 1.2, 1.1, 1.2)))
    assert (words(verdict), verdict.word) == (["INVALID", "FAIL"], "FAIL")


def test_records_of_other_claims_and_of_controls_are_not_mine() -> None:
    other = a_claim("other")
    stray = [*pairs(other, BELOW), *control_pairs(CLAIM), *pairs(MATRIX, BELOW, declared_cells(MATRIX)[3])]
    assert judged(CLAIM, [*stray, *pairs(CLAIM, ABOVE)]).word == "PASS"


# --- what is expected --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "records", "word", "held"),
    [
        ("MISS", BELOW, "MISS", True),
        ("MISS", ABOVE, "PASS", False),
        ("UNRESOLVED", BELOW, "MISS", False),
        ("PASS", ABOVE, "PASS", True),
        ("FAIL", ABOVE, "PASS", False),
    ],
)
def test_an_expectation_is_met_or_the_cell_does_not_hold(
    expected: str, records: tuple[float, ...], word: str, held: bool
) -> None:
    claim = a_claim(expected=[{"verdict": expected, "because": BECAUSE}])
    verdict = judged(claim, pairs(claim, records))
    assert (verdict.word, verdict.held, verdict.expected_met) == (word, held, held)
    assert verdict.cells[0].expected is not None and verdict.cells[0].expected.because == BECAUSE


def test_an_expected_divergence_is_met_by_its_first_pair() -> None:
    claim = a_claim("tokens", kind="exact", expected=[{"verdict": "FAIL", "because": BECAUSE}])
    verdict = judged(claim, [a_record(claim, candidate=diverging())])
    assert (verdict.word, verdict.held, verdict.expected_met) == ("FAIL", True, True)


def test_an_expectation_of_one_cell_speaks_of_no_other() -> None:
    claim = a_claim(depths=[2048, 8192], expected=[{"verdict": "MISS", "because": BECAUSE, "depth": 8192}])
    verdict = judged(claim, matrix(claim, ABOVE, BELOW))
    assert verdict.held and verdict.word == "MISS" and verdict.expected_met
    assert not judged(claim, matrix(claim, BELOW, BELOW)).held


def test_an_expectation_of_a_cell_that_is_not_asked_is_not_compared() -> None:
    claim = a_claim(depths=[2048, 8192], expected=[{"verdict": "MISS", "because": BECAUSE, "depth": 8192}])
    first = declared_cells(claim)[0]
    verdict = judged(claim, pairs(claim, ABOVE, first), asked=asked(claim, first))
    assert verdict.held and not verdict.expected_met


# --- what must always be so --------------------------------------------------------------------------------

ratios = st.floats(0.9, 1.1)
six = st.lists(ratios, min_size=6, max_size=6).map(tuple)
good = st.lists(st.floats(1.02, 1.03), min_size=6, max_size=6).map(tuple)


@FEWER
@given(good, st.integers(0, 5), st.integers(1, 3))
def test_no_pair_can_be_taken_from_a_pass(row: tuple[float, ...], at: int, cells: int) -> None:
    claim = a_claim(kind="at-least", threshold=1.0, depths=list(range(1, cells + 1)))
    records = matrix(claim, *[row] * cells)
    control = control_pairs(claim)
    assume(judged(claim, records).word == "PASS")
    for number in {at, len(records) - 1}:
        assert judged(claim, records[:number] + records[number + 1 :]).word == "INCOMPLETE"
    short = control_result(control[:at] + control[at + 1 :], "decode_tps")
    assert judged(claim, records, {"theirs/plain": short}).word == "UNRESOLVED"


@FEWER
@given(six, st.sampled_from(["parity", "at-least", "point"]))
def test_no_word_of_praise_without_a_control(row: tuple[float, ...], kind: str) -> None:
    fields: dict[str, Any] = {"threshold": 0.9} if kind != "parity" else {}
    claim = a_claim(kind=kind, **fields, **({"statistic": "ratio-of-means"} if kind == "point" else {}))
    for control in ({}, {"theirs/plain": ControlResult(None, "the control has 5 of 6 pairs")}):
        verdict = judged(claim, pairs(claim, row), control)
        assert verdict.word == "UNRESOLVED" and not verdict.held and verdict.minimum_lower is None


@FEWER
@given(six, six, st.randoms(use_true_random=False))
def test_the_order_in_which_records_are_read_changes_nothing(
    row: tuple[float, ...], other: tuple[float, ...], random: Any
) -> None:
    two = a_claim(depths=[2048, 8192])
    records, control = matrix(two, row, other), control_pairs(two, QUIET)
    mixed, other_control = list(records), list(control)
    random.shuffle(mixed)
    random.shuffle(other_control)
    one = judged(two, records, {"theirs/plain": control_result(control, "decode_tps")})
    assert judged(two, mixed, {"theirs/plain": control_result(other_control, "decode_tps")}) == one


OPPOSITE = {"PASS": "MISS", "MISS": "PASS", "UNRESOLVED": "UNRESOLVED"}


def swapped(claim: Claim, row: tuple[float, ...], cell: Cell | None = None) -> list[PairRecord]:
    return [
        a_record(
            claim, cell, rep, candidate=a_transcript(rate=40.0), reference=a_transcript(rate=40.0 * ratio)
        )
        for rep, ratio in enumerate(row, start=1)
    ]


@FEWER
@given(six, st.floats(0.92, 1.08))
def test_swapping_the_sides_turns_pass_into_miss_at_the_reciprocal_threshold(
    row: tuple[float, ...], threshold: float
) -> None:
    one = a_claim(kind="at-least", threshold=threshold)
    other = a_claim(kind="at-least", threshold=1 / threshold)
    here, there = judged(one, pairs(one, row)), judged(other, swapped(other, row))
    decision = here.cells[0].decision
    assert decision is not None and decision.bounds is not None
    edges = (decision.bounds.lower / threshold, decision.bounds.upper / threshold)
    assume(all(abs(edge - 1) > 1e-9 for edge in edges))
    assert decision.gap_log is not None and decision.floor_log is not None
    assume(abs(abs(decision.gap_log) - decision.floor_log) > 1e-9)
    assert there.word == OPPOSITE[here.word]


@FEWER
@given(st.lists(st.floats(0.9, 1.1), min_size=6, max_size=6).map(tuple))
def test_no_engine_is_at_least_as_fast_both_ways_by_more_than_nothing(row: tuple[float, ...]) -> None:
    claim = a_claim(kind="at-least", threshold=1.0001)
    assert {judged(claim, pairs(claim, row)).word, judged(claim, swapped(claim, row)).word} != {"PASS"}


@FEWER
@given(six, st.sampled_from([0.5, 4.0, 1000.0]))
def test_a_machine_that_is_slower_for_both_gives_the_same_word(row: tuple[float, ...], factor: float) -> None:
    here, there = judged(CLAIM, pairs(CLAIM, row)), judged(CLAIM, pairs(CLAIM, row, level=40.0 * factor))
    one, other = here.cells[0].decision, there.cells[0].decision
    assert one is not None and other is not None and one.bounds is not None and other.bounds is not None
    assert other.bounds.lower == pytest.approx(one.bounds.lower, rel=1e-5)
    near = min(abs(one.bounds.lower - 0.99), abs(one.bounds.upper - 0.99))
    assume(near > 1e-4 and one.gap_log is not None and abs(abs(one.gap_log) - 0.0002) > 1e-4)
    assert there.word == here.word

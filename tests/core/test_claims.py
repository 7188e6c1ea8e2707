"""Rows of the register: what is refused and in which words, the digest, the sentence, the expectation."""

from __future__ import annotations

from typing import Any

import pytest
from factories import UNHURRIED, a_claim
from hypothesis import given
from hypothesis import strategies as st

from pytest_parity.core.claims import KINDS, PLANS, Claim, parse_claim
from pytest_parity.core.metrics import METRICS
from pytest_parity.errors import ConfigurationError

LOOK_UP = "Correct the row; docs/claims.md has every field."
ROW = f"found the row as written. {LOOK_UP}"
ALL_METRICS = ", ".join(METRICS)
FIELDS = (
    "because, candidate, depths, exactness, expected, fixtures, floors, kind, lane, margin, metric, "
    "minimum_tokens, on_divergence, output_tokens, pairs, reference, reference_lane, review, statistic, "
    "threshold, wording"
)
FORM = "^[a-z0-9][a-z0-9-]*$"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "unknown field",
        {"treshold": 1.05},
        f"field 'treshold': expected one of {FIELDS}; found an unknown field. Correct the spelling, or take the field out.",
    ),
    (
        "a field that is the table's name",
        {"name": "other"},
        f"field 'name': expected one of {FIELDS}; found an unknown field. Correct the spelling, or take the field out.",
    ),
    ("missing field", {"candidate": ...}, f"field 'candidate': expected a value; found nothing. {LOOK_UP}"),
    ("missing depths", {"depths": ...}, f"field 'depths': expected a value; found nothing. {LOOK_UP}"),
    ("missing plan", {"pairs": ...}, f"field 'pairs': expected a value; found nothing. {LOOK_UP}"),
    (
        "unknown kind",
        {"kind": "faster"},
        f"field 'kind': expected 'exact', 'parity', 'at-least', 'point' or 'reported'; found 'faster'. {LOOK_UP}",
    ),
    (
        "threshold on parity",
        {"threshold": 1.05},
        f"the row: expected no 'threshold' in a claim of kind 'parity'; {ROW}",
    ),
    (
        "margin on at-least",
        {"kind": "at-least", "threshold": 1.05, "margin": 0.01},
        f"the row: expected no 'margin' in a claim of kind 'at-least'; {ROW}",
    ),
    (
        "parity without margin",
        {"margin": ...},
        f"the row: expected 'margin' in a claim of kind 'parity'; {ROW}",
    ),
    (
        "parity without metric",
        {"metric": ...},
        f"the row: expected 'metric' in a claim of kind 'parity'; {ROW}",
    ),
    (
        "at-least without threshold",
        {"kind": "at-least"},
        f"the row: expected 'threshold' in a claim of kind 'at-least'; {ROW}",
    ),
    (
        "point without statistic",
        {"kind": "point", "threshold": 1.0},
        f"the row: expected 'statistic' in a claim of kind 'point'; {ROW}",
    ),
    (
        "statistic on at-least",
        {"kind": "at-least", "threshold": 1.0, "statistic": "ratio-of-medians"},
        f"the row: expected no 'statistic' in a claim of kind 'at-least'; {ROW}",
    ),
    (
        "unknown statistic",
        {"kind": "point", "threshold": 1.0, "statistic": "best-of-pairs"},
        (
            "field 'statistic': expected 'ratio-of-medians', 'ratio-of-means', 'median-of-pairs' or 'minimum-of-pairs'; "
            f"found 'best-of-pairs'. {LOOK_UP}"
        ),
    ),
    (
        "metric on exact",
        {"kind": "exact", "metric": "wall_s"},
        f"the row: expected no 'metric' in a claim of kind 'exact'; {ROW}",
    ),
    (
        "plan 2 for speed",
        {"pairs": "2"},
        f"the row: expected plan '2' in exact claims only: two pairs decide no claim about speed; {ROW}",
    ),
    (
        "plan 2 for speed at one depth",
        {"depths": [{"depth": 16, "pairs": "2"}]},
        f"the row: expected plan '2' in exact claims only: two pairs decide no claim about speed; {ROW}",
    ),
    (
        "exact with six pairs",
        {"kind": "exact", "pairs": "6"},
        f'the row: expected pairs = "2" in an exact claim: exactness needs no statistics; {ROW}',
    ),
    ("bad plan", {"pairs": "7"}, f"field 'pairs': expected one of 2, 5, 6, 6+6; found '7'. {LOOK_UP}"),
    ("a plan that is a number", {"pairs": 6}, f"field 'pairs': expected a valid string; found 6. {LOOK_UP}"),
    (
        "bad plan at one depth",
        {"depths": [16, {"depth": 32, "pairs": "9"}]},
        f"field 'depths.1.pairs': expected one of 2, 5, 6, 6+6; found '9'. {LOOK_UP}",
    ),
    (
        "duplicate depth",
        {"depths": [16, {"depth": 16}]},
        f"field 'depths': expected each depth once; found ({{'depth': 16}}, {{'depth': 16}}). {LOOK_UP}",
    ),
    (
        "duplicate fixture",
        {"fixtures": ["synthetic", "synthetic"]},
        f"field 'fixtures': expected each fixture class once; found ('synthetic', 'synthetic'). {LOOK_UP}",
    ),
    ("no depth", {"depths": []}, f"field 'depths': expected at least one entry; found (). {LOOK_UP}"),
    ("no fixture", {"fixtures": []}, f"field 'fixtures': expected at least one entry; found (). {LOOK_UP}"),
    ("one depth without its list", {"depths": 16}, f"field 'depths': expected a list; found 16. {LOOK_UP}"),
    (
        "negative depth",
        {"depths": [-16]},
        f"field 'depths.0.depth': expected greater than or equal to 1; found -16. {LOOK_UP}",
    ),
    (
        "bool as depth",
        {"depths": [True]},
        f"field 'depths.0': expected a whole number, or a table with depth; found True. {LOOK_UP}",
    ),
    (
        "text as depth",
        {"depths": [16, "32"]},
        f"field 'depths.1': expected a whole number, or a table with depth; found '32'. {LOOK_UP}",
    ),
    (
        "bool in a depth's table",
        {"depths": [{"depth": True}]},
        f"field 'depths.0.depth': expected a valid integer; found True. {LOOK_UP}",
    ),
    (
        "unknown field of a depth",
        {"depths": [{"depth": 16, "reps": 3}]},
        (
            "field 'depths.0.reps': expected one of depth, output_tokens, pairs; found an unknown field. "
            "Correct the spelling, or take the field out."
        ),
    ),
    (
        "unknown metric",
        {"metric": "tps"},
        f"the row: expected metrics of the metrics table ({ALL_METRICS}), not 'tps'; {ROW}",
    ),
    (
        "floor on an unknown metric",
        {"floors": {"tps": 3}},
        f"the row: expected metrics of the metrics table ({ALL_METRICS}), not 'tps'; {ROW}",
    ),
    (
        "a floor of nan",
        {"floors": {"acceptance": float("nan")}},
        f"field 'floors.acceptance': expected a finite number; found nan. {LOOK_UP}",
    ),
    (
        "an infinite threshold",
        {"kind": "at-least", "threshold": float("inf")},
        f"field 'threshold': expected a finite number; found inf. {LOOK_UP}",
    ),
    (
        "a margin of nan",
        {"margin": float("nan")},
        f"field 'margin': expected a finite number; found nan. {LOOK_UP}",
    ),
    ("a margin of one", {"margin": 1}, f"field 'margin': expected less than 1; found 1.0. {LOOK_UP}"),
    (
        "a margin as text",
        {"margin": "1 %"},
        f"field 'margin': expected a valid number; found '1 %'. {LOOK_UP}",
    ),
    (
        "exact without exactness",
        {"kind": "exact", "exactness": "none", "because": "it is only context here"},
        f"the row: expected an exactness level other than 'none' in a claim of kind 'exact'; {ROW}",
    ),
    (
        "exactness none without a reason",
        {"kind": "reported", "exactness": "none"},
        (
            'the row: expected because = "…" and kind = "reported" beside exactness \'none\': such numbers satisfy '
            f"no claim; {ROW}"
        ),
    ),
    (
        "exactness none in a claim about speed",
        {"exactness": "none", "because": "it is only context here"},
        (
            'the row: expected because = "…" and kind = "reported" beside exactness \'none\': such numbers satisfy '
            f"no claim; {ROW}"
        ),
    ),
    (
        "an unknown level",
        {"exactness": "rows"},
        f"field 'exactness': expected 'tokens', 'text' or 'none'; found 'rows'. {LOOK_UP}",
    ),
    (
        "an unknown blank",
        {"wording": "At {depth}, {candidate} won."},
        (
            "the row: expected blanks in the wording that this row can fill (candidate, depths, fixtures, lane, margin, "
            f"output_tokens, reference), not {{depth}}; {ROW}"
        ),
    ),
    (
        "a blank without a name",
        {"wording": "At {}."},
        (
            "the row: expected blanks in the wording that this row can fill (candidate, depths, fixtures, lane, margin, "
            f"output_tokens, reference), not {{}}; {ROW}"
        ),
    ),
    (
        "a blank that the row has no value for",
        {"kind": "at-least", "threshold": 1.05, "wording": "Within {margin}."},
        (
            "the row: expected blanks in the wording that this row can fill (candidate, depths, fixtures, lane, "
            f"output_tokens, reference, threshold), not {{margin}}; {ROW}"
        ),
    ),
    (
        "a blank with a format",
        {"wording": "Within {margin:.2f}."},
        (
            "the row: expected plain blanks such as {depths} in the wording: Unknown format code 'f' for object of "
            f"type 'str'; {ROW}"
        ),
    ),
    (
        "a blank within a blank",
        {"wording": "At {depths:>{width}}."},
        f"the row: expected plain blanks such as {{depths}} in the wording: 'width'; {ROW}",
    ),
    (
        "an open brace",
        {"wording": "At {depths"},
        f"the row: expected plain blanks such as {{depths}} in the wording: expected '}}' before end of string; {ROW}",
    ),
    (
        "an empty wording",
        {"wording": ""},
        f"field 'wording': expected at least 1 character; found ''. {LOOK_UP}",
    ),
    (
        "expected as text",
        {"expected": "FAIL"},
        (
            "field 'expected': expected a list such as [{verdict = \"FAIL\", because = \"one sentence\"}]; found 'FAIL'. "
            "Say why it is expected."
        ),
    ),
    (
        "expected without a reason",
        {"expected": [{"verdict": "FAIL"}]},
        f"field 'expected.0.because': expected a value; found nothing. {LOOK_UP}",
    ),
    (
        "expected with a reason that says nothing",
        {"expected": [{"verdict": "FAIL", "because": "known"}]},
        f"field 'expected.0.because': expected at least 12 characters; found 'known'. {LOOK_UP}",
    ),
    (
        "an unknown verdict",
        {"expected": [{"verdict": "SLOW", "because": "the draft is lighter"}]},
        (
            "field 'expected.0.verdict': expected 'PASS', 'MISS', 'UNRESOLVED', 'FAIL', 'UNSUPPORTED', 'RECORDED' "
            f"or 'PASS(point)'; found 'SLOW'. {LOOK_UP}"
        ),
    ),
    (
        "an unknown field of an expectation",
        {"expected": [{"verdict": "FAIL", "because": "the draft is lighter", "depht": 16}]},
        (
            "field 'expected.0.depht': expected one of because, depth, fixture, verdict; found an unknown field. "
            "Correct the spelling, or take the field out."
        ),
    ),
    (
        "expected without its list",
        {"expected": {"verdict": "FAIL"}},
        f"field 'expected': expected a list; found {{'verdict': 'FAIL'}}. {LOOK_UP}",
    ),
    (
        "no tokens at all",
        {"minimum_tokens": 0},
        f"field 'minimum_tokens': expected greater than or equal to 1; found 0. {LOOK_UP}",
    ),
    (
        "a lane that cannot be a file name",
        {"lane": "fast/er"},
        f"field 'lane': expected a name of the form ^[A-Za-z0-9][A-Za-z0-9._-]*$; found 'fast/er'. {LOOK_UP}",
    ),
]


@pytest.mark.parametrize(
    ("change", "text"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_a_row_that_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        a_claim(**change)
    assert str(caught.value) == f"claim 'decode', {text}"


def test_an_unknown_fixture_class_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        a_claim(fixtures=["synthetic", "prose"])
    assert str(caught.value) == (
        "claim 'decode': fixture class 'prose': expected synthetic, natural-prose, natural-code, file:PATH.txt or "
        "file:PATH.json; found 'prose'. Correct the name."
    )


@pytest.mark.parametrize("name", ["Decode", "-decode", "a_b", "a b", "", "ü"])
def test_a_name_that_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        a_claim(name)
    assert (
        str(caught.value)
        == f"claim {name!r}, field 'name': expected a name of the form {FORM}; found {name!r}. {LOOK_UP}"
    )


def test_a_name_that_is_too_long() -> None:
    assert a_claim("a" * 80).name == "a" * 80
    with pytest.raises(ConfigurationError, match="expected at most 80 characters; found 'aaa"):
        a_claim("a" * 81)


@pytest.mark.parametrize("row", ["x", 3, None, [1], True])
def test_a_row_that_is_no_table(row: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_claim("x", row)
    assert str(caught.value) == f"claim 'x': expected a table of fields; found {row!r}. Write [claims.x]."


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)


@UNHURRIED
@given(st.dictionaries(st.sampled_from(sorted(Claim.model_fields)), values))
def test_whatever_toml_holds_is_a_claim_or_a_readable_error(change: dict[str, Any]) -> None:
    try:
        claim = a_claim("decode", **change)
    except ConfigurationError as error:
        assert str(error).startswith("claim 'decode'")
    else:
        assert claim.digest and claim.sentence() and isinstance(claim, Claim)


# --- defaults and numbers --------------------------------------------------------------------------------


def test_what_a_short_row_means() -> None:
    claim = a_claim(kind="exact")
    assert (claim.pairs, claim.lane, claim.other_lane, claim.exactness) == ("2", "plain", "plain", "tokens")
    assert (claim.minimum_tokens, claim.output_tokens, claim.review, claim.on_divergence) == (
        1,
        256,
        "required",
        "stop",
    )
    assert claim.expected == () and claim.floors == {} and not claim.performance


def test_whole_numbers_may_stand_for_ratios() -> None:
    assert a_claim(kind="at-least", threshold=1, floors={"acceptance": 1}) == a_claim(
        kind="at-least", threshold=1.0, floors={"acceptance": 1.0}
    )
    assert a_claim(depths=[16]) == a_claim(depths=[{"depth": 16}])


@pytest.mark.parametrize(
    ("fields", "bar", "performance"),
    [
        ({"margin": 0.01}, 0.99, True),
        ({"margin": 0}, 1.0, True),
        ({"kind": "at-least", "threshold": 1.05}, 1.05, True),
        ({"kind": "point", "threshold": 1.0, "statistic": "ratio-of-medians"}, 1.0, True),
        ({"kind": "reported"}, None, False),
        ({"kind": "exact"}, None, False),
    ],
)
def test_the_bar_that_a_claim_must_reach(
    fields: dict[str, Any], bar: float | None, performance: bool
) -> None:
    claim = a_claim(**fields)
    assert (claim.bar, claim.performance) == (bar, performance)


def test_every_kind_is_tried_above() -> None:
    assert set(KINDS) == {"exact", "parity", "at-least", "point", "reported"}
    assert list(PLANS) == ["2", "5", "6", "6+6"]


@pytest.mark.parametrize(
    ("fixtures", "natural"),
    [
        (["synthetic"], False),
        (["synthetic", "natural-prose"], True),
        (["natural-code"], True),
        (["file:a.txt"], True),
    ],
)
def test_natural_text_among_the_fixtures(fixtures: list[str], natural: bool) -> None:
    assert a_claim(fixtures=fixtures).has_natural is natural


# --- the digest ------------------------------------------------------------------------------------------

CHANGES: dict[str, dict[str, Any]] = {
    "wording": {"wording": "Another sentence."},
    "candidate": {"candidate": "other"},
    "reference": {"reference": "other"},
    "lane": {"lane": "fast"},
    "reference_lane": {"reference_lane": "fast"},
    "kind": {"kind": "at-least", "threshold": 0.99},
    "metric": {"metric": "prefill_tps"},
    "margin": {"margin": 0.02},
    "threshold": {"kind": "at-least", "threshold": 1.02},
    "statistic": {"kind": "point", "threshold": 0.99, "statistic": "ratio-of-means"},
    "exactness": {"exactness": "text"},
    "because": {"because": "a reason that is given"},
    "minimum_tokens": {"minimum_tokens": 200},
    "depths": {"depths": [4096]},
    "output_tokens of a depth": {"depths": [{"depth": 2048, "output_tokens": 64}]},
    "pairs of a depth": {"depths": [{"depth": 2048, "pairs": "5"}]},
    "fixtures": {"fixtures": ["synthetic", "natural-prose"]},
    "output_tokens": {"output_tokens": 255},
    "pairs": {"pairs": "6+6"},
    "floors": {"floors": {"acceptance": 0.9}},
    "on_divergence": {"on_divergence": "continue"},
}


def test_every_field_of_what_was_claimed_changes_the_digest() -> None:
    digests = {label: a_claim(**change).digest for label, change in CHANGES.items()}
    digests["nothing"] = a_claim().digest
    digests["name"] = a_claim("other").digest
    assert len(set(digests.values())) == len(digests)
    assert {label.split()[0] for label in CHANGES} | {"name", "review", "expected"} == set(Claim.model_fields)


def test_approving_the_wording_or_expecting_what_came_out_changes_no_digest() -> None:
    known = a_claim(expected=[{"verdict": "MISS", "because": "the reference drafts better"}])
    assert known.digest == a_claim(review="approved").digest == a_claim().digest


def test_the_digest_of_a_known_row_never_changes() -> None:
    assert a_claim().digest == "sha256:ac233c3ca948081ec55ea1224e7813e4de0d879e9a10f83bde1aea965f496e32", (
        "evidence of every earlier version binds to this"
    )


# --- the sentence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depths", "text"),
    [([2048], "2,048"), ([2048, 8192], "2,048 and 8,192"), ([16, 2048, 131_008], "16, 2,048 and 131,008")],
)
def test_depths_are_said_as_people_say_them(depths: list[int], text: str) -> None:
    assert a_claim(depths=depths, wording="At {depths}.").sentence() == f"At {text}."


def test_every_blank_is_filled_from_the_row() -> None:
    wording = (
        "{candidate}/{reference} {lane} at {depths} on {fixtures}, {output_tokens} tokens, within {margin}"
    )
    claim = a_claim(
        wording=wording, margin=0.015, fixtures=["synthetic", "natural-code"], lane="fast", output_tokens=64
    )
    assert claim.sentence() == "ours/theirs fast at 2,048 on synthetic, natural-code, 64 tokens, within 1.5 %"
    assert a_claim(kind="at-least", threshold=1.05, wording="{threshold} times").sentence() == "1.05 times"
    assert a_claim(wording="a {{brace}}").sentence() == "a {brace}"


# --- what is expected ------------------------------------------------------------------------------------


def entry(verdict: str, **where: Any) -> dict[str, Any]:
    return {"verdict": verdict, "because": "this much is known", **where}


def test_the_entry_that_names_most_of_a_cell_speaks_for_it() -> None:
    everywhere, deep = entry("UNRESOLVED"), entry("MISS", depth=8192)
    natural, both = (
        entry("UNSUPPORTED", fixture="natural-code"),
        entry("FAIL", depth=8192, fixture="natural-code"),
    )
    for order in ([everywhere, deep, natural, both], [both, natural, deep, everywhere]):
        claim = a_claim(expected=order, depths=[2048, 8192], fixtures=["synthetic", "natural-code"])

        def word(depth: int, fixture: str, claim: Claim = claim) -> str | None:
            found = claim.expectation(depth, fixture)
            return None if found is None else found.verdict

        assert word(2048, "synthetic") == "UNRESOLVED"
        assert word(8192, "synthetic") == "MISS"
        assert word(2048, "natural-code") == "UNSUPPORTED"
        assert word(8192, "natural-code") == "FAIL"


@pytest.mark.parametrize(
    "word", ["PASS", "MISS", "UNRESOLVED", "FAIL", "UNSUPPORTED", "RECORDED", "PASS(point)"]
)
def test_a_word_that_something_measured_gives_may_be_expected(word: str) -> None:
    found = a_claim(expected=[entry(word)]).expectation(2048, "synthetic")
    assert found is not None and found.verdict == word


@pytest.mark.parametrize("word", ["INCOMPLETE", "INVALID", "STALE"])
def test_a_word_for_nothing_measured_may_not_be_expected(word: str) -> None:
    """It would be met without any measurement, and the claim would hold by being left out."""
    with pytest.raises(ConfigurationError, match=rf"field 'expected\.0\.verdict': .*; found '{word}'\. "):
        a_claim(expected=[entry(word)])


def test_a_cell_that_no_entry_names_has_no_expectation() -> None:
    claim = a_claim(
        depths=[2048, 8192],
        fixtures=["synthetic", "natural-code"],
        expected=[entry("MISS", depth=8192), entry("FAIL", fixture="natural-code")],
    )
    assert claim.expectation(2048, "synthetic") is None
    assert a_claim().expectation(2048, "synthetic") is None


def test_expectations_of_cells_that_are_not_declared_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="verdicts of declared cells only in 'expected', not of depth 77"
    ):
        a_claim(expected=[entry("FAIL", depth=77)])


def test_a_minimum_beyond_the_output_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="minimum_tokens of at most the shortest output"):
        a_claim(minimum_tokens=100_000)

"""Exactness: what is equal, what differs and where, and that no time leaves with a divergence."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import IDS, UNHURRIED, a_transcript, diverging
from hypothesis import given
from hypothesis import strategies as st

from pytest_parity.core.exactness import Divergence, Exact, compare, first_difference
from pytest_parity.core.transcript import Clockwork, Event, StopReason, Transcript, Words
from pytest_parity.errors import NothingCompared, Unsupported

ROOT = Path(__file__).parents[2]
few_ids = st.lists(st.integers(0, 3), max_size=40).map(tuple)


def diverged(candidate: Transcript, reference: Transcript, level: str = "tokens") -> Divergence:
    found = compare(candidate, reference, "text" if level == "text" else "tokens")
    assert isinstance(found, Divergence)
    return found


def spoken(ids: tuple[int, ...] | None, text: str = "", stop: StopReason | None = "limit") -> Transcript:
    return Transcript(Words(3, ids, text, stop), Clockwork(0, (Event(1, 1),), 2))


def counted(text: str, predicted: int | None) -> Transcript:
    """A side that gives text only, and its own count of tokens."""
    return Transcript(Words(3, None, text, "limit", predicted=predicted), Clockwork(0, (Event(1, 1),), 2))


# --- against an implementation that cannot be wrong ------------------------------------------------------


def naive(left: tuple[int, ...], right: tuple[int, ...]) -> int | None:
    for index in range(max(len(left), len(right))):
        if left[index : index + 1] != right[index : index + 1]:
            return index
    return None


@UNHURRIED
@given(few_ids, few_ids)
def test_the_first_difference_is_the_one_that_counting_finds(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    assert first_difference(left, right) == naive(left, right)


@UNHURRIED
@given(few_ids.filter(bool), st.data())
def test_one_changed_id_is_found_where_it_is(ids: tuple[int, ...], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    other = (*ids[:at], 9, *ids[at + 1 :])
    found = diverged(spoken(other), spoken(ids))
    assert (found.kind, found.position, found.candidate_id, found.reference_id) == ("token", at, 9, ids[at])
    assert found.near_start == max(0, at - 8)
    assert found.candidate_near == other[max(0, at - 8) : at + 9]
    assert found.reference_near == ids[max(0, at - 8) : at + 9]


@UNHURRIED
@given(few_ids.filter(bool), few_ids.filter(bool), st.integers(1, 45))
def test_exact_only_when_all_ids_are_equal_and_enough(
    left: tuple[int, ...], right: tuple[int, ...], minimum: int
) -> None:
    if left != right:
        assert isinstance(compare(spoken(left), spoken(right), "tokens", minimum_tokens=minimum), Divergence)
    if len(left) < minimum:
        with pytest.raises(NothingCompared):
            compare(spoken(left), spoken(left), "tokens", minimum_tokens=minimum)
    else:
        same = compare(spoken(left), spoken(left), "tokens", minimum_tokens=minimum)
        assert isinstance(same, Exact) and same.tokens == len(left)


# --- every kind of answer --------------------------------------------------------------------------------


def test_equal_sides_keep_words_and_clockwork() -> None:
    ours, theirs = a_transcript(rate=41.0), a_transcript(rate=40.0)
    found = compare(ours, theirs, "tokens")
    assert found == Exact("tokens", 16, ours.clockwork, theirs.clockwork, ours.words, theirs.words)


def test_eight_ids_are_shown_on_each_side_of_the_first_difference() -> None:
    found = diverged(a_transcript((*range(20), 99, *range(21, 40))), a_transcript(range(40)))
    assert (found.near_start, found.candidate_near) == (12, (*range(12, 20), 99, *range(21, 29)))
    assert found.reference_near == tuple(range(12, 29))


def test_a_prefix_differs_where_it_ends() -> None:
    found = diverged(a_transcript(IDS[:10], stop="eos"), a_transcript())
    assert (found.kind, found.position, found.candidate_id, found.reference_id) == ("length", 10, None, 110)
    assert (found.candidate_tokens, found.reference_tokens) == (10, 16)
    other = diverged(a_transcript(), a_transcript(IDS[:10]))
    assert (other.kind, other.position, other.candidate_id, other.reference_id) == ("length", 10, 110, None)


def test_one_silent_side_is_a_divergence_at_the_first_token() -> None:
    found = diverged(a_transcript(()), a_transcript())
    assert (found.kind, found.position, found.candidate_id, found.reference_id) == ("length", 0, None, 100)


def test_equal_tokens_with_another_stop_reason_differ() -> None:
    found = diverged(a_transcript(stop="eos"), a_transcript(stop=None))
    assert (found.kind, found.position, found.candidate_stop, found.reference_stop) == (
        "stop",
        16,
        "eos",
        None,
    )


def test_equal_tokens_counted_differently_differ_unless_one_count_is_unknown() -> None:
    found = diverged(a_transcript(predicted=17), a_transcript(predicted=16))
    assert (found.kind, found.position) == ("count", 16)
    assert isinstance(compare(a_transcript(predicted=None), a_transcript(predicted=16), "tokens"), Exact)


def test_at_level_tokens_the_text_is_not_looked_at() -> None:
    assert isinstance(compare(a_transcript(text="a"), a_transcript(text="b"), "tokens"), Exact)


def test_text_differs_at_a_byte() -> None:
    found = diverged(spoken(None, "naïve"), spoken(None, "naïf"), "text")
    assert (found.level, found.kind, found.position) == ("text", "text", 4)
    assert (found.candidate_id, found.candidate_near, found.near_start) == (None, (), 0)
    assert (found.candidate_tokens, found.reference_tokens) == (None, None), "unknown is None, never 0"


def test_equal_text_with_another_stop_reason_differs() -> None:
    assert diverged(spoken(None, "a", "eos"), spoken(None, "a", "limit"), "text").kind == "stop"


def test_equal_text_with_another_count_of_tokens_differs() -> None:
    """The same bytes in fewer tokens: their rates in tokens per second measure two different things."""
    ours, theirs = counted("naïve", 3), counted("naïve", 4)
    for one, other in ((ours, theirs), (theirs, ours)):
        found = diverged(one, other, "text")
        assert (found.level, found.kind, found.position) == ("text", "count", 6)
        assert {found.candidate_tokens, found.reference_tokens} == {3, 4}


@pytest.mark.parametrize("unknown", [(None, 4), (3, None), (None, None), (4, 4)])
def test_a_count_that_a_side_does_not_tell_is_not_compared(unknown: tuple[int | None, int | None]) -> None:
    ours, theirs = (counted("naïve", count) for count in unknown)
    assert isinstance(compare(ours, theirs, "text"), Exact)


def test_level_none_proves_nothing_and_keeps_the_clocks() -> None:
    found = compare(diverging(), a_transcript(), "none")
    assert isinstance(found, Exact) and found.level == "none"


# --- nothing compared ------------------------------------------------------------------------------------


def test_nothing_two_silent_sides_agree_about_nothing() -> None:
    with pytest.raises(NothingCompared) as caught:
        compare(a_transcript(()), a_transcript(()), "tokens")
    assert str(caught.value) == (
        "exactness: expected at least one output token on each side; found none on both sides. "
        "Two silent engines agree about nothing: check the prompt and the output length."
    )
    with pytest.raises(NothingCompared) as caught:
        compare(spoken(None), spoken(None), "text")
    assert str(caught.value) == (
        "exactness: expected text on each side; found none on both sides. "
        "Two silent engines agree about nothing: check the prompt and the output length."
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "side"),
    [(None, IDS, "candidate"), (IDS, None, "reference"), (None, None, "candidate")],
)
def test_ids_that_a_side_lacks_are_unsupported(
    ours: tuple[int, ...] | None, theirs: tuple[int, ...] | None, side: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        compare(spoken(ours, "a"), spoken(theirs, "a"), "tokens")
    assert str(caught.value) == (
        f"exactness level 'tokens' on the {side}: expected output token ids; found an engine that gives text "
        'only. Use exactness = "text", and say "text" in the claim\'s wording.'
    )


@pytest.mark.parametrize(("minimum", "tokens"), [(17, "tokens"), (400, "tokens")])
def test_nothing_is_exact_that_is_shorter_than_the_minimum(minimum: int, tokens: str) -> None:
    with pytest.raises(NothingCompared) as caught:
        compare(a_transcript(), a_transcript(), "tokens", minimum_tokens=minimum)
    assert str(caught.value) == (
        f"exactness: expected at least {minimum} output {tokens} on both sides; found 16. "
        "Ask for more output tokens, or use a prompt that does not end at once."
    )
    assert isinstance(compare(a_transcript(), a_transcript(), "tokens", minimum_tokens=16), Exact)


def test_a_divergence_is_found_before_a_short_output_is_complained_of() -> None:
    assert isinstance(compare(diverging(), a_transcript(), "tokens", minimum_tokens=400), Divergence)


def test_nothing_at_level_none_a_silent_reference_is_no_comparison() -> None:
    with pytest.raises(NothingCompared, match="at least 1 output token on both sides; found 0"):
        compare(a_transcript(), a_transcript(()), "none")


def test_characters_are_never_counted_as_tokens() -> None:
    words = spoken(None, "four hundred characters " * 17)
    with pytest.raises(NothingCompared, match="at least 400 output tokens on both sides; found 1"):
        compare(words, words, "text", minimum_tokens=400)
    found = compare(words, words, "text")
    assert isinstance(found, Exact) and found.tokens == 1


# --- a divergence has no time ----------------------------------------------------------------------------

SENTINELS = (918273645546, 918273649991, 918273655557, 918273661117, 7461.25, 6135.5, 987654321987)


def marked(ids: tuple[int, ...]) -> Transcript:
    """A side all of whose times, rates and sizes can be recognised anywhere."""
    sent, first, last, end, engine_rate, engine_ms, rss = SENTINELS
    assert isinstance(sent, int) and isinstance(first, int) and isinstance(last, int) and isinstance(end, int)
    clock = Clockwork(
        sent,
        (Event(first, 1), Event(last, 15)),
        end,
        {"predicted_per_second": engine_rate, "ms": engine_ms},
        int(rss),
    )
    return Transcript(Words(2048, ids, "abc", "limit"), clock)


def everything(value: object) -> Iterator[object]:
    yield value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from everything(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from everything(item)
    elif isinstance(value, dict):
        for pair in value.items():
            yield from everything(pair)


def leaks(divergence: object) -> list[object]:
    """Sentinels that can be reached from ``divergence``, by any of the ways out."""
    as_text = repr(divergence) + str(divergence)
    pickled = pickle.dumps(divergence)
    reached = list(everything(divergence))
    if dataclasses.is_dataclass(divergence) and not isinstance(divergence, type):
        as_text += repr(dataclasses.asdict(divergence))
    return [
        s
        for s in SENTINELS
        if repr(s) in as_text
        or pickle.dumps(s)[2:-1] in pickled
        or any(type(r) is type(s) and r == s for r in reached)
    ]


@pytest.mark.parametrize("ids", [(1, *IDS[1:]), IDS[:4]])
def test_no_way_out_of_a_divergence_leads_to_a_time(ids: tuple[int, ...]) -> None:
    found = compare(marked(ids), marked(IDS), "tokens")
    assert isinstance(found, Divergence)
    assert leaks(found) == []
    assert not any(isinstance(part, Clockwork | Event | float) for part in everything(found))
    assert not hasattr(found, "__dict__"), "slots: nothing can be hung on it later"


def test_the_search_for_leaks_finds_one() -> None:
    same = compare(marked(IDS), marked(IDS), "tokens")
    assert sorted(leaks(same), key=repr) == sorted(SENTINELS, key=repr)


@pytest.mark.parametrize("at", [0, 1, 65_536, 131_070, 131_071])
def test_long_outputs_are_compared_whole(at: int) -> None:
    ids = tuple(range(131_072))
    assert first_difference(ids, (*ids[:at], -1, *ids[at + 1 :])) == at
    assert first_difference(ids, ids[:at]) == at


# --- by type ---------------------------------------------------------------------------------------------

SNIPPET = """\
from pytest_parity.core.exactness import Divergence, Exact
from pytest_parity.core.timing import derive, ratio

def of(found: Divergence, exact: Exact) -> None:
    print(found.timing)
    print(found.candidate)
    print(found.clockwork)
    derive(found)
    ratio(found, "decode_tps")
    print(derive(exact).candidate.decode_tps)
"""

REJECTED = [
    (5, '"Divergence" has no attribute "timing"'),
    (6, '"Divergence" has no attribute "candidate"'),
    (7, '"Divergence" has no attribute "clockwork"'),
    (8, 'Argument 1 to "derive" has incompatible type "Divergence"; expected "Exact"'),
    (9, 'Argument 1 to "ratio" has incompatible type "Divergence"; expected "PairTiming"'),
]


def test_the_type_checker_rejects_a_rate_of_a_divergence(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="the type checker is a development tool")
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={tmp_path / 'cache'}",
    ]
    done = subprocess.run([*command, str(snippet)], cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line.partition("snippet.py:")[2] for line in done.stdout.splitlines() if "snippet.py:" in line]
    found = [(int(line.partition(":")[0]), line.partition(" error: ")[2]) for line in errors]
    for number, text in REJECTED:
        assert any(at == number and said.startswith(text) for at, said in found), done.stdout + done.stderr
    assert {at for at, _ in found} == {number for number, _ in REJECTED}, "what is allowed is not rejected"

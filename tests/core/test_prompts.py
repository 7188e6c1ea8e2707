"""Prompt fixtures: exactly as many ids as asked, the same ones for ever, and what they cannot see."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from factories import UNHURRIED
from hypothesis import given
from hypothesis import strategies as st

from pytest_parity.core.prompts import (
    BLIND_SPOTS,
    NATURAL,
    SYNTHETIC_CYCLE,
    SYNTHETIC_HEAD,
    PromptFixture,
    blind_spot,
    check_budget,
    check_class,
    cut,
    ids_digest,
    synthetic_ids,
)
from pytest_parity.errors import ConfigurationError, ContextExceeded, NothingCompared


@UNHURRIED
@given(st.integers(1, 140_000))
def test_synthetic_has_exactly_the_depth(depth: int) -> None:
    assert len(synthetic_ids(depth)) == depth


@UNHURRIED
@given(st.integers(1, 500))
def test_synthetic_is_a_head_and_eight_repeating_ids(depth: int) -> None:
    ids = synthetic_ids(depth)
    assert ids[0] == SYNTHETIC_HEAD
    assert all(token == SYNTHETIC_CYCLE[(place - 1) % 8] for place, token in enumerate(ids) if place)
    assert len(set(SYNTHETIC_CYCLE)) == 8 and SYNTHETIC_HEAD not in SYNTHETIC_CYCLE


def test_synthetic_ids_are_the_specified_ones() -> None:
    assert synthetic_ids(11) == (71, 80, 97, 114, 105, 116, 121, 46, 32, 80, 97)


@pytest.mark.parametrize(
    ("depth", "golden"),
    [
        (1, "sha256:7f2253d7e228b22a08bda1f09c516f6fead81df6536eb02fa991a34bb38d9be8"),
        (2048, "sha256:9629a6f0e9e90be14669c7ea6b1a4a114c91c2969a4d7765ac84c27869b4cca7"),
        (131_008, "sha256:6e5842d5e483bae48eb0c270c7fae3b1d83bd2d9fa29d9b1da8577bf7dc16b4a"),
    ],
)
def test_the_digest_of_synthetic_never_changes(depth: int, golden: str) -> None:
    assert ids_digest(synthetic_ids(depth)) == golden


@UNHURRIED
@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=20), st.data())
def test_another_id_is_another_digest(ids: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    changed = [*ids[:at], ids[at] + 1, *ids[at + 1 :]]
    assert ids_digest(changed) != ids_digest(ids)
    assert ids_digest(ids) == ids_digest(tuple(ids))


def test_ids_are_not_glued_together_in_the_digest() -> None:
    assert len({ids_digest((1, 23)), ids_digest((12, 3)), ids_digest((123,))}) == 3


@pytest.mark.parametrize("depth", [0, -1])
def test_nothing_no_prompt_of_no_tokens(depth: int) -> None:
    with pytest.raises(NothingCompared) as caught:
        synthetic_ids(depth)
    assert str(caught.value) == (
        f"synthetic prompt: expected a depth of at least 1; found {depth}. Give a positive depth."
    )
    with pytest.raises(NothingCompared) as caught:
        cut("natural-prose", (1, 2), depth)
    assert str(caught.value) == (
        f"prompt natural-prose: expected a depth of at least 1; found {depth}. Give a positive depth."
    )


@UNHURRIED
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 40))
def test_cutting_takes_the_first_ids_or_refuses(ids: list[int], depth: int) -> None:
    if depth <= len(ids):
        assert cut("natural-code", ids, depth) == tuple(ids[:depth])
    else:
        with pytest.raises(ConfigurationError) as caught:
            cut("natural-code", ids, depth)
        assert str(caught.value) == (
            f"prompt natural-code at depth {depth}: expected a source of at least {depth} tokens; "
            f"found {len(ids)} tokens. Use a longer text or a smaller depth; a text is never repeated to fill a depth."
        )


@pytest.mark.parametrize(("depth", "output", "context"), [(131_008, 64, 131_072), (1, 1, 2), (5, 5, None)])
def test_what_just_fits_the_context_fits(depth: int, output: int, context: int | None) -> None:
    check_budget(depth, output, context, "ours")


def test_prompt_and_output_beyond_the_context_are_refused() -> None:
    with pytest.raises(ContextExceeded) as caught:
        check_budget(131_008, 65, 131_072, "ours")
    assert str(caught.value) == (
        "ours: 131008 prompt tokens and 65 output tokens: expected at most 131072 tokens in its context; "
        "found 131073. Give that depth its own output_tokens, or the engine a larger context."
    )


# --- classes and what they cannot see --------------------------------------------------------------------

CLASSES = ("synthetic", "natural-prose", "natural-code", "file:prompts/x.txt", "file:ids.json")


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_says_what_it_cannot_see(name: str) -> None:
    assert check_class(name) == name
    fixture = PromptFixture(name, (1, 2, 3), "fixed", "specification")
    assert fixture.blind_spot == blind_spot(name) and len(fixture.blind_spot) > 40
    assert fixture.depth == 3
    assert fixture.digest == ids_digest((1, 2, 3))


def test_no_class_is_without_a_blind_spot() -> None:
    assert set(BLIND_SPOTS) == {"synthetic", "file"} | NATURAL


@pytest.mark.parametrize(
    "name",
    ["", "file", "prose", "Synthetic", "file:", "file:x", "file:x.md", "file:x.TXT", "files:x.txt", "x.txt"],
)
def test_a_class_that_does_not_exist(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_class(name)
    assert str(caught.value) == (
        f"fixture class {name!r}: expected synthetic, natural-prose, natural-code, file:PATH.txt or "
        f"file:PATH.json; found {name!r}. Correct the name."
    )


def test_a_fixture_cannot_be_edited() -> None:
    fixture = PromptFixture("synthetic", (1,), "fixed", "specification")
    with pytest.raises(FrozenInstanceError):
        fixture.ids = (2,)  # type: ignore[misc]

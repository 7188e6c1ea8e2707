"""The model in process: what it computes, and what changes its tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import embedded_support as support
import numpy as np
import pytest

from pytest_parity.engines.embedded.generation import (
    Greedy,
    Lookup,
    Round,
    Writing,
    plain_rounds,
    speculative_rounds,
)
from pytest_parity.engines.embedded.model import EmbeddedModel
from pytest_parity.engines.embedded.mutants import MUTANTS
from pytest_parity.engines.embedded.options import MUTANT_NAMES
from pytest_parity.engines.embedded.plain import rms_norm
from pytest_parity.engines.embedded.weights import Geometry, build_weights

OUTPUT = 96
PROMPTS = {
    "synthetic": support.synthetic(1200),
    "prose": support.prose(1200),
    "late prose": support.prose(1200, 200_000),
}
KERNELS = ("plain", "fused")


def plain(model: EmbeddedModel, prompt: list[int], limit: int = OUTPUT, chunk: int = 256) -> list[Round]:
    session = model.session(len(prompt) + limit)
    return list(plain_rounds(session, session.prefill(prompt, chunk), Writing(limit, Greedy())))


def speculative(
    model: EmbeddedModel, prompt: list[int], limit: int = OUTPUT, window: int = 768
) -> list[Round]:
    session = model.session(len(prompt) + limit)
    row = session.prefill(prompt)
    return list(speculative_rounds(session, prompt, row, Writing(limit, Greedy()), Lookup(window=window)))


def ids_of(rounds: list[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.ids]


def acceptance(rounds: list[Round]) -> float:
    drafted = sum(round_.drafted for round_ in rounds)
    return sum(round_.accepted for round_ in rounds) / drafted if drafted else 0.0


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", PROMPTS)
def test_speculative_rows_are_the_plain_rows_bit_for_bit(kernels: str, name: str) -> None:
    model = EmbeddedModel.load(0, kernels=kernels)
    one, many = plain(model, PROMPTS[name]), speculative(model, PROMPTS[name])
    assert ids_of(one) == ids_of(many)
    assert len(ids_of(one)) == OUTPUT
    assert len(many) < len(one)
    rows = np.concatenate([round_.rows for round_ in one])
    assert rows.dtype == np.float32
    assert rows.shape == (OUTPUT, 260)
    assert rows.tobytes() == np.concatenate([round_.rows for round_ in many]).tobytes()


CORES = ("Prescott", "Sandybridge", "Haswell", "Zen", "SkylakeX")
ROWS_CHECK = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
from pytest_parity.engines.embedded.model import EmbeddedModel
for kernels in ("plain", "fused"):
    session = EmbeddedModel.load(0, kernels=kernels).session(700)
    session.prefill(list(range(256)) * 2)
    for count in range(1, 10):
        rows = session.step(list(range(count)))
        session.rewind(512)
        alone = np.vstack([session.step([token]) for token in range(count)])
        session.rewind(512)
        assert rows.tobytes() == alone.tobytes(), (kernels, count)
print("equal")
"""


@pytest.mark.parametrize("core", CORES)
def test_rows_do_not_depend_on_their_number_on_any_kind_of_processor(
    core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenBLAS takes the kernels of another processor where this one can run them, and its own where not.
    monkeypatch.setenv("OPENBLAS_CORETYPE", core)
    done = subprocess.run([sys.executable, "-c", ROWS_CHECK], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        pytest.skip(f"this processor can't run the kernels of {core}")
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_same_seed_gives_the_same_bits(kernels: str) -> None:
    first = plain(EmbeddedModel.load(3, kernels=kernels), PROMPTS["prose"], 24)
    again = plain(EmbeddedModel.load(3, kernels=kernels), PROMPTS["prose"], 24)
    assert [round_.rows.tobytes() for round_ in first] == [round_.rows.tobytes() for round_ in again]


def test_another_seed_gives_other_weights() -> None:
    assert build_weights(0).digest() == build_weights(0).digest()
    assert build_weights(0).digest() != build_weights(1).digest()


@pytest.mark.parametrize("name", PROMPTS)
def test_neither_kernels_nor_block_size_nor_full_attention_change_the_tokens(name: str) -> None:
    prompt = PROMPTS[name]
    right = ids_of(plain(EmbeddedModel.load(0), prompt))
    assert ids_of(plain(EmbeddedModel.load(0, kernels="fused"), prompt)) == right
    for chunk in (1200, 512, 100, 61):
        assert ids_of(plain(EmbeddedModel.load(0), prompt, chunk=chunk)) == right, chunk
    for kernels in KERNELS:
        assert ids_of(plain(EmbeddedModel.load(0, kernels=kernels, window=4096), prompt)) == right


def test_the_model_writes_what_stood_a_window_before() -> None:
    prompt = PROMPTS["prose"]
    written = ids_of(plain(EmbeddedModel.load(0), prompt))
    right = sum(token == copied for token, copied in zip(written, prompt[-512:], strict=False))
    assert right >= 0.9 * OUTPUT


def test_the_mutants_of_the_command_line_are_the_mutants() -> None:
    assert set(MUTANT_NAMES) == set(MUTANTS)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("mutant", MUTANT_NAMES)
@pytest.mark.parametrize("name", ["prose", "late prose"])
def test_every_mutant_writes_other_tokens_on_prose(mutant: str, name: str, kernels: str) -> None:
    right = ids_of(plain(EmbeddedModel.load(0), PROMPTS[name]))
    wrong = ids_of(plain(EmbeddedModel.load(0, mutant=mutant, kernels=kernels), PROMPTS[name]))
    assert wrong != right


def test_half_of_the_draft_window_shows_on_prose_and_not_on_the_cycle() -> None:
    model = EmbeddedModel.load(0, kernels="fused")
    own = (Path(__file__).parents[3] / "fixtures" / "text" / "prose.txt").read_bytes()
    for start in (0, len(own) // 2, len(own) - 1200):
        prompt = list(own[start : start + 1200])
        full, half = speculative(model, prompt, 256), speculative(model, prompt, 256, window=384)
        assert ids_of(full) == ids_of(half)
        assert acceptance(full) > 0.5
        assert acceptance(half) <= acceptance(full) / 2, start
    full, half = (speculative(model, PROMPTS["synthetic"], 256, window) for window in (768, 384))
    assert acceptance(full) > 0.95
    assert abs(acceptance(full) - acceptance(half)) < 0.02


def test_generation_ends_with_the_end_id_in_both_lanes() -> None:
    prompt = [
        *support.prose(688),
        256,
        *support.prose(511, 50_000),
    ]  # the end id stands 512 before the first output id
    model = EmbeddedModel.load(0)
    assert ids_of(plain(model, prompt)) == [256]
    later = [*support.prose(691), 256, *support.prose(508, 50_000)]
    written = ids_of(plain(model, later))
    assert written[-1] == 256
    assert 1 < len(written) < OUTPUT
    assert ids_of(speculative(model, later)) == written


def test_a_session_refuses_what_it_can_not_do() -> None:
    session = EmbeddedModel.load(0).session(4)
    with pytest.raises(ValueError, match="prefill: expected at least one prompt id, found none"):
        session.prefill([])
    with pytest.raises(ValueError, match="step: expected at least one id, found none"):
        session.step([])
    with pytest.raises(ValueError, match="expected at most 4 positions, found 0 used and 5 more"):
        session.prefill([1, 2, 3, 4, 5])
    session.prefill([1, 2])
    with pytest.raises(ValueError, match="rewind: expected a length from 0 to 2, found 3"):
        session.rewind(3)
    with pytest.raises(ValueError, match="kernels: expected plain or fused, found 'fast'"):
        EmbeddedModel.load(0, kernels="fast")
    with pytest.raises(ValueError, match=r"mutant: expected one of rope-base, .* found 'none'"):
        EmbeddedModel.load(0, mutant="none")
    with pytest.raises(ValueError, match="window: expected at least 1 position, found 0"):
        EmbeddedModel.load(0, window=0)


def test_one_long_step_is_the_same_as_many_short_ones() -> None:
    prompt = PROMPTS["prose"]
    for kernels in KERNELS:
        model = EmbeddedModel.load(0, kernels=kernels)
        session, other = model.session(1200), model.session(1200)
        whole = session.step(prompt)
        parts = np.concatenate([other.step(prompt[first : first + 7]) for first in range(0, 1200, 7)])
        assert whole.tobytes() == parts.tobytes()


def test_a_rewound_session_reads_on_as_if_nothing_had_been() -> None:
    prompt = PROMPTS["prose"]
    session = EmbeddedModel.load(0).session(1300)
    session.prefill(prompt)
    once = session.step(prompt[:3])
    session.rewind(len(prompt))
    session.step([1, 2, 3, 4])
    session.rewind(len(prompt))
    assert session.step(prompt[:3]).tobytes() == once.tobytes()


def test_the_geometry_must_leave_the_construction_room() -> None:
    with pytest.raises(ValueError, match="key and value heads together must be 32 wide"):
        build_weights(0, Geometry(kv_heads=1, heads=2))
    with pytest.raises(ValueError, match="two query heads for each key head"):
        build_weights(0, Geometry(heads=2))
    with pytest.raises(ValueError, match="expected a width above 65, found 64"):
        build_weights(0, Geometry(width=64))


def test_the_norm_is_the_root_mean_square() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    expected = rows / np.sqrt(np.array([[12.5], [0.0]]) + 1e-5)
    np.testing.assert_allclose(rms_norm(rows, 1e-5), expected, rtol=1e-6)

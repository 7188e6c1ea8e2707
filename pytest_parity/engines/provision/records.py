"""The local half of a pin: what one machine's build or file really is, as JSON beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from .digests import file_sha256
from .errors import DigestMismatch, PinUnreadable

PIN_FILE = "pin.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileFacts(_Record):
    """A file by its name, digest and size in bytes; the name is relative to the pin unless absolute."""

    name: str
    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        """The facts of the file ``path``; raises ``OSError`` when it can't be read."""
        return cls(name=name, sha256=file_sha256(path), size_bytes=path.stat().st_size)


class _Local(_Record):
    _folder: Path = PrivateAttr(default=Path())

    @property
    def folder(self) -> Path:
        """The folder that the record lies in."""
        return self._folder

    def in_folder(self, folder: Path) -> Self:
        """The same record, of files in ``folder``."""
        # Not a field: the record's bytes must not change when a cache is moved.
        placed = self.model_copy()
        placed._folder = folder
        return placed

    def to_json(self) -> str:
        """The record as JSON, keys sorted, with a newline at the end."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"

    def write(self, folder: Path) -> None:
        """Write the record into ``folder``; raises ``OSError`` when that fails."""
        (folder / PIN_FILE).write_text(self.to_json(), encoding="utf-8")


class LocalPin(_Local):
    """The local half of an engine's pin, written by the build."""

    format: Literal["pytest-parity engine pin 1"] = "pytest-parity engine pin 1"
    engine: str
    portable_sha256: str
    """Digest of the portable half that was built."""
    package_sha256: str
    source_sha256: str
    cmake_flags: tuple[str, ...]
    binaries: tuple[FileFacts, ...]
    """One per target, in the order of the pin's targets."""
    shared_libraries: tuple[FileFacts, ...] | None
    """What the first binary loads from the system, by absolute path; ``None`` when that can't be told."""
    compiler: str
    compiler_version: str
    cmake_version: str
    cpu_model: str
    cpu_features: tuple[str, ...]
    """As the kernel lists them, sorted: the build is made for the processor it runs on."""
    version_text: str
    """What the first binary says of itself (``--version``)."""
    built_at: str
    """UTC, ISO 8601, to the second."""
    build_seconds: float
    """Wall time of configuring and compiling."""
    jobs: int

    @property
    def binary_sha256(self) -> str:
        """Digest of the first binary, the server."""
        return self.binaries[0].sha256

    def binary(self, target: str) -> Path:
        """Absolute path of the binary of one target, such as ``llama-server``.

        Raises ``PinUnreadable`` for a target that was not built.
        """
        for facts in self.binaries:
            if Path(facts.name).name == target:
                return self.folder / facts.name
        raise PinUnreadable(
            f"target {target!r} of the build of {self.engine}",
            expected=f"one of {', '.join(Path(facts.name).name for facts in self.binaries)}",
            found="a target that was not built",
            mend="Use one of these, or add the target to the engine's pin.",
        )

    @property
    def server(self) -> Path:
        """Absolute path of the first binary, the server."""
        return self.folder / self.binaries[0].name

    def verify(self) -> None:
        """Hash the binaries again; raises ``DigestMismatch`` when one is not what was built, or is gone."""
        for facts in self.binaries:
            _verify(self.folder, facts, f"parity engine build {self.engine}")


class ModelFile(_Local):
    """The local half of a model's pin: one file of one variant."""

    format: Literal["pytest-parity model pin 1"] = "pytest-parity model pin 1"
    model: str
    variant: str
    portable_sha256: str
    file: FileFacts
    tensors_sha256: str | None
    """Digest of a derived file's tensors; ``None`` for a file taken from its package as it is."""
    made_with: str | None
    """The writer of a derived file and its version."""
    context_tokens: int
    vocabulary: int

    @property
    def path(self) -> Path:
        """Absolute path of the model file."""
        return self.folder / self.file.name

    @property
    def sha256(self) -> str:
        """Digest of the model file."""
        return self.file.sha256

    def verify(self) -> None:
        """Hash the file again; raises ``DigestMismatch`` when it is not what was written, or is gone."""
        _verify(self.folder, self.file, f"parity engine model {self.model}")


_Kind = TypeVar("_Kind", bound=_Local)


def read_record(kind: type[_Kind], folder: Path) -> _Kind:
    """Read the record in ``folder``; raises ``PinUnreadable`` when it is missing, no JSON or not of this form."""
    path = folder / PIN_FILE
    try:
        # Through pydantic's own JSON mode: strict mode takes a JSON list for a tuple there.
        return kind.model_validate_json(path.read_bytes()).in_folder(folder)
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
    except ValidationError as error:
        found = _first_problem(error)
    raise PinUnreadable(
        str(path),
        expected=f"a record of the form {kind.model_fields['format'].default!r}",
        found=found,
        mend=f"Delete the folder {folder} and build again.",
    )


def _first_problem(error: ValidationError) -> str:
    first: Any = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the whole file"
    return f"{place}: {first['msg']}"


def _verify(folder: Path, facts: FileFacts, command: str) -> None:
    path = folder / facts.name
    try:
        found = f"sha256 {file_sha256(path)}"
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
    if found != f"sha256 {facts.sha256}":
        raise DigestMismatch(
            str(path),
            expected=f"sha256 {facts.sha256}",
            found=found,
            mend=f"Delete the folder {folder} and run `{command}`.",
        )

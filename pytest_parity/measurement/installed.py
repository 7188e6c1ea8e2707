"""An engine of ``parity.toml`` with what is on this machine: files found, digests taken, argv filled in."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_parity.engines import provision
from pytest_parity.engines.description import EngineDescription
from pytest_parity.errors import AdmissionRefused, PinMismatch

__all__ = ["InstalledEngine", "file_digest", "install", "why_not_installed"]


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """A description, and the local half of its pin.

    ``binary`` and ``model``: absolute paths, ``None`` where the description names none.
    ``local``: what the build wrote (compiler, flags, digests); empty for programs that we did not build.
    """

    description: EngineDescription
    binary: Path | None
    model: Path | None
    local: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The engine's name in ``parity.toml``."""
        return self.description.name

    def argv(self, lane: str, *, port: int, position: int) -> tuple[str, ...]:
        """The command line for one start."""
        values = {
            "{python}": sys.executable,
            "{binary}": str(self.binary),
            "{model}": str(self.model),
            "{port}": str(port),
            "{context}": str(self.description.context),
            "{position}": str(position),
        }
        filled = []
        for part in (*self.description.argv, *self.description.lanes[lane].argv):
            for mark, value in values.items():
                part = part.replace(mark, value)
            filled.append(part)
        return tuple(filled)

    def pin(self) -> dict[str, Any]:
        """Both halves of the pin, for the receipt. Takes the files' digests."""
        portable = self.description.pin.model_dump(mode="json")
        portable["expiries"] = [
            {"of": what, "on": on.isoformat()} for what, on in self._all_expiries() if on is not None
        ]
        local: dict[str, Any] = dict(self.local)
        for name, path in (("binary", self.binary), ("model", self.model)):
            if path is not None:
                local[f"{name}_sha256"] = file_digest(path)
        return {"portable": portable, "local": local}

    def vocabulary(self) -> str:
        """What fixes the vocabulary: its declared name, or the model file's digest."""
        if self.description.vocabulary is not None:
            return f"named:{self.description.vocabulary}"
        if self.model is not None:
            return f"model:{file_digest(self.model)}"
        return "configuration:" + hashlib.sha256(" ".join(self.description.argv).encode()).hexdigest()

    def check_pin(self, today: date) -> str | None:
        """Raise PinMismatch when a pinned digest differs; return why the pin is stale, or ``None``."""
        pin = self.description.pin
        for what, wanted, path in (
            ("binary", pin.binary_sha256, self.binary),
            ("model", pin.model_sha256, self.model),
        ):
            if wanted is None:
                continue
            found = file_digest(path) if path is not None else "no file"
            if found != wanted:
                raise PinMismatch(
                    f"{self.name}: the {what}",
                    expected=f"SHA-256 {wanted}",
                    found=found,
                    mend="Install what was pinned, or pin what is installed and measure again.",
                )
        self._check_record()
        for what, expires in self._all_expiries():
            if expires is not None and expires <= today:
                return f"{what} expired on {expires.isoformat()}"
        return None

    def _check_record(self) -> None:
        """A model that this package provided must still have the bytes that were recorded then."""
        if self.model is None or not (self.description.model or "").startswith("provided:"):
            return
        _, name, variant = (self.description.model or "").split(":", 2)
        record = provision.model_file(name, variant)
        if record is None or file_digest(self.model) != record.sha256:
            raise PinMismatch(
                f"{self.name}: the model {self.model.name}",
                expected=f"SHA-256 {record.sha256 if record is not None else 'of its record'}",
                found=file_digest(self.model),
                mend=f"Delete the folder that it lies in and run: parity engine model {name} {variant}",
            )

    def _all_expiries(self) -> list[tuple[str, date | None]]:
        """When the pins end: the description's own, and those that this package holds of a build and a model."""
        found: list[tuple[str, date | None]] = [(f"the pin of {self.name}", self.description.pin.expires)]
        if self.description.binary is not None and self.description.binary.startswith("built:"):
            name = self.description.binary.removeprefix("built:")
            found.append((f"the pinned source of {name}", provision.ENGINE_PINS[name].expires))
        if self.description.model is not None and self.description.model.startswith("provided:"):
            name = self.description.model.split(":")[1]
            found.append((f"the pinned model {name}", provision.MODEL_PINS[name].expires))
        return found


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file; remembered while its size and times stay the same."""
    stat = path.stat()
    return _digest(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=64)
def _digest(path: str, _size: int, _mtime_ns: int, _inode: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def why_not_installed(engine: EngineDescription, root: Path) -> str | None:
    """One sentence when ``engine`` is not on this machine, else ``None``. Fetches and builds nothing."""
    try:
        install(engine, root)
    except AdmissionRefused as error:
        return f"{error.thing} is not installed. {error.mend}"
    return None


def install(engine: EngineDescription, root: Path) -> InstalledEngine:
    """Find the engine's files. Raises AdmissionRefused when one is missing."""
    local: Mapping[str, Any] = {}
    binary = model = None
    if engine.binary is not None:
        if engine.binary.startswith("built:"):
            name = engine.binary.removeprefix("built:")
            built = provision.installed(name)
            if built is None:
                raise _missing(
                    f"{name} (engine {engine.name})", "a build", f"Run: parity engine build {name}"
                )
            binary, local = built.binary("llama-server"), built.model_dump(mode="json", exclude={"folder"})
        else:
            binary = _existing(engine, "binary", root / engine.binary)
    if engine.model is not None:
        if engine.model.startswith("provided:"):
            _, name, variant = engine.model.split(":", 2)
            model = provision.model_path(name, variant)
            if model is None:
                raise _missing(
                    f"{name} {variant} (engine {engine.name})",
                    "a model file",
                    f"Run: parity engine model {name}",
                )
        else:
            model = _existing(engine, "model", root / engine.model)
    return InstalledEngine(engine, binary, model, local)


def _existing(engine: EngineDescription, what: str, path: Path) -> Path:
    if not path.is_file():
        raise _missing(
            f"{engine.name}: its {what} {path.name}",
            "a file",
            f"Correct {what!r} of [engines.{engine.name}].",
        )
    return path.resolve()


def _missing(thing: str, expected: str, mend: str) -> AdmissionRefused:
    return AdmissionRefused(thing, expected=expected, found="none on this machine", mend=mend)

"""Prompt ids, made once for a (text, vocabulary) and kept by digest."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.core.prompts import PromptFixture, cut, ids_digest, synthetic_ids
from pytest_parity.errors import ConfigurationError, EvidenceError

__all__ = ["PromptStore", "Source", "source_of"]

OWN_TEXT = {"natural-prose": "prose.txt", "natural-code": "code.txt"}


@dataclass(frozen=True, slots=True)
class Source:
    """A text to be tokenised, or ids that a user brought.

    ``label``: where it is from, with its digest, as it stands in the receipt.
    """

    label: str
    text: str | None
    ids: tuple[int, ...] | None

    @property
    def key(self) -> str:
        """SHA-256 (hex) of the content."""
        content = self.text.encode() if self.text is not None else ",".join(map(str, self.ids or ())).encode()
        return hashlib.sha256(content).hexdigest()


def source_of(fixture_class: str, depth: int, root: Path) -> Source | None:
    """Where ids of ``fixture_class`` come from; ``None`` for ``synthetic``, whose ids are its specification."""
    if fixture_class == "synthetic":
        return None
    if fixture_class.startswith("file:"):
        return _user_file(root / fixture_class.removeprefix("file:"))
    own = _own_text(OWN_TEXT[fixture_class])
    digest = hashlib.sha256(own.encode()).hexdigest()
    if depth <= 8192:
        return Source(f"{OWN_TEXT[fixture_class]} sha256:{digest}", own, None)
    more = _running_python(fixture_class)
    both = own + "\n" + more
    return Source(
        f"{OWN_TEXT[fixture_class]} and CPython {platform.python_version()} "
        f"sha256:{hashlib.sha256(both.encode()).hexdigest()}",
        both,
        None,
    )


class PromptStore:
    """The folder of prompt ids: one file per (text, vocabulary)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fixture(
        self,
        fixture_class: str,
        depth: int,
        vocabulary: str,
        root: Path,
        tokenize: Callable[[str], tuple[int, ...]],
    ) -> PromptFixture:
        """The prompt of ``fixture_class`` at ``depth``; ``tokenize`` is called only when no ids are stored."""
        source = source_of(fixture_class, depth, root)
        if source is None:
            return PromptFixture(fixture_class, synthetic_ids(depth), "fixed", "its specification")
        if source.ids is not None:
            return PromptFixture(fixture_class, cut(fixture_class, source.ids, depth), "fixed", source.label)
        stored = self.stored(source, vocabulary)
        if stored is None:
            assert source.text is not None
            stored = tokenize(source.text)
            self._write(source, vocabulary, stored)
        return PromptFixture(fixture_class, cut(fixture_class, stored, depth), vocabulary, source.label)

    def check(self, fixture_class: str, depth: int, vocabulary: str, root: Path) -> None:
        """Raise what :meth:`fixture` would, as far as that can be told without an engine."""
        source = source_of(fixture_class, depth, root)
        if source is not None:
            ids = source.ids if source.ids is not None else self.stored(source, vocabulary)
            if ids is not None:
                cut(fixture_class, ids, depth)

    def _path(self, source: Source, vocabulary: str) -> Path:
        key = hashlib.sha256(f"{source.key}\n{vocabulary}".encode()).hexdigest()
        return self.folder / f"{key}.json"

    def stored(self, source: Source, vocabulary: str) -> tuple[int, ...] | None:
        """All ids of ``source``, or ``None``. Raises EvidenceError when they do not match their digest."""
        path = self._path(source, vocabulary)
        try:
            body = json.loads(path.read_bytes())
            ids = tuple(body["ids"])
            whole = body["digest"] == ids_digest(ids) and all(type(i) is int and i >= 0 for i in ids)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise EvidenceError(
                f"stored prompt {path.name}",
                expected="ids that match their digest",
                found="others, or a file that cannot be read",
                mend="Remove the file; it is made again.",
            )
        return ids

    def _write(self, source: Source, vocabulary: str, ids: tuple[int, ...]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        body = {"source": source.label, "vocabulary": vocabulary, "digest": ids_digest(ids), "ids": list(ids)}
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            file.write(canonical_bytes(body))
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, self._path(source, vocabulary))


@lru_cache(maxsize=4)
def _own_text(name: str) -> str:
    packaged = resources.files("pytest_parity") / "fixture_texts" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    checkout = Path(__file__).parents[2] / "fixtures" / "text" / name
    return checkout.read_text(encoding="utf-8")


@lru_cache(maxsize=2)
def _running_python(fixture_class: str) -> str:
    """Long text that comes with the running CPython: the same for both sides, not across patch releases."""
    if fixture_class == "natural-prose":
        from pydoc_data import topics

        return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    library = Path(os.__file__).parent
    names = sorted(p for p in library.glob("*.py") if p.is_file())
    return "\n\n".join(p.read_text(encoding="utf-8", errors="strict") for p in names[:120])


def _user_file(path: Path) -> Source:
    name = path.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"prompt file {name}",
            expected="a readable file",
            found=error.strerror or str(error),
            mend="Correct the path.",
        ) from None
    label = f"{name} sha256:{hashlib.sha256(data).hexdigest()}"
    try:
        if path.suffix == ".txt":
            return Source(label, data.decode("utf-8"), None)
        ids = json.loads(data)
    except ValueError as error:
        kind = "UTF-8 text" if path.suffix == ".txt" else "JSON"
        raise ConfigurationError(
            f"prompt file {name}", expected=kind, found=str(error), mend="Correct the file."
        ) from None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise ConfigurationError(
            f"prompt file {name}",
            expected="a list of token ids, whole numbers from 0",
            found=repr(ids)[:60],
            mend="Correct the file.",
        )
    return Source(label, None, tuple(ids))

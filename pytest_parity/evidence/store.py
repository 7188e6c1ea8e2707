"""A folder of receipts: each is written once, whole and durable, under a name of its own.

Intents lie beside them in ``intents/``. An intent says that a side is about to start; the receipt of the same
name closes it. Nothing is ever deleted or replaced, so an intent without a receipt stays visible for good.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_parity.core.canonical import digest as digest_of
from pytest_parity.errors import EvidenceError, ReceiptExists, ReceiptUnreadable
from pytest_parity.evidence.disk import DISK, Disk, storage, sync_folder
from pytest_parity.evidence.names import INTENTS, SUFFIX, check_name, name_of
from pytest_parity.evidence.publish import publish_file, sweep

__all__ = ["Published", "ReceiptStore", "names_in"]


@dataclass(frozen=True, slots=True)
class Published:
    """Where a receipt or an intent lies, and the digest of its bytes."""

    path: Path
    digest: str


class ReceiptStore:
    """The receipts and intents of one folder. Any number of processes may use the same folder."""

    def __init__(self, root: Path, *, disk: Disk = DISK) -> None:
        self.root = root
        self._intents = root / INTENTS
        self._disk = disk

    def prepare(self) -> None:
        """Make the folder, with its parents and its place for intents. Raises ``StorageFailed``."""
        with storage("receipts folder", self.root):
            for folder in reversed([self._intents, self.root, *self.root.parents]):
                if not folder.exists():
                    self._make(folder)

    def publish(self, name: str, body: bytes) -> Published:
        """Write a receipt durably and return where it lies.

        Raises ``ReceiptExists`` when the name is taken, by the same bytes too: what that means is for the
        caller to say. Raises ``StorageFailed`` when the volume refuses, ``EvidenceError`` for a bad name.
        """
        return self._publish(self.root, name, body, "receipt")

    def intend(self, key: str, body: bytes) -> Published:
        """Write durably that the attempt ``key`` is about to start; its receipt has the same name.

        Raises ``ReceiptExists`` for a second intent of that key: an attempt starts once, whatever became of
        it. Raises ``StorageFailed`` and ``EvidenceError`` as ``publish`` does.
        """
        check_name(key)
        with storage(f"intent {key}", self.root):
            if not self._intents.exists():
                self._make(self._intents)
        return self._publish(self._intents, key, body, "intent")

    def open_intents(self) -> tuple[str, ...]:
        """Keys of the intents that no receipt closes, sorted.

        One of them may belong to a session that is still running: its body says whose it is.
        """
        closed = set(self.names())
        return tuple(key for key in self.intents() if key not in closed)

    def names(self) -> tuple[str, ...]:
        """Names of all receipts, sorted. Raises ``EvidenceError`` when the folder can't be listed."""
        return names_in(self.root)

    def intents(self) -> tuple[str, ...]:
        """Keys of all intents, sorted."""
        return names_in(self._intents) if self._intents.exists() else ()

    def read(self, name: str, *, digest: str | None = None) -> bytes:
        """The bytes of a receipt, checked against ``digest`` when one is given.

        Raises ``ReceiptUnreadable`` when there is none, when it can't be read, and when its bytes differ.
        """
        return self._read(self.root, name, digest, "receipt")

    def read_intent(self, key: str, *, digest: str | None = None) -> bytes:
        """The bytes of an intent; as ``read``."""
        return self._read(self._intents, key, digest, "intent")

    def sweep(self) -> tuple[str, ...]:
        """Remove the temporary files of writers that died; returns their names. Raises ``StorageFailed``."""
        found = sweep(self._disk, self.root)
        if self._intents.exists():
            found += sweep(self._disk, self._intents)
        return found

    def _make(self, folder: Path) -> None:
        with suppress(FileExistsError):  # another process was faster
            self._disk.mkdir(folder)
        sync_folder(self._disk, folder.parent)

    def _publish(self, folder: Path, name: str, body: bytes, word: str) -> Published:
        filename = check_name(name) + SUFFIX
        thing = f"{word} {name}"
        try:
            path = publish_file(self._disk, folder, filename, body, thing=thing)
        except FileExistsError as error:
            raise _taken(thing, folder / filename, body) from error
        return Published(path, digest_of(body))

    def _read(self, folder: Path, name: str, expected: str | None, word: str) -> bytes:
        path = folder / (check_name(name) + SUFFIX)
        try:
            body = path.read_bytes()
        except OSError as error:
            raise ReceiptUnreadable(
                f"{word} {name}",
                expected=f"the file {path}",
                found=error.strerror or str(error),
                mend="Restore the file from where it was published; evidence is never rewritten.",
            ) from error
        if expected is not None and (found := digest_of(body)) != expected:
            raise ReceiptUnreadable(
                f"{word} {name}",
                expected=f"bytes with digest {expected}",
                found=f"{found} in {path}",
                mend="Restore the file from where it was published; evidence is never rewritten.",
            )
        return body


def names_in(folder: Path) -> tuple[str, ...]:
    """Names of the receipts, or keys of the intents, that lie in ``folder``. Raises ``EvidenceError``."""
    try:
        found = os.listdir(folder)
    except OSError as error:
        raise EvidenceError(
            "receipts folder",
            expected=f"a folder that can be listed at {folder}",
            found=error.strerror or str(error),
            mend="Create the folder, or choose another with --receipts.",
        ) from error
    return tuple(sorted(name for filename in found if (name := name_of(filename)) is not None))


def _taken(thing: str, path: Path, body: bytes) -> ReceiptExists:
    new = digest_of(body)
    try:
        there = digest_of(path.read_bytes())
    except OSError as error:
        there = f"something unreadable ({error.strerror})"
    mend = "Evidence is never replaced: give another attempt a name of its own."
    if there == new:
        mend = "These very bytes were published before: nothing is left to write."
    return ReceiptExists(
        thing,
        expected="a name that is not taken",
        found=f"{there} at {path}, while the new bytes are {new}",
        mend=mend,
    )

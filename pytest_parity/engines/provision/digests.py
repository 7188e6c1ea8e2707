"""SHA-256 of a file, and of a tree's names and bytes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from .errors import UnsafeArchive

_CHUNK = 1 << 20


def file_sha256(path: Path) -> str:
    """Lower-case hexadecimal SHA-256 of a file's bytes. Raises ``OSError`` when it can't be read."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def tree_sha256(root: Path) -> str:
    """SHA-256 over the names and bytes of every file below ``root``; modes and times do not count.

    Names are relative, with ``/``, sorted as bytes; each is written with its length and followed by the
    digest of its content, so that no two trees share one input. Raises ``UnsafeArchive`` for anything that
    is neither a folder nor a plain file: a link's bytes would depend on what lies elsewhere.
    """
    names: list[bytes] = []
    for folder, subfolders, files in os.walk(root):
        for name in [*subfolders, *files]:
            path = Path(folder, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UnsafeArchive(
                    str(path),
                    expected="a tree of folders and plain files",
                    found="a link or a special file",
                    mend="Use a source package without links.",
                )
        names.extend(os.fsencode(Path(folder, name).relative_to(root).as_posix()) for name in files)
    digest = hashlib.sha256()
    for encoded in sorted(names):
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
        digest.update(bytes.fromhex(file_sha256(root / os.fsdecode(encoded))))
    return digest.hexdigest()

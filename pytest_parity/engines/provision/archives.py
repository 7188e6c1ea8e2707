"""Unpacks package files without letting one member leave the folder it is unpacked into."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from .digests import file_sha256
from .errors import DigestMismatch, MissingMember, UnsafeArchive

_MEND = "Do not use this file: delete it, and ask its publisher."


def unpack_source(archive: Path, into: Path, *, subtree: str) -> Path:
    """Unpack the folder ``subtree`` of a source package and return where it lies below ``into``.

    ``subtree`` is relative to the package's single top folder, with ``/``. Every member of the archive is
    looked at before the first byte is written. Raises ``UnsafeArchive`` for a name that is absolute or
    climbs, a link or a special file in the subtree, and for a file that is no gzipped tar at all;
    ``MissingMember`` when the subtree is not there.
    """
    try:
        with tarfile.open(archive, "r:gz") as bundle:
            members = bundle.getmembers()
            for member in members:
                _check_name(archive, member.name)
            wanted = [m for m in members if _below(m.name, subtree)]
            for member in wanted:
                if not (member.isdir() or member.isreg()):
                    raise UnsafeArchive(
                        archive.name,
                        expected="folders and plain files only",
                        found=f"{member.name!r}, which is a link or a special file",
                        mend=_MEND,
                    )
            for member in wanted:
                _write_member(bundle, member, into)
    except (tarfile.TarError, EOFError) as error:
        raise UnsafeArchive(
            archive.name, expected="a gzipped tar archive", found=f"{error}", mend=_MEND
        ) from error
    tops = {PurePosixPath(m.name).parts[0] for m in wanted if m.isreg()}
    if len(tops) != 1:
        raise MissingMember(
            archive.name,
            expected=f"one folder {subtree!r} with files below its top folder",
            found=f"{len(tops)} of them",
            mend="Correct the pin's source folder, or pin another package.",
        )
    return into / tops.pop() / subtree


def unpack_member(archive: Path, member: str, target: Path, *, sha256: str) -> Path:
    """Copy one member of a wheel to the file ``target`` and compare its digest with the pinned one.

    Raises ``MissingMember``, ``UnsafeArchive`` when the file is no zip archive, ``DigestMismatch``.
    """
    try:
        with zipfile.ZipFile(archive) as bundle, bundle.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except KeyError as error:
        raise MissingMember(
            archive.name,
            expected=f"a member {member!r}",
            found="none of that name",
            mend="Correct the pin's member name, or pin another package.",
        ) from error
    except zipfile.BadZipFile as error:
        raise UnsafeArchive(archive.name, expected="a zip archive", found=f"{error}", mend=_MEND) from error
    found = file_sha256(target)
    if found != sha256:
        raise DigestMismatch(
            f"{archive.name}, member {member}",
            expected=f"sha256 {sha256}",
            found=f"sha256 {found}",
            mend="The pin and the package disagree: pin the package anew after looking at what changed.",
        )
    return target


def _check_name(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise UnsafeArchive(
            archive.name,
            expected="members whose names stay inside the folder they are unpacked into",
            found=f"{name!r}",
            mend=_MEND,
        )


def _below(name: str, subtree: str) -> bool:
    return PurePosixPath(*PurePosixPath(name).parts[1:]).is_relative_to(subtree)


def _write_member(bundle: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    path = into / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = bundle.extractfile(member)
    assert source is not None
    with source, path.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    # Scripts that cmake runs must stay executable; no other bit of the archive's mode is taken over.
    path.chmod(0o755 if member.mode & 0o100 else 0o644)

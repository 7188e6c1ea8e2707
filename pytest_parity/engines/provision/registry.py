"""Fetches one pinned file from the package index that pip is configured for, and from nowhere else.

How an sdist is fetched. ``pip download`` insists on the metadata of what it downloads, and asks an sdist's
build backend for it: it makes an isolated environment, installs the backend and what that needs, and runs
it. For the two engines pinned here that costs between 20 s and 9 min of processor time and runs code of
which nothing is needed. So pip is told ``--no-build-isolation`` and finds, ahead of everything else on
``PYTHONPATH``, a backend of the same name that is ours: ten lines that hand over the ``PKG-INFO`` file
every sdist carries. Nothing else is fetched and no code of the package runs; the options are pip's public
ones. ``--require-hashes`` lets pip compare the SHA-256 before it unpacks anything for its own use, and the
file is hashed here once more before it is taken.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .cache import place
from .commands import Finished, Report, Runner, run_command
from .digests import file_sha256
from .errors import DigestMismatch, RegistryUnavailable, ToolMissing
from .pins import PackageFile

DOWNLOAD_LIMIT_S = 1800.0

_BACKEND = '''\
"""Stands in for a build backend: hands over the metadata that the source package carries already."""
from email.parser import HeaderParser
from pathlib import Path


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    text = Path("PKG-INFO").read_text(encoding="utf-8")
    headers = HeaderParser().parsestr(text)
    folder = Path(metadata_directory, f"{headers['Name'].replace('-', '_')}-{headers['Version']}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(text, encoding="utf-8")
    return folder.name
'''

# What pip prints of the two digests when they differ.
_GOT = re.compile(r"^\s*Got\s+([0-9a-f]{64})\s*$")


def fetch(
    package: PackageFile,
    *,
    root: Path,
    report: Report,
    run: Runner = run_command,
    timeout_s: float = DOWNLOAD_LIMIT_S,
) -> Path:
    """Return the package file below the cache ``root``, downloading it when it isn't there.

    A file that is there is hashed again before it is used. Raises ``RegistryUnavailable`` when the index
    can't be asked or lacks the file, ``DigestMismatch`` when bytes are not the pinned ones, ``ToolMissing``
    when this interpreter has no pip, ``CacheUnusable``.
    """
    folder = root / "packages" / package.sha256
    target = folder / package.filename
    if not target.is_file():
        place(folder, lambda work: _download(package, work, target, report, run, timeout_s), report=report)
    found = file_sha256(target) if target.is_file() else None
    if found != package.sha256:
        raise DigestMismatch(
            str(target),
            expected=f"sha256 {package.sha256}",
            found="no such file in its folder" if found is None else f"sha256 {found}",
            mend=f"Delete the folder {folder} and run the command again.",
        )
    return target


def _download(
    package: PackageFile, work: Path, target: Path, report: Report, run: Runner, timeout_s: float
) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ToolMissing(
            f"pip for {package.project} {package.version}",
            expected=f"the interpreter {sys.executable} to have pip, which knows the package index",
            found="none",
            mend=f"Run `{sys.executable} -m ensurepip`, or put {package.filename} at {target} by hand.",
        )
    report(f"fetching {package.filename} from the package index")
    with tempfile.TemporaryDirectory(prefix="pytest-parity-") as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text(
            f"{package.project}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8"
        )
        stub = Path(scratch, "backend")
        _write_backend(package, stub)
        environment = {**os.environ, "PYTHONPATH": str(stub)}
        finished = run(
            _argv(package, requirements, work), report=report, timeout_s=timeout_s, env=environment
        )
    downloaded = work / package.filename
    if finished.returncode != 0 or not downloaded.is_file():
        raise _failure(package, finished, target)
    found = file_sha256(downloaded)
    if found != package.sha256:
        raise _mismatch(package, found)


def _argv(package: PackageFile, requirements: Path, work: Path) -> Sequence[str]:
    form = "--no-binary" if package.kind == "sdist" else "--only-binary"
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar=off",
        # Offline must be told in seconds; pip's own five retries with pauses take most of a minute.
        "--retries=2",
        "--no-deps",
        "--no-build-isolation",
        f"{form}=:all:",
        "--require-hashes",
        "--requirement",
        str(requirements),
        "--dest",
        str(work),
    ]


def _write_backend(package: PackageFile, stub: Path) -> None:
    stub.mkdir()
    if package.backend is None:
        return
    *folders, module = package.backend.split(".")
    folder = stub
    for name in folders:
        folder = folder / name
        folder.mkdir()
        (folder / "__init__.py").touch()
    (folder / f"{module}.py").write_text(_BACKEND, encoding="utf-8")


def _failure(package: PackageFile, finished: Finished, target: Path) -> Exception:
    for line in finished.tail:
        if match := _GOT.match(line):
            return _mismatch(package, match[1])
    return RegistryUnavailable(
        f"{package.kind} {package.project}=={package.version}",
        expected="the package index that pip is configured for to serve it",
        found=f"pip download: {finished.ending}: {_reason(finished.tail)}",
        mend=f"Go online or configure pip's index, or put {package.filename} at {target} by hand.",
    )


def _reason(tail: Sequence[str]) -> str:
    """The line that says most: a broken connection before pip's conclusion that there are no versions."""
    for word in ("connection broken", "ERROR:"):
        for line in tail:
            if word in line:
                return line.strip()
    return tail[-1].strip() if tail else "pip said nothing"


def _mismatch(package: PackageFile, found: str) -> DigestMismatch:
    return DigestMismatch(
        package.filename,
        expected=f"sha256 {package.sha256}",
        found=f"sha256 {found}",
        mend="The index serves other bytes than those that were pinned: do not use them; find out why.",
    )

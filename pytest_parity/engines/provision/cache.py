"""Where builds and models live, and how a thing gets there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from .commands import Report
from .errors import CacheUnusable

LOCK_LIMIT_S = 4 * 3600.0
"""How long a second process waits for the first, in seconds: a slow machine's whole build."""

_PARTIAL = ".partial-"


def cache_root(environment: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/pytest-parity``, by default ``~/.cache/pytest-parity``; it need not exist.

    A relative ``XDG_CACHE_HOME`` is ignored, as the XDG base directory specification asks.
    """
    values = os.environ if environment is None else environment
    base = values.get("XDG_CACHE_HOME", "")
    if base and os.path.isabs(base):
        return Path(base) / "pytest-parity"
    return Path(values.get("HOME") or Path.home()) / ".cache" / "pytest-parity"


def place(
    destination: Path,
    make: Callable[[Path], None],
    *,
    report: Report,
    lock_limit_s: float = LOCK_LIMIT_S,
) -> Path:
    """Return the folder ``destination``, calling ``make`` with an empty folder to fill if it isn't there yet.

    ``make`` works in a folder beside the destination, which is renamed when ``make`` has returned: a folder
    under its final name is always whole. Two processes that ask at once make it once: the second waits, at
    most ``lock_limit_s`` seconds. What an interrupted process left is removed. Raises ``CacheUnusable`` when
    the cache can't be written, is full, or stays locked; whatever ``make`` raises passes through.
    """
    if destination.is_dir():
        return destination
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(destination.parent, error) from error
    with _locked(destination, report, lock_limit_s):
        if destination.is_dir():  # the process that held the lock has made it
            return destination
        for leftover in destination.parent.glob(f".{destination.name}{_PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            work = Path(tempfile.mkdtemp(prefix=f".{destination.name}{_PARTIAL}", dir=destination.parent))
        except OSError as error:
            raise _unusable(destination.parent, error) from error
        try:
            make(work)
            work.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from its other readers
            os.replace(work, destination)
        except OSError as error:
            raise _unusable(destination, error) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return destination


@contextlib.contextmanager
def _locked(destination: Path, report: Report, limit_s: float) -> Iterator[None]:
    lock = FileLock(destination.parent / f".{destination.name}.lock")
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report(f"waiting for another process that is making {destination}")
            try:
                lock.acquire(timeout=limit_s)
            except Timeout as error:
                raise CacheUnusable(
                    str(destination),
                    expected=f"the lock {lock.lock_file} to become free within {limit_s:g} s",
                    found="another process that still holds it",
                    mend="Wait for that process, or end it, and run the command again.",
                ) from error
    except OSError as error:
        raise _unusable(destination.parent, error) from error
    try:
        yield
    finally:
        lock.release()


def _unusable(path: Path, error: OSError) -> CacheUnusable:
    return CacheUnusable(
        str(path),
        expected="a cache folder that can be written",
        found=f"{type(error).__name__}: {error}",
        mend="Free some space, mend its permissions, or set XDG_CACHE_HOME to another folder.",
    )

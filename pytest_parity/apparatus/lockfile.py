"""Opening a lock file in a folder where everybody may write.

Whoever can plant a link, a device or a file of their own at the lock's path could make us write into
something else, or keep us out for ever. Each of these is refused with its name; nothing is repaired.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from pytest_parity.errors import ConfigurationError, LeaseError

__all__ = ["default_path", "open_lock_file", "still_there"]

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FOLDER = Path("/var/tmp")
# O_NONBLOCK: opening a planted pipe must not wait. O_NOCTTY: opening a planted terminal must not adopt it.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_ATTEMPTS = 20


def default_path(device: str) -> Path:
    """``/var/tmp/pytest-parity-<device>.lock``. Raises ConfigurationError for no plain word."""
    if not _DEVICE.fullmatch(device):
        raise ConfigurationError(
            f"lease device {device!r}",
            expected="letters, digits, '.', '_' and '-', at most 64, beginning with a letter or digit",
            found="another shape",
            mend='Name the device in parity.toml as in device = "gpu0".',
        )
    return _FOLDER / f"pytest-parity-{device}.lock"


def open_lock_file(path: Path) -> tuple[int, bool]:
    """Open the lock file, or make it with mode 0644; returns (descriptor, writable).

    Raises LeaseError if it is unsafe or cannot be had.
    A file that we may only read, such as one made by root, can be locked all the same.
    """
    _refuse_open_folder(path)
    for _ in range(_ATTEMPTS):
        # Two steps instead of one O_CREAT: where the kernel protects sticky folders (fs.protected_regular),
        # O_CREAT on somebody else's file is a bare EACCES, and our own message below says more.
        opened = _open_existing(path)
        if opened is None:
            try:
                opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o644), True
            except FileExistsError:
                continue
            except OSError as error:
                raise _unopenable(path, error) from error
        try:
            _refuse_unsafe(path, os.fstat(opened[0]))
        except BaseException:
            os.close(opened[0])
            raise
        return opened
    raise LeaseError(
        f"lease file {path}",
        expected="a file that stays while it is opened",
        found=f"it made and removed by somebody else {_ATTEMPTS} times in a row",
        mend="Find what removes lock files in this folder and stop it.",
    )


def still_there(path: Path, fd: int) -> bool:
    """Whether ``path`` still names the very file that ``fd`` has open."""
    try:
        named = os.lstat(path)
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(fd))


def _open_existing(path: Path) -> tuple[int, bool] | None:
    """An open descriptor, or ``None`` where there is no file."""
    try:
        before = os.lstat(path)
        # Looked at before it is opened, because opening a device can already do something.
        if not stat.S_ISREG(before.st_mode):
            raise _not_regular(path, before)
        try:
            return os.open(path, os.O_RDWR | _FLAGS), True
        except PermissionError:
            return os.open(path, os.O_RDONLY | _FLAGS), False
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unopenable(path, error) from error


def _refuse_open_folder(path: Path) -> None:
    try:
        folder = os.stat(path.parent)
    except OSError as error:
        raise _unopenable(path, error) from error
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        raise LeaseError(
            f"lease folder {path.parent}",
            expected="the sticky bit on a folder where everybody may write",
            found=f"mode {stat.S_IMODE(folder.st_mode):04o}: anybody may replace the lock file",
            mend=f"Run chmod +t {path.parent}, or set lease = to a file in another folder.",
        )


def _refuse_unsafe(path: Path, seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode):
        raise _not_regular(path, seen)
    if seen.st_uid not in (os.geteuid(), 0):
        raise LeaseError(
            f"lease file {path}",
            expected=f"a file of this user (uid {os.geteuid()}) or of root",
            found=f"a file of uid {seen.st_uid}, who could replace it at any time",
            mend="Let root make the file once for all users, or set lease = to a file of your own.",
        )
    if seen.st_nlink > 1:
        raise LeaseError(
            f"lease file {path}",
            expected="a file with one name",
            found=f"{seen.st_nlink} hard links to it",
            mend="Find out who linked it, and remove it while nothing holds the lease.",
        )


def _not_regular(path: Path, seen: os.stat_result) -> LeaseError:
    kinds = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"))
    return LeaseError(
        f"lease file {path}",
        expected="a regular file",
        found=next((name for test, name in kinds if test(seen.st_mode)), "a device or a socket"),
        mend="Find out who put it there, and remove it.",
    )


def _unopenable(path: Path, error: OSError) -> LeaseError:
    return LeaseError(
        f"lease file {path}",
        expected="a file that can be opened or made",
        found=error.strerror or str(error),
        mend="Make the folder writable, or set lease = in parity.toml to a file that this user may write.",
    )

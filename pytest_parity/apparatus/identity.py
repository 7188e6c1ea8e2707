"""What machine this is, and what code: the facts a receipt needs to say where its numbers come from.

Everything is read from the kernel, nothing is run. ``None`` is unknown. The host's name is only ever a
digest: it tells two machines apart and, being short and guessable, is a pseudonym rather than a secret.
"""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_parity.errors import ConfigurationError, NothingCompared

from .procfs import read_bytes, read_text

__all__ = ["MachineIdentity", "code_digest", "machine_identity"]


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """One machine as seen by this process.

    ``affinity``: the logical CPUs this process may use. ``governors``: the distinct frequency governors of
    all CPUs. ``boost``: whether turbo frequencies are allowed. ``virtualisation``: a hint such as
    ``hypervisor`` or ``container``, ``None`` where nothing points to one. ``host``: 16 hex digits of a
    digest of the host's name.
    """

    cpu_model: str | None
    architecture: str
    logical_cpus: int | None
    affinity: tuple[int, ...] | None
    kernel: str
    libc: str | None
    python: str
    memory_bytes: int | None
    host: str
    governors: tuple[str, ...] | None
    boost: bool | None
    virtualisation: str | None


def machine_identity() -> MachineIdentity:
    """Read the identity now; affinity and governors can change while a session runs."""
    uname = os.uname()
    cpuinfo = (read_bytes("/proc/cpuinfo", 1 << 16) or b"").decode("utf-8", "replace")
    return MachineIdentity(
        cpu_model=_cpu_model(cpuinfo),
        architecture=uname.machine,
        logical_cpus=os.cpu_count(),
        affinity=_affinity(),
        kernel=f"{uname.sysname} {uname.release}",
        libc=_libc(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        memory_bytes=_memory(),
        host=hashlib.sha256(b"pytest-parity host\0" + os.fsencode(uname.nodename)).hexdigest()[:16],
        governors=_governors(),
        boost=_boost(),
        virtualisation=_virtualisation(cpuinfo),
    )


def code_digest(folder: Path, suffixes: Iterable[str]) -> str:
    """sha256 over the sorted names and bytes of every file under ``folder`` that ends in one of ``suffixes``.

    Each name and each content carries its length, so that bytes cannot move from one file to the next unseen.
    Links are not followed. Raises NothingCompared where no file matches, ConfigurationError where one is
    unreadable.
    """
    endings = tuple(suffixes)
    names = sorted(_relative_names(folder, endings))
    if not names:
        raise NothingCompared(
            f"code digest of {folder}",
            expected=f"files ending in {', '.join(endings) or 'some suffix'}",
            found="none",
            mend="Name the folder that holds the source.",
        )
    digest = hashlib.sha256()
    for name in names:
        try:
            content = (folder / os.fsdecode(name)).read_bytes()
        except OSError as error:
            raise _unreadable(folder, error) from error
        for part in (name, content):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def _relative_names(folder: Path, endings: tuple[str, ...]) -> Iterable[bytes]:
    def refuse(error: OSError) -> None:
        # os.walk passes over folders that it cannot list: that would be a digest of a part.
        raise _unreadable(folder, error) from error

    for root, _, files in os.walk(folder, onerror=refuse):
        for file in files:
            path = os.path.join(root, file)
            if file.endswith(endings) and stat.S_ISREG(os.lstat(path).st_mode):
                yield os.fsencode(os.path.relpath(path, folder))


def _unreadable(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"code digest of {folder}",
        expected="every file readable",
        found=f"{error.strerror}: {os.fsdecode(error.filename or '')}",
        mend="Correct the folder's name or its permissions.",
    )


def _cpu_model(cpuinfo: str) -> str | None:
    named = re.search(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if named:
        return " ".join(named[1].split())
    # ARM kernels give numbers only.
    parts = [
        re.search(rf"^CPU {word}\s*:\s*(\S+)$", cpuinfo, re.MULTILINE) for word in ("implementer", "part")
    ]
    numbers = [part[1] for part in parts if part]
    return f"implementer {numbers[0]} part {numbers[1]}" if len(numbers) == 2 else None


def _affinity() -> tuple[int, ...] | None:
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except OSError:
        return None


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None


def _memory() -> int | None:
    found = re.search(rb"^MemTotal:\s+(\d+) kB", read_bytes("/proc/meminfo") or b"", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _governors() -> tuple[str, ...] | None:
    texts = (read_text(p) for p in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    return tuple(sorted({text for text in texts if text})) or None


def _boost() -> bool | None:
    allowed = read_text("/sys/devices/system/cpu/cpufreq/boost")
    if allowed in ("0", "1"):
        return allowed == "1"
    forbidden = read_text("/sys/devices/system/cpu/intel_pstate/no_turbo")
    return forbidden == "0" if forbidden in ("0", "1") else None


def _virtualisation(cpuinfo: str) -> str | None:
    hints = []
    if re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE):
        hints.append("hypervisor")
    if any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv")):
        hints.append("container")
    return " and ".join(hints) or None

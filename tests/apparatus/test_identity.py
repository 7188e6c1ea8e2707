"""Machine identity and code digests."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pytest_parity.apparatus.identity import _cpu_model, code_digest, machine_identity
from pytest_parity.errors import ConfigurationError, NothingCompared


def test_identity_of_this_machine() -> None:
    identity = machine_identity()
    assert identity == machine_identity()
    assert identity.affinity == tuple(sorted(os.sched_getaffinity(0)))
    assert identity.memory_bytes is not None and identity.memory_bytes > 1 << 28
    assert identity.kernel.startswith("Linux ")
    assert len(identity.host) == 16
    assert socket.gethostname() not in identity.host
    assert identity.boost in (None, True, False)


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor\t: 0\nmodel name\t: Some  CPU @ 3GHz\n", "Some CPU @ 3GHz"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "implementer 0x41 part 0xd0c"),
        ("CPU part\t: 0xd0c\n", None),
        ("", None),
    ],
)
def test_cpu_model(cpuinfo: str, model: str | None) -> None:
    assert _cpu_model(cpuinfo) == model


def test_code_digest_sees_names_bytes_and_boundaries(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.py").write_bytes(b"12")
    (tmp_path / "b" / "c.py").write_bytes(b"3")
    (tmp_path / "other.txt").write_bytes(b"x")
    first = code_digest(tmp_path, [".py"])
    (tmp_path / "other.txt").write_bytes(b"y")
    assert code_digest(tmp_path, [".py"]) == first
    assert code_digest(tmp_path, [".py", ".txt"]) != first
    (tmp_path / "a.py").write_bytes(b"1")
    (tmp_path / "b" / "c.py").write_bytes(b"23")
    moved = code_digest(tmp_path, [".py"])
    assert moved != first
    (tmp_path / "a.py").rename(tmp_path / "d.py")
    assert code_digest(tmp_path, [".py"]) != moved


def test_nothing_to_digest(tmp_path: Path) -> None:
    with pytest.raises(NothingCompared) as caught:
        code_digest(tmp_path, [".py"])
    assert str(caught.value) == (
        f"code digest of {tmp_path}: expected files ending in .py; found none. Name the folder that holds "
        "the source."
    )


def test_missing_folder_to_digest(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(ConfigurationError) as caught:
        code_digest(folder, [".py"])
    assert str(caught.value) == (
        f"code digest of {folder}: expected every file readable; found No such file or directory: {folder}. "
        "Correct the folder's name or its permissions."
    )

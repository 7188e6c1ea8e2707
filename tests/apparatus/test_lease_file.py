"""Lock files that must not be used, and those that may although they are not ours."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_parity.apparatus.holders import HolderRecord, parse_record
from pytest_parity.apparatus.lease import Lease
from pytest_parity.apparatus.lockfile import default_path
from pytest_parity.errors import ConfigurationError, LeaseError, LeaseUnavailable

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners, which only root may")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device.lock"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A sticky folder that every user can reach, which tmp_path is not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def refusal(path: Path) -> str:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(LeaseError) as caught:
        Lease.acquire("gpu0", path, "decode")
    assert type(caught.value) is LeaseError
    assert sorted(os.listdir("/proc/self/fd")) == before
    return str(caught.value)


def test_default_path_is_per_device() -> None:
    assert default_path("gpu-0.1_a") == Path("/var/tmp/pytest-parity-gpu-0.1_a.lock")


@pytest.mark.parametrize("device", ["", "../etc/passwd", "a/b", ".hidden", "gpu 0", "gpu0\n", "x" * 65])
def test_device_that_is_no_plain_word(device: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Lease.acquire(device, None, "decode")
    assert str(caught.value) == (
        f"lease device {device!r}: expected letters, digits, '.', '_' and '-', at most 64, beginning with a "
        "letter or "
        'digit; found another shape. Name the device in parity.toml as in device = "gpu0".'
    )


def make_link(path: Path) -> None:
    (path.parent / "precious").write_text("kept")
    path.symlink_to(path.parent / "precious")


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (make_link, "a symbolic link"),
        (lambda path: path.symlink_to("nowhere"), "a symbolic link"),
        (Path.mkdir, "a folder"),
        (os.mkfifo, "a named pipe"),
        pytest.param(
            lambda p: os.mknod(p, 0o020600, os.makedev(1, 3)), "a device or a socket", marks=root_only
        ),
    ],
)
def test_anything_but_a_regular_file(path: Path, make: object, found: str) -> None:
    assert callable(make)
    make(path)
    assert refusal(path) == (
        f"lease file {path}: expected a regular file; found {found}. Find out who put it there, and remove "
        "it."
    )
    assert (path.parent / "precious").read_text() == "kept" if make is make_link else True
    assert not (path.parent / "nowhere").exists()


def test_link_planted_between_looking_and_opening(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()
    open_ = os.open

    def planting(name: Path, flags: int, mode: int = 0o777) -> int:
        monkeypatch.setattr(os, "open", open_)
        path.unlink()
        make_link(path)
        return open_(name, flags, mode)

    monkeypatch.setattr(os, "open", planting)
    assert refusal(path) == unopenable(path, "Too many levels of symbolic links")
    assert (path.parent / "precious").read_text() == "kept"


@root_only
def test_file_of_another_user(path: Path) -> None:
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    assert refusal(path) == (
        f"lease file {path}: expected a file of this user (uid 0) or of root; found a file of uid {NOBODY}, "
        "who could replace it at any time. Let root make the file once for all users, or set lease = to a "
        "file of your own."
    )


def test_hard_linked_file(path: Path) -> None:
    path.touch()
    os.link(path, path.parent / "other")
    assert refusal(path) == (
        f"lease file {path}: expected a file with one name; found 2 hard links to it. "
        "Find out who linked it, and remove it while nothing holds the lease."
    )


def test_folder_where_anybody_may_replace_it(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert refusal(folder / "device.lock") == (
        f"lease folder {folder}: expected the sticky bit on a folder where everybody may write; found mode "
        "0777: "
        f"anybody may replace the lock file. Run chmod +t {folder}, or set lease = to a file in another "
        "folder."
    )
    folder.chmod(0o1777)
    Lease.acquire("gpu0", folder / "device.lock", "decode").close()


def unopenable(path: Path, why: str) -> str:
    return (
        f"lease file {path}: expected a file that can be opened or made; found {why}. "
        "Make the folder writable, or set lease = in parity.toml to a file that this user may write."
    )


def test_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "device.lock"
    assert refusal(path) == unopenable(path, "No such file or directory")


@root_only
def test_read_only_folder(open_folder: Path) -> None:
    open_folder.chmod(0o755)
    with as_nobody():
        found = refusal(open_folder / "device.lock")
    assert found == unopenable(open_folder / "device.lock", "Permission denied")


@root_only
def test_file_of_root_serves_every_user(open_folder: Path) -> None:
    """Only readable is enough to lock; the record then stays root's and the number unknown."""
    path = open_folder / "device.lock"
    Lease.acquire("gpu0", path, "by root").close()
    before = path.read_bytes()
    with as_nobody(), Lease.acquire("gpu0", path, "by nobody") as lease:
        assert lease.number is None
        assert lease.unrecorded == "the lock file is not ours to write"
        lease.verify()
    assert path.read_bytes() == before


@root_only
def test_holder_of_another_user_is_named_from_the_lock_table(open_folder: Path) -> None:
    path = open_folder / "device.lock"
    with Lease.acquire("gpu0", path, "by root", session="s-9"):
        path.write_text("")  # no record to read
        path.chmod(0o644)
        with (
            as_nobody(),
            pytest.raises(LeaseUnavailable, match=rf"found it held by pid {os.getpid()} \(.*\), running"),
        ):
            Lease.acquire("gpu0", path, "by nobody")


@pytest.mark.parametrize(
    "content", [b"pid 17\n", b"{}", b"\xff\xfe", b"[1]", b'{"format": "pytest-parity lease 2"}']
)
def test_content_of_another_tool_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with Lease.acquire("gpu0", path, "decode") as lease:
        assert lease.number is None
        assert lease.unrecorded == "the lock file holds content of another tool"
        lease.verify()
    assert path.read_bytes() == content


def test_record_longer_than_before_and_shorter_again(path: Path) -> None:
    Lease.acquire("gpu0", path, "p" * 1000, session="s" * 1000).close()
    assert len(path.read_bytes()) < 4096
    Lease.acquire("gpu0", path, "p").close()
    record = parse_record(path.read_bytes())
    assert record is not None
    assert (record.number, record.purpose, path.read_bytes().count(b"\n")) == (2, "p", 1)


def test_record_cut_off_behind_its_first_line_still_counts(path: Path) -> None:
    record = HolderRecord(1, None, "c", "s", None, "p", 41)
    path.write_bytes(record.to_bytes() + b'er record"}\n')
    with Lease.acquire("gpu0", path, "decode") as lease:
        assert lease.number == 42


def test_full_disk_leaves_a_lease_without_a_number(path: Path) -> None:
    path.touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        lease = Lease.acquire("gpu0", path, "decode")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with lease:
        assert lease.number is None
        assert lease.unrecorded == "the lock file could not be written: File too large"
        lease.verify()

"""A volume that is full, read-only, broken or gone: an exact message, and nothing lost or left half done.

Every fault is tried twice: through the seam, which always runs, and on a real small volume where mounting is
permitted.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evidence_faults import AT, FailingDisk, files_in, log_receipt, measure, receipt

from pytest_parity.errors import StorageFailed
from pytest_parity.evidence import Ledger, ReceiptStore, log_unlogged, verify
from pytest_parity.evidence.disk import DISK

SPACE = "Free some space on that volume and run again; what was published before is untouched."
QUOTA = "Free some of this user's quota and run again; what was published before is untouched."
OTHER = "Choose a folder on a local volume with --receipts, or mend this one."
ACCESS = "Give this user write access to the folder, or choose another with --receipts."
WRITABLE = "Mount the volume writable, or choose another folder with --receipts."
CREATE = "Create the folder, or choose another with --receipts."
KERNEL = "Look for faults of that volume in the kernel's log before anything more is measured."
LIMIT = "Raise this process's limit on file sizes (ulimit -f) and run again."
LINKS = "Receipts need hard links: choose a folder on a file system that has them with --receipts."
POWER = "It is whole, but may not outlive a power cut. "

PUBLISHING: list[tuple[str, int, int, str, str]] = [
    ("open", 1, errno.EROFS, "Read-only file system (EROFS)", WRITABLE),
    ("open", 1, errno.EACCES, "Permission denied (EACCES)", ACCESS),
    ("open", 1, errno.ENOSPC, "No space left on device (ENOSPC)", SPACE),
    ("open", 1, errno.ENOENT, "No such file or directory (ENOENT)", CREATE),
    ("open", 1, errno.EMFILE, "Too many open files (EMFILE)", OTHER),
    ("flock", 1, errno.ENOLCK, "No locks available (ENOLCK)", OTHER),
    ("write", 1, errno.ENOSPC, "No space left on device (ENOSPC)", SPACE),
    ("write", 1, errno.EDQUOT, "Disk quota exceeded (EDQUOT)", QUOTA),
    ("write", 1, errno.EFBIG, "File too large (EFBIG)", LIMIT),
    ("fsync", 1, errno.EIO, "Input/output error (EIO)", KERNEL),
    ("link", 1, errno.EPERM, "Operation not permitted (EPERM)", LINKS),
    ("link", 1, errno.ENOENT, "No such file or directory (ENOENT)", CREATE),
    ("link", 1, errno.ENOSPC, "No space left on device (ENOSPC)", SPACE),
]


@pytest.mark.parametrize(("call", "nth", "number", "found", "mend"), PUBLISHING)
def test_a_refused_receipt_leaves_nothing(
    call: str, nth: int, number: int, found: str, mend: str, tmp_path: Path
) -> None:
    ReceiptStore(tmp_path).publish("before", receipt("before"))
    held = files_in(tmp_path)
    store = ReceiptStore(tmp_path, disk=FailingDisk(call, number, nth=nth, written=7))
    with pytest.raises(StorageFailed) as caught:
        store.publish("r1", receipt("r1"))
    assert str(caught.value) == f"receipt r1: expected a durable write in {tmp_path}; found {found}. {mend}"
    assert files_in(tmp_path) == held
    store.publish("r1", receipt("r1"))  # the fault is over: the same name is free


@pytest.mark.parametrize(("call", "nth"), [("open", 2), ("fsync", 2), ("close", 1)])
def test_a_folder_that_cannot_be_synced_keeps_the_whole_receipt(call: str, nth: int, tmp_path: Path) -> None:
    disk = FailingDisk(call, errno.EIO, nth=nth)
    with pytest.raises(StorageFailed) as caught:
        ReceiptStore(tmp_path, disk=disk).publish("r1", receipt("r1"))
    assert str(caught.value) == (
        f"receipt r1: expected a durable write in {tmp_path}; found Input/output error (EIO). {POWER}{KERNEL}"
    )
    assert files_in(tmp_path) == {"r1.json": receipt("r1")}
    assert verify(tmp_path).unlogged == ("r1",)


def test_a_temporary_that_will_not_go_does_not_undo_the_receipt(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path, disk=FailingDisk("unlink", errno.EIO))
    store.publish("r1", receipt("r1"))
    assert store.names() == ("r1",)
    assert len(files_in(tmp_path)) == 2


def test_an_intent_that_cannot_be_written(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path, disk=FailingDisk("mkdir", errno.ENOSPC))
    with pytest.raises(StorageFailed) as caught:
        store.intend("a1", b"{}\n")
    assert str(caught.value) == (
        f"intent a1: expected a durable write in {tmp_path}; found No space left on device (ENOSPC). {SPACE}"
    )
    assert store.intents() == ()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    root = tmp_path / "file" / "receipts"
    with pytest.raises(StorageFailed) as caught:
        ReceiptStore(root).prepare()
    assert str(caught.value) == (
        f"receipts folder: expected a durable write in {root}; found Not a directory (ENOTDIR). {CREATE}"
    )


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(StorageFailed) as caught:
        ReceiptStore(gone).publish("r1", receipt("r1"))
    assert str(caught.value) == (
        f"receipt r1: expected a durable write in {gone}; found No such file or directory (ENOENT). {CREATE}"
    )
    with pytest.raises(StorageFailed) as caught:
        Ledger(gone).append("verdict", {}, AT)
    assert str(caught.value) == (
        f"log.lock: expected a durable write in {gone}; found No such file or directory (ENOENT). {CREATE}"
    )


APPENDING: list[tuple[str, int, int, str, str, str]] = [
    ("open", 1, errno.EROFS, "log.lock", "Read-only file system (EROFS)", WRITABLE),
    ("flock", 1, errno.EIO, "log.lock", "Input/output error (EIO)", KERNEL),
    ("open", 2, errno.EACCES, "log.jsonl", "Permission denied (EACCES)", ACCESS),
    ("write", 1, errno.ENOSPC, "log.jsonl entry 3", "No space left on device (ENOSPC)", SPACE),
    ("fsync", 1, errno.EIO, "log.jsonl entry 3", "Input/output error (EIO)", KERNEL),
]


@pytest.mark.parametrize(("call", "nth", "number", "thing", "found", "mend"), APPENDING)
def test_a_refused_entry_leaves_the_log_as_it_was(
    call: str, nth: int, number: int, thing: str, found: str, mend: str, tmp_path: Path
) -> None:
    measure(tmp_path, "r1", DISK)
    held = files_in(tmp_path)
    with pytest.raises(StorageFailed) as caught:
        Ledger(tmp_path, disk=FailingDisk(call, number, nth=nth, written=50)).append("verdict", {}, AT)
    assert str(caught.value) == f"{thing}: expected a durable write in {tmp_path}; found {found}. {mend}"
    assert files_in(tmp_path) == held
    assert Ledger(tmp_path).append("verdict", {}, AT).n == 3
    assert verify(tmp_path).whole


def test_a_refused_first_entry_leaves_an_empty_log(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="^log.jsonl entry 1: "):
        Ledger(tmp_path, disk=FailingDisk("write", errno.ENOSPC, written=50)).append("verdict", {}, AT)
    assert (tmp_path / "log.jsonl").read_bytes() == b""
    assert Ledger(tmp_path).append("verdict", {}, AT).n == 1


def test_a_refused_withdrawal_is_recovered_by_the_next_append(tmp_path: Path) -> None:
    class Worse(FailingDisk):
        def truncate(self, fd: int, length: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    measure(tmp_path, "r1", DISK)
    with pytest.raises(StorageFailed, match=r"found No space left on device \(ENOSPC\)"):
        Ledger(tmp_path, disk=Worse("write", errno.ENOSPC, written=50)).append("verdict", {}, AT)
    found = verify(tmp_path)
    assert (found.intact, found.whole, found.torn) == (True, False, 50)
    assert Ledger(tmp_path).append("verdict", {}, AT).n == 4, "3 tells of the recovery"
    assert verify(tmp_path).whole


def test_a_recovery_that_is_refused_loses_nothing(tmp_path: Path) -> None:
    measure(tmp_path, "r1", DISK)
    with open(tmp_path / "log.jsonl", "ab") as log:
        log.write(b"torn")
    held = files_in(tmp_path)
    with pytest.raises(StorageFailed) as caught:
        Ledger(tmp_path, disk=FailingDisk("write", errno.ENOSPC, written=2)).append("verdict", {}, AT)
    assert str(caught.value) == (
        f"log.torn-3: expected a durable write in {tmp_path}; found No space left on device (ENOSPC). {SPACE}"
    )
    assert files_in(tmp_path) == held
    with pytest.raises(StorageFailed, match="^log.jsonl: "):
        Ledger(tmp_path, disk=FailingDisk("truncate", errno.EIO)).append("verdict", {}, AT)
    assert (tmp_path / "log.torn-3").read_bytes() == b"torn"
    assert Ledger(tmp_path).append("verdict", {}, AT).n == 4
    assert verify(tmp_path).whole
    assert not (tmp_path / "log.torn-4").exists(), "the same bytes are kept once"


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    """The kernel itself refuses here, in the middle of the bytes, and no mount is needed."""
    script = (
        "import resource, sys; from pathlib import Path; from pytest_parity.evidence import ReceiptStore\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: ReceiptStore(Path(sys.argv[1])).publish('r1', b'x' * 5000)\n"
        "except Exception as error: print(error)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == (
        f"receipt r1: expected a durable write in {tmp_path}; found File too large (EFBIG). {LIMIT}\n"
    ), done.stderr
    assert not files_in(tmp_path)


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A real volume of 128 KiB; its faults are also tried through the seam, where nothing is skipped."""
    folder = tmp_path / "volume"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here; the same faults ran through the seam")
    if done.returncode != 0:
        pytest.skip(f"mounting is not permitted here ({done.stderr.strip()}); the seam's tests ran")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _until_refused(step: Callable[[int], object]) -> tuple[int, str]:
    for number in range(1, 1000):
        try:
            step(number)
        except StorageFailed as error:
            return number, str(error)
    raise AssertionError("the volume never filled up")


def test_a_full_volume_refuses_a_receipt(small_volume: Path) -> None:
    store, ledger = ReceiptStore(small_volume), Ledger(small_volume)
    number, said = _until_refused(
        lambda number: log_receipt(ledger, f"r{number}", store.publish(f"r{number}", receipt(f"r{number}")))
    )
    assert said == (
        f"receipt r{number}: expected a durable write in {small_volume}; found No space left on device "
        f"(ENOSPC). {SPACE}"
    )
    assert len(store.names()) == number - 1 > 5
    assert all(store.read(name) == receipt(name) for name in store.names())
    assert verify(small_volume).whole
    assert not [name for name in files_in(small_volume) if ".tmp-" in name]


def test_a_full_volume_refuses_an_entry(small_volume: Path) -> None:
    ledger = Ledger(small_volume)
    number, said = _until_refused(lambda number: ledger.append("verdict", {"pad": "x" * 3000}, AT))
    assert said == (
        f"log.jsonl entry {number}: expected a durable write in {small_volume}; found No space left on "
        f"device (ENOSPC). {SPACE}"
    )
    found = verify(small_volume)
    assert found.whole
    assert found.lines == number - 1 > 20


def test_space_that_comes_back_is_used(small_volume: Path) -> None:
    store, ledger = ReceiptStore(small_volume), Ledger(small_volume)
    ledger.append("verdict", {"pad": "x" * 3500}, AT)
    ballast = small_volume / "ballast"
    with pytest.raises(OSError, match="No space left"), open(ballast, "wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)
    with pytest.raises(StorageFailed):
        ledger.append("verdict", {"pad": "x" * 3500}, AT)
    assert verify(small_volume).whole
    ballast.unlink()
    log_receipt(ledger, "r1", store.publish("r1", receipt("r1")))
    assert verify(small_volume).lines == 2


def test_a_read_only_volume(small_volume: Path) -> None:
    store, ledger = ReceiptStore(small_volume), Ledger(small_volume)
    log_receipt(ledger, "r1", store.publish("r1", receipt("r1")))
    subprocess.run(["mount", "-o", "remount,ro", str(small_volume)], check=True)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("receipt r2", lambda: store.publish("r2", receipt("r2"))),
        ("intent r2", lambda: store.intend("r2", receipt("r2"))),
        ("log.lock", lambda: ledger.append("verdict", {}, AT)),
        ("log.lock", lambda: log_unlogged(ledger, AT)),
    ]
    for thing, call in refused:
        with pytest.raises(StorageFailed) as caught:
            call()
        assert str(caught.value) == (
            f"{thing}: expected a durable write in {small_volume}; found Read-only file system (EROFS). "
            f"{WRITABLE}"
        )
    assert store.read("r1") == receipt("r1")
    assert verify(small_volume).whole, "reading needs no right to write"

"""The lease against real processes: other tools, children, kills. Unsafe files are in test_lease_file.py."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_parity.apparatus.lease import Lease, acquire_all, session_lock
from pytest_parity.errors import ConfigurationError, LeaseError, LeaseUnavailable

SINCE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
MEND = " Wait until it is free or end that process, then run again. Removing the file frees nothing."


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device.lock"


def wait_until_held(path: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if path.exists():
            with path.open("rb") as probe:
                try:
                    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
        time.sleep(0.01)
    raise AssertionError("nobody took the lock")


@contextmanager
def running(*argv: str, pass_fds: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(argv, pass_fds=pass_fds, start_new_session=True, stdout=subprocess.PIPE)
    try:
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_record_and_number(path: Path) -> None:
    with Lease.acquire("gpu0", path, "decode", session="s-1") as lease:
        record = json.loads(path.read_text())
        assert lease.number == 1
        assert lease.unrecorded is None
        assert lease.device_id == (path.stat().st_dev, path.stat().st_ino)
        assert record["pid"] == os.getpid()
        assert record["session"] == "s-1"
        assert record["purpose"] == "decode"
        assert record["number"] == 1
        assert record["since"].endswith("Z")
        assert path.stat().st_mode & 0o777 == 0o644
        lease.verify()
    with Lease.acquire("gpu0", path, "decode") as lease:
        assert lease.number == 2
        assert not os.get_inheritable(lease.fd)


def test_taken_twice_by_ourselves_names_ourselves(path: Path) -> None:
    with Lease.acquire("gpu0", path, "first", session="s-1"), pytest.raises(LeaseUnavailable) as caught:
        Lease.acquire("gpu0", path, "second")
    record = json.loads(path.read_text())
    assert str(caught.value) == (
        f"lease of gpu0 ({path}): expected nobody to hold it; found it held by pid {os.getpid()} "
        f"({record['command']}) since {record['since']}, session s-1, lease number 1.{MEND}"
    )


def test_held_by_util_linux_flock(path: Path) -> None:
    with running("flock", "--no-fork", str(path), "sleep", "60") as other:
        wait_until_held(path)
        with pytest.raises(LeaseUnavailable) as caught:
            Lease.acquire("gpu0", path, "decode")
    assert re.fullmatch(
        re.escape(
            f"lease of gpu0 ({path}): expected nobody to hold it; found it held by pid {other.pid} (sleep 60)"
        )
        + f", running since {SINCE}\\."
        + re.escape(MEND),
        str(caught.value),
    )
    with Lease.acquire("gpu0", path, "decode") as lease:  # the empty file that flock made is as good as ours
        assert lease.number == 1


def test_stale_record_of_a_living_process_is_not_blamed(path: Path) -> None:
    Lease.acquire("gpu0", path, "decode").close()  # our record stays behind, and we live
    with running("flock", "--no-fork", str(path), "sleep", "60") as other:
        wait_until_held(path)
        with pytest.raises(
            LeaseUnavailable, match=rf"found it held by pid {other.pid} \(sleep 60\), running since"
        ):
            Lease.acquire("gpu0", path, "decode")


def test_keeps_util_linux_flock_out(path: Path) -> None:
    attempt = ["flock", "-n", str(path), "true"]
    with Lease.acquire("gpu0", path, "decode"):
        assert subprocess.run(attempt, check=False).returncode == 1
    assert subprocess.run(attempt, check=False).returncode == 0


def test_inherited_lease_survives_closing(path: Path) -> None:
    lease = Lease.acquire("gpu0", path, "decode")
    with running("sleep", "60", pass_fds=(lease.fd,)) as engine:
        lease.close()
        lease.close()
        with pytest.raises(LeaseUnavailable) as caught:
            Lease.acquire("gpu0", path, "decode")
        assert re.search(
            rf"found it held by pid {engine.pid} \(sleep 60\), running since {SINCE}; "
            rf"inherited from pid {os.getpid()} with lease number 1\. Wait",
            str(caught.value),
        )
    Lease.acquire("gpu0", path, "decode").close()


ORPHANING = """
import subprocess, sys, time
from pathlib import Path
from pytest_parity.apparatus.lease import Lease
lease = Lease.acquire("gpu0", Path(sys.argv[1]), "decode")
child = subprocess.Popen(["sleep", "60"], pass_fds=[lease.fd])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_heir_of_a_killed_holder_is_named(path: Path) -> None:
    with running(sys.executable, "-c", ORPHANING, str(path)) as holder:
        assert holder.stdout is not None
        heir = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        with pytest.raises(LeaseUnavailable) as caught:
            Lease.acquire("gpu0", path, "decode")
    assert re.search(
        rf"found it held by pid {heir} \(sleep 60\), running since {SINCE}; "
        rf"inherited from pid {holder.pid} with lease number 1, which has ended\. Wait",
        str(caught.value),
    )


def test_closed_lease_has_no_descriptor(path: Path) -> None:
    lease = Lease.acquire("gpu0", path, "decode")
    lease.close()
    with pytest.raises(LeaseError) as caught:
        _ = lease.fd
    assert str(caught.value) == (
        "lease of gpu0: expected a lease that is held; found it closed. Acquire it again before starting an "
        "engine."
    )


def lost(lease: Lease, found: str) -> str:
    return (
        f"lease of gpu0 ({lease.path}): expected it still held since {lease.taken_at}; found {found}. "
        "Void what was measured since, find who touches the lock file, and start again."
    )


def test_unlocked_through_a_copy_is_noticed_and_not_taken_back(path: Path) -> None:
    with Lease.acquire("gpu0", path, "decode") as lease:
        copy = os.dup(lease.fd)
        fcntl.flock(copy, fcntl.LOCK_UN)
        os.close(copy)
        for _ in range(2):
            with pytest.raises(LeaseError) as caught:
                lease.verify()
            assert str(caught.value) == lost(lease, "no lock on our descriptor: somebody unlocked it")


@pytest.mark.parametrize("replaced", [True, False])
def test_file_replaced_under_us_is_noticed(path: Path, replaced: bool) -> None:
    with Lease.acquire("gpu0", path, "decode") as lease:
        path.unlink()
        if replaced:
            path.touch()
        with pytest.raises(LeaseError) as caught:
            lease.verify()
        assert str(caught.value) == lost(
            lease, "the file removed or replaced: others may have taken the device since"
        )


def test_file_replaced_between_opening_and_locking(path: Path) -> None:
    """Against a process that keeps replacing the file: a lease, or the error of the bounded retry."""
    script = """
import os, sys
while True:
    open(sys.argv[1] + ".new", "w").close()
    os.replace(sys.argv[1] + ".new", sys.argv[1])
"""
    taken = 0
    before = len(os.listdir("/proc/self/fd"))
    with running(sys.executable, "-c", script, str(path)):
        for _ in range(300):
            try:
                Lease.acquire("gpu0", path, "decode").close()
                taken += 1
            except LeaseError as error:
                assert type(error) is LeaseError
                assert "replaced 20 times in a row" in str(error)
    assert taken
    assert len(os.listdir("/proc/self/fd")) == before


def test_file_replaced_once_is_opened_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def replacing(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        path.touch()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replacing)
    with Lease.acquire("gpu0", path, "decode") as lease:
        assert lease.device_id == (path.stat().st_dev, path.stat().st_ino)
        lease.verify()


def test_holder_of_a_file_that_was_replaced_does_not_matter(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our opening and locking, the file that somebody holds is moved away."""
    flock = fcntl.flock

    def replacing(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.rename(path.with_suffix(".old"))
        flock(fd, operation)

    with running("flock", "--no-fork", str(path), "sleep", "60"):
        wait_until_held(path)
        monkeypatch.setattr(fcntl, "flock", replacing)
        with Lease.acquire("gpu0", path, "decode") as lease:
            lease.verify()


def test_file_replaced_every_time_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def replacing(fd: int, operation: int) -> None:
        path.unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replacing)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LeaseError) as caught:
        Lease.acquire("gpu0", path, "decode")
    assert str(caught.value) == (
        f"lease file {path}: expected a file that stays in place while it is locked; found it replaced 20 "
        "times in a row. Find what removes lock files in this folder and stop it."
    )
    assert len(os.listdir("/proc/self/fd")) == before


CONTENDER = """
import os, random, sys, time
from pathlib import Path
from pytest_parity.apparatus.lease import Lease
from pytest_parity.errors import LeaseUnavailable
lock, inside, numbers = map(Path, sys.argv[1:])
log = os.open(numbers, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
me = str(os.getpid())
while True:
    try:
        lease = Lease.acquire("gpu0", lock, "stress")
    except LeaseUnavailable:
        time.sleep(random.random() * 0.01)
        continue
    inside.write_text(me)
    time.sleep(random.random() * 0.001)
    assert inside.read_text() == me, "two holders"
    os.write(log, f"{lease.number}\\n".encode())
    lease.close()
"""


def test_never_two_holders_among_killed_processes(path: Path, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    argv = [sys.executable, "-c", CONTENDER, str(path), str(tmp_path / "inside"), str(numbers)]
    chance = random.Random(7)
    crowd = [subprocess.Popen(argv, stderr=subprocess.PIPE) for _ in range(8)]
    complaints = []
    deadline = time.monotonic() + 6
    kills = 0
    while time.monotonic() < deadline:
        time.sleep(chance.random() * 0.15)
        victim = chance.randrange(len(crowd))
        crowd[victim].kill()
        complaints.append(crowd[victim].communicate()[1])
        kills += 1
        crowd[victim] = subprocess.Popen(argv, stderr=subprocess.PIPE)
    for process in crowd:
        process.kill()
        complaints.append(process.communicate()[1])
    assert [text for text in complaints if text] == []
    seen = [int(line) for line in numbers.read_text().split()]
    # Each number once and in order; those that are missing belong to killed holders.
    assert seen == sorted(set(seen))
    assert len(seen) > 200
    assert kills > 20
    Lease.acquire("gpu0", path, "afterwards").close()


def test_all_devices_or_none(tmp_path: Path) -> None:
    paths: dict[str, Path | None] = {name: tmp_path / f"{name}.lock" for name in ("gpu1", "gpu0", "gpu2")}
    with acquire_all(paths, "decode") as leases:
        assert [lease.device for lease in leases.leases] == ["gpu0", "gpu1", "gpu2"]
        assert len(set(leases.fds)) == 3
        leases.verify()
    with Lease.acquire("gpu1", paths["gpu1"], "decode"):
        with pytest.raises(LeaseUnavailable, match="lease of gpu1"):
            acquire_all(paths, "decode")
        Lease.acquire("gpu0", paths["gpu0"], "decode").close()


@pytest.mark.parametrize(
    ("names", "found"), [((), "no device"), (("gpu0", "gpu1"), "two devices with one lock file")]
)
def test_nothing_or_one_file_for_two_devices(path: Path, names: tuple[str, ...], found: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        acquire_all(dict.fromkeys(names, path), "decode")
    assert str(caught.value) == (
        "leases of several devices: expected one device or more, each with a lock file of its own; "
        f"found {found}. Correct device = and lease = in parity.toml."
    )


def test_session_lock_waits_for_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "session.lock"
    script = (
        "import sys, time; from pathlib import Path; from pytest_parity.apparatus.lease import session_lock\n"
        "with session_lock(Path(sys.argv[1])): print('in', flush=True); time.sleep(0.5)"
    )
    with running(sys.executable, "-c", script, str(path)) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LeaseError) as caught, session_lock(path, timeout_s=0.1):
            pass
        assert str(caught.value) == (
            f"session lock {path}: expected its turn within 0.1 s; found another worker of this session "
            "still measuring. Wait for that worker, or end it."
        )
        start = time.monotonic()
        with session_lock(path):
            assert time.monotonic() - start > 0.1


def test_session_lock_in_a_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "a file" / "session.lock"
    path.parent.touch()
    with pytest.raises(LeaseError) as caught, session_lock(path):
        pass
    assert re.fullmatch(
        re.escape(f"session lock {path}: expected a file that can be locked; found ")
        + r"\[Errno \d+\] .*\. Make the session's folder writable\.",
        str(caught.value),
    )

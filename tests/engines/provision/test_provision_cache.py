"""A thing in the cache is whole or absent; two that ask at once make it once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from filelock import FileLock
from provision_support import silent

from pytest_parity.engines.provision.cache import cache_root, place
from pytest_parity.engines.provision.errors import CacheUnusable


def test_root_follows_xdg() -> None:
    assert cache_root({"XDG_CACHE_HOME": "/somewhere", "HOME": "/h"}) == Path("/somewhere/pytest-parity")
    assert cache_root({"HOME": "/h"}) == Path("/h/.cache/pytest-parity")


def test_relative_xdg_is_ignored() -> None:
    assert cache_root({"XDG_CACHE_HOME": "here", "HOME": "/h"}) == Path("/h/.cache/pytest-parity")


def test_made_once_and_then_found(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(work: Path) -> None:
        made.append(work)
        (work / "thing").write_text("whole")

    for _ in range(2):
        assert place(tmp_path / "kind" / "a", make, report=silent) == tmp_path / "kind" / "a"
    assert len(made) == 1
    assert (tmp_path / "kind" / "a" / "thing").read_text() == "whole"
    assert made[0].parent == tmp_path / "kind"
    assert not made[0].exists()


def test_half_made_is_not_taken(tmp_path: Path) -> None:
    def break_off(work: Path) -> None:
        (work / "half").write_text("half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        place(tmp_path / "a", break_off, report=silent)
    assert not (tmp_path / "a").exists()
    assert list(tmp_path.glob(".a.partial-*")) == []


def test_leftovers_of_a_killed_process_are_removed_and_never_taken(tmp_path: Path) -> None:
    leftover = tmp_path / ".a.partial-xyz"
    leftover.mkdir()
    (leftover / "half").write_text("half")
    place(tmp_path / "a", lambda work: (work / "whole").touch(), report=silent)
    assert not leftover.exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["whole"]


def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    inside = threading.Event()
    go_on = threading.Event()
    made: list[str] = []
    said: list[str] = []

    def slow(work: Path) -> None:
        inside.set()
        assert go_on.wait(10)
        (work / "by-first").touch()
        made.append("first")

    def second(work: Path) -> None:
        made.append("second")

    def waiting(line: str) -> None:
        said.append(line)
        go_on.set()

    first = threading.Thread(target=place, args=(tmp_path / "a", slow), kwargs={"report": silent})
    first.start()
    assert inside.wait(10)
    place(tmp_path / "a", second, report=waiting)
    first.join(10)
    assert made == ["first"]
    assert said == [f"waiting for another process that is making {tmp_path / 'a'}"]
    assert (tmp_path / "a" / "by-first").is_file()


def test_lock_that_stays_held(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".a.lock"), pytest.raises(CacheUnusable) as caught:
        place(tmp_path / "a", lambda work: None, report=silent, lock_limit_s=0.05)
    assert str(caught.value) == (
        f"{tmp_path / 'a'}: expected the lock {tmp_path / '.a.lock'} to become free within 0.05 s; "
        "found another process that still holds it. "
        "Wait for that process, or end it, and run the command again."
    )


def test_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "kind").touch()
    with pytest.raises(CacheUnusable) as caught:
        place(tmp_path / "kind" / "a", lambda work: None, report=silent)
    assert str(caught.value) == (
        f"{tmp_path / 'kind'}: expected a cache folder that can be written; "
        f"found FileExistsError: [Errno 17] File exists: '{tmp_path / 'kind'}'. "
        "Free some space, mend its permissions, or set XDG_CACHE_HOME to another folder."
    )


def test_full_disk(tmp_path: Path) -> None:
    def fill(work: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CacheUnusable) as caught:
        place(tmp_path / "a", fill, report=silent)
    assert str(caught.value) == (
        f"{tmp_path / 'a'}: expected a cache folder that can be written; "
        "found OSError: [Errno 28] No space left on device. "
        "Free some space, mend its permissions, or set XDG_CACHE_HOME to another folder."
    )
    assert not (tmp_path / "a").exists()

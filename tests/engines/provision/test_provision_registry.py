"""Fetching a pinned file: by digest, from pip's index only, with clear words when that can't be done."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from provision_support import FakeRunner, no_run, silent, tarball

from pytest_parity.engines.provision import registry
from pytest_parity.engines.provision.commands import Finished
from pytest_parity.engines.provision.errors import DigestMismatch, RegistryUnavailable, ToolMissing
from pytest_parity.engines.provision.pins import PackageFile

CONTENT = b"a source package"
PACKAGE = PackageFile(
    project="some-engine",
    version="1.2",
    kind="sdist",
    filename="some_engine-1.2.tar.gz",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    backend="some_backend.build",
)

OFFLINE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/some-engine/",
    "ERROR: Could not find a version that satisfies the requirement some-engine==1.2 (from versions: none)",
    "ERROR: No matching distribution found for some-engine==1.2",
)


def serving(content: bytes) -> FakeRunner:
    """A pip that leaves these bytes in the asked folder."""

    def answer(argv: Sequence[str]) -> Finished:
        folder = Path(argv[list(argv).index("--dest") + 1])
        (folder / PACKAGE.filename).write_bytes(content)
        return Finished(0, ("Successfully downloaded some-engine",))

    return FakeRunner(answer)


def place_of(root: Path) -> Path:
    return root / "packages" / PACKAGE.sha256 / PACKAGE.filename


def test_fetched_once_and_then_reused(tmp_path: Path) -> None:
    pip = serving(CONTENT)
    for _ in range(2):
        path = registry.fetch(PACKAGE, root=tmp_path, report=silent, run=pip)
        assert path == place_of(tmp_path)
        assert path.read_bytes() == CONTENT
    assert len(pip.calls) == 1


def test_pip_is_asked_for_the_pinned_digest_and_runs_no_foreign_backend(tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    def answer(argv: Sequence[str]) -> Finished:
        requirements = Path(argv[list(argv).index("--requirement") + 1])
        seen["requirements"] = requirements.read_text()
        backend = requirements.parent / "backend" / "some_backend" / "build.py"
        seen["backend"] = backend.read_text()
        folder = Path(argv[list(argv).index("--dest") + 1])
        (folder / PACKAGE.filename).write_bytes(CONTENT)
        return Finished(0, ())

    pip = FakeRunner(answer)
    registry.fetch(PACKAGE, root=tmp_path, report=silent, run=pip)
    assert pip.calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    for option in ("--no-deps", "--require-hashes", "--no-build-isolation", "--no-binary=:all:"):
        assert option in pip.calls[0]
    assert seen["requirements"] == f"some-engine==1.2 --hash=sha256:{PACKAGE.sha256}\n"
    assert "prepare_metadata_for_build_wheel" in seen["backend"]
    environment = pip.environments[0]
    assert environment is not None
    assert environment["PYTHONPATH"].endswith("backend")


def test_wheel_needs_no_backend(tmp_path: Path) -> None:
    wheel = dataclasses.replace(PACKAGE, kind="wheel", backend=None)
    pip = serving(CONTENT)
    registry.fetch(wheel, root=tmp_path, report=silent, run=pip)
    assert "--only-binary=:all:" in pip.calls[0]


def test_stand_in_backend_hands_over_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry._write_backend(PACKAGE, tmp_path / "stub")
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: some-engine\nVersion: 1.2\n\nText.\n")
    (tmp_path / "meta").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "stub")
    backend = importlib.import_module("some_backend.build")
    assert backend.get_requires_for_build_wheel() == []
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path / "meta"))
    assert name == "some_engine-1.2.dist-info"
    assert (tmp_path / "meta" / name / "METADATA").read_text() == (tmp_path / "PKG-INFO").read_text()


def test_wrong_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DigestMismatch) as caught:
        registry.fetch(PACKAGE, root=tmp_path, report=silent, run=serving(b"other bytes"))
    assert str(caught.value) == (
        f"some_engine-1.2.tar.gz: expected sha256 {PACKAGE.sha256}; "
        f"found sha256 {hashlib.sha256(b'other bytes').hexdigest()}. "
        "The index serves other bytes than those that were pinned: do not use them; find out why."
    )
    assert not place_of(tmp_path).exists()


def test_wrong_bytes_that_pip_refuses_itself(tmp_path: Path) -> None:
    tail = (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. ...",
        f"        Expected sha256 {PACKAGE.sha256}",
        f"             Got        {'b' * 64}",
        "",
    )
    with pytest.raises(DigestMismatch) as caught:
        registry.fetch(PACKAGE, root=tmp_path, report=silent, run=FakeRunner(lambda _: Finished(1, tail)))
    assert str(caught.value) == (
        f"some_engine-1.2.tar.gz: expected sha256 {PACKAGE.sha256}; found sha256 {'b' * 64}. "
        "The index serves other bytes than those that were pinned: do not use them; find out why."
    )


def test_offline_index(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnavailable) as caught:
        registry.fetch(PACKAGE, root=tmp_path, report=silent, run=FakeRunner(lambda _: Finished(1, OFFLINE)))
    assert str(caught.value) == (
        "sdist some-engine==1.2: expected the package index that pip is configured for to serve it; "
        f"found pip download: exit status 1: {OFFLINE[0]}. "
        "Go online or configure pip's index, or put some_engine-1.2.tar.gz at "
        f"{place_of(tmp_path)} by hand."
    )
    assert not place_of(tmp_path).parent.exists()


@pytest.mark.parametrize(
    ("finished", "found"),
    [
        (Finished(1, OFFLINE[1:]), f"exit status 1: {OFFLINE[1]}"),
        (Finished(None, ()), "it ran past its time limit and was ended: pip said nothing"),
        (Finished(-9, ("Collecting",)), "it was ended by signal SIGKILL: Collecting"),
        (Finished(0, ("Saved elsewhere",)), "exit status 0: Saved elsewhere"),
    ],
)
def test_other_ends_of_pip(tmp_path: Path, finished: Finished, found: str) -> None:
    with pytest.raises(RegistryUnavailable) as caught:
        registry.fetch(PACKAGE, root=tmp_path, report=silent, run=FakeRunner(lambda _: finished))
    assert f"; found pip download: {found}. Go online" in str(caught.value)


def test_file_put_there_by_hand_is_taken(tmp_path: Path) -> None:
    place_of(tmp_path).parent.mkdir(parents=True)
    place_of(tmp_path).write_bytes(CONTENT)
    found = registry.fetch(PACKAGE, root=tmp_path, report=silent, run=FakeRunner(no_run))
    assert found == place_of(tmp_path)


def test_cached_file_that_was_changed(tmp_path: Path) -> None:
    place_of(tmp_path).parent.mkdir(parents=True)
    place_of(tmp_path).write_bytes(b"changed")
    with pytest.raises(DigestMismatch) as caught:
        registry.fetch(PACKAGE, root=tmp_path, report=silent, run=FakeRunner(no_run))
    assert str(caught.value) == (
        f"{place_of(tmp_path)}: expected sha256 {PACKAGE.sha256}; "
        f"found sha256 {hashlib.sha256(b'changed').hexdigest()}. "
        f"Delete the folder {place_of(tmp_path).parent} and run the command again."
    )


def test_empty_folder_in_the_cache(tmp_path: Path) -> None:
    place_of(tmp_path).parent.mkdir(parents=True)
    with pytest.raises(DigestMismatch, match="found no such file in its folder"):
        registry.fetch(PACKAGE, root=tmp_path, report=silent, run=FakeRunner(no_run))


def test_interpreter_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolMissing) as caught:
        registry.fetch(PACKAGE, root=tmp_path, report=silent, run=FakeRunner(no_run))
    assert str(caught.value) == (
        f"pip for some-engine 1.2: expected the interpreter {sys.executable} to have pip, which knows the "
        f"package index; found none. Run `{sys.executable} -m ensurepip`, or put some_engine-1.2.tar.gz at "
        f"{place_of(tmp_path)} by hand."
    )


def test_real_pip_takes_the_stand_in_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The technique itself, without a network: a local folder is pip's whole index."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this interpreter has no pip")
    index = tmp_path / "index"
    index.mkdir()
    archive = index / PACKAGE.filename
    sha256 = tarball(
        archive,
        {
            "some_engine-1.2/PKG-INFO": b"Metadata-Version: 2.1\nName: some-engine\nVersion: 1.2\n",
            "some_engine-1.2/pyproject.toml": (
                b'[build-system]\nrequires = ["not-to-be-had"]\nbuild-backend = "some_backend.build"\n'
            ),
        },
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    package = dataclasses.replace(PACKAGE, sha256=sha256)
    path = registry.fetch(package, root=tmp_path / "cache", report=silent)
    assert path.read_bytes() == archive.read_bytes()
    with pytest.raises(DigestMismatch) as caught:
        registry.fetch(dataclasses.replace(package, sha256="a" * 64), root=tmp_path / "cache", report=silent)
    assert f"found sha256 {sha256}" in str(caught.value)
    with pytest.raises(
        RegistryUnavailable, match=r"found pip download: exit status 1: ERROR: Could not find"
    ):
        registry.fetch(
            dataclasses.replace(package, project="absent-engine", filename="x", sha256="c" * 64),
            root=tmp_path / "cache",
            report=silent,
        )

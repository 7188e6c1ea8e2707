"""A receipts folder that refuses, and two runs that share one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import Project, exact_claim, speed_claim

from pytest_parity.evidence import verify


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small volume of its own, where this may be mounted."""
    place = tmp_path / "volume"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=False, capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("no right to mount a volume")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _nothing_passes(project: Project, *args: str, mode: str = "no-xdist") -> str:
    ran = project.run("-m", "parity", *args, mode=mode)
    assert ran.status != 0
    assert "passed" not in {report.word for report in ran.reports if "claims" in report.nodeid}
    assert "INTERNALERROR" not in ran.out
    assert project.engines() == []
    assert project.lease_is_free()
    return ran.out


def test_a_full_volume_fails_clearly_and_loses_nothing(tmp_path: Path, volume: Path) -> None:
    claims = {"a": exact_claim(), "b": exact_claim(), "c": exact_claim()}
    project = Project(tmp_path / "p", claims=claims)
    folder = volume / "receipts"
    ran = project.run("-m", "parity", f"--receipts={folder}")
    assert ran.status == 1
    assert "INTERNALERROR" not in ran.out
    assert "No space left on device" in ran.out
    assert "Free some space on that volume and run again; what was published before is untouched." in ran.out
    kept = {path.name.split(".")[1] for path in folder.glob("2*.json")}
    passed = {name for name, word in ran.outcomes.items() if word == "passed" and name.endswith(("r1", "r2"))}
    assert passed <= kept
    assert len(passed) < 6
    for name in claims:
        assert (ran.claim(name).word == "passed") == (
            {f"{name}-d64-synthetic-r1", f"{name}-d64-synthetic-r2"} <= passed
        )
    assert verify(folder).intact
    assert project.engines() == []


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_read_only_folder_fails_clearly(tmp_path: Path, volume: Path, mode: str) -> None:
    """The second look of a plan (which reads what is there before it runs) as well."""
    project = Project(tmp_path / "p", claims={"lean": speed_claim(pairs="6+6")})
    subprocess.run(["mount", "-o", "remount,ro", str(volume)], check=True)
    out = _nothing_passes(project, f"--receipts={volume / 'receipts'}", mode=mode)
    assert "Read-only file system" in out
    assert "Mount the volume writable, or choose another folder with --receipts." in out


def test_a_folder_that_is_there_and_read_only_fails_before_anything_starts(
    tmp_path: Path, volume: Path
) -> None:
    project = Project(tmp_path / "p", claims={"same": exact_claim()})
    (volume / "receipts").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(volume)], check=True)
    out = _nothing_passes(project, f"--receipts={volume / 'receipts'}")
    assert "Read-only file system" in out


def test_two_runs_at_once_share_one_folder(tmp_path: Path) -> None:
    """One of them may find the lease taken; the log stays whole, and each tells the truth about its own pairs."""
    project = Project(tmp_path / "one", claims={"same": exact_claim(), "more": exact_claim(depths=[96])})
    other = Project(tmp_path / "other", claims=project.claims)
    (other.root / "parity.toml").write_text(
        (project.root / "parity.toml").read_text().replace("lease.lock", "../one/lease.lock")
    )
    args = ("-m", "parity", f"--receipts={project.folder}")
    with project.started(*args) as first, other.started(*args) as second:
        first.wait(120)
        second.wait(120)
    runs = project.finished(first), other.finished(second)
    assert {ran.status for ran in runs} <= {0, 75}
    for ran in runs:
        lost = [report for report in ran.reports if report.properties.get("parity_cause") == "lease"]
        assert (ran.status == 75) == bool(lost)
        for report in ran.reports:
            if report.word == "passed" and "parity_receipt" in report.properties:
                assert (project.folder / f"{report.properties['parity_receipt']}.json").exists()
    found = verify(project.folder)
    assert found.whole
    assert found.open_intents == ()
    assert len(list(project.folder.glob("2*.json"))) == sum(
        report.word == "passed" for ran in runs for report in ran.reports if "test_matrix" in report.nodeid
    )
    assert os.path.exists(project.root / "lease.lock")

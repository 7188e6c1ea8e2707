"""Other plugins beside this one: reruns are refused, another order is put right, a repeated item is not measured twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import CONFTEST, GENERIC, MODES, Project, exact_claim

REASON = (
    "expected each pair to be measured once; found a plugin that would run it until it passes. "
    "Leave the reruns out of this run: a failed pair is evidence too."
)
FAKE_RERUNS = (
    CONFTEST
    + """

def pytest_addoption(parser):
    parser.addoption("--reruns", type=int)
    parser.addini("reruns", "how often")
"""
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, claims={"same": exact_claim(), "more": exact_claim(depths=[96])})


@pytest.mark.parametrize("mode", MODES)
def test_pairs_are_not_run_under_a_plugin_that_reruns(project: Project, mode: str) -> None:
    (project.root / "conftest.py").write_text(FAKE_RERUNS)
    ran = project.run("-m", "parity", "--reruns", "2", mode=mode)
    assert ran.status == 4
    assert f"parity: parity tests under --reruns 2: {REASON}" in ran.out
    assert not project.folder.exists()


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_pair_that_is_named_is_refused_as_well(project: Project, mode: str) -> None:
    (project.root / "conftest.py").write_text(FAKE_RERUNS)
    ran = project.run("test_matrix.py::test_cell[same-d64-synthetic-r1]", "--reruns", "2", mode=mode)
    assert ran.status == 1
    assert ran.of("same-d64-synthetic-r1").word == "error"
    assert f"parity tests under --reruns 2: {REASON}" in ran.out
    assert not project.intents()


def test_reruns_in_an_ini_file_count_and_none_do_not(project: Project) -> None:
    (project.root / "conftest.py").write_text(FAKE_RERUNS)
    (project.root / "pytest.ini").write_text("[pytest]\nreruns = 3\naddopts = -p no:cacheprovider\n")
    ran = project.run("-m", "parity")
    assert ran.status == 4
    assert "parity tests under --reruns 3: " in ran.out
    (project.root / "pytest.ini").write_text("[pytest]\nreruns = 0\naddopts = -p no:cacheprovider\n")
    ran = project.run("-m", "parity", "--claims", "same", "--reps", "1", "--reruns", "0")
    assert ran.status == 0
    # Other tests may be run again as often as anybody likes.
    ran = project.run("--reruns", "2")
    assert ran.status == 5
    assert "parity items deselected" in ran.out


def test_a_flaky_marker_refuses_its_pairs(project: Project) -> None:
    project.tests = "import pytest\n\n\n@pytest.mark.flaky(reruns=2)\n" + GENERIC
    project.write()
    (project.root / "pytest.ini").write_text("[pytest]\nmarkers = flaky\n")
    ran = project.run("-m", "parity", "--claims", "same")
    assert ran.status == 1
    assert ran.of("same-d64-synthetic-r1").word == "error"
    assert f"parity tests under the marker flaky: {REASON}" in ran.out
    assert ran.claim("same").word == "failed"
    assert not project.intents()


SHUFFLE = """

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.nodeid[::-1], reverse=True)
"""
EXTRA = "\n\ndef test_b():\n    pass\n\n\ndef test_a():\n    pass\n"


@pytest.mark.parametrize("mode", MODES)
def test_another_order_is_put_right(project: Project, mode: str) -> None:
    """The plan's order is fixed before the first pair; other tests keep the order that they were given."""
    project.tests = GENERIC + EXTRA
    project.write()
    (project.root / "conftest.py").write_text(CONFTEST + SHUFFLE)
    ran = project.run("-m", "parity or not parity", "--collect-only", "-q", mode=mode)
    items = [line for line in ran.out.splitlines() if line.startswith("test_matrix.py::")]
    assert items == [
        "test_matrix.py::test_b",
        "test_matrix.py::test_a",
        *[
            f"test_matrix.py::test_cell[{cell}-synthetic-r{rep}]"
            for cell in ("same-d64", "more-d96")
            for rep in (1, 2)
        ],
    ]
    assert ran.status == 0


REPEAT = """

def pytest_generate_tests(metafunc):
    metafunc.fixturenames.append("again")
    metafunc.parametrize("again", range(2))


import pytest


@pytest.fixture
def again(request):
    return request.param
"""


def test_an_item_that_is_repeated_measures_once(project: Project) -> None:
    (project.root / "conftest.py").write_text(CONFTEST + REPEAT)
    ran = project.run("-m", "parity", "--claims", "same", "--reps", "1")
    mine = [report for report in ran.reports if "same-d64" in report.nodeid]
    assert sorted(report.word for report in mine) == ["failed", "passed"]
    assert "A pair runs once in a session: start a new session to measure again." in ran.out
    assert ran.status == 1
    assert len(list(project.folder.glob("2*.json"))) == 1


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_marked_test_without_the_fixture_does_not_vanish(project: Project, mode: str) -> None:
    """It is an ordinary test that is asked for by its marker, and it runs."""
    project.tests = (
        GENERIC + "\n\nimport pytest\n\n\n@pytest.mark.parity\ndef test_marked():\n    assert not 'run'\n"
    )
    project.write()
    ran = project.run("-m", "parity", "--claims", "same", "--reps", "1", mode=mode)
    assert ran.outcomes.get("test_matrix.py::test_marked") == "failed"
    assert ran.status == 1

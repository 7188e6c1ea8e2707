"""What is asked for, what is left out, and which options are refused with which words. Starts no engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project import GENERIC, MODES, Project, exact_claim, speed_claim

OTHER = GENERIC + "\n\ndef test_other():\n    pass\n"
DESELECTED = "parity: 14 parity items deselected; run them with -m parity (they take the accelerator's lease)"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(
        tmp_path_factory.mktemp("selection"),
        claims={
            "same": exact_claim(),
            "speed": speed_claim(),
            "unasked": exact_claim(depths=[64, 96], fixtures=["synthetic", "natural-prose"]),
        },
        tests=OTHER,
        top={"default_claims": ["same", "speed"]},
        gates={"release": ["same"], "nothing": []},
    )


def _untouched(project: Project) -> bool:
    return not project.folder.exists() and not (project.root / "lease.lock").exists()


@pytest.mark.parametrize("mode", MODES)
def test_plain_pytest_leaves_the_accelerator_alone(project: Project, mode: str) -> None:
    ran = project.run(mode=mode)
    assert ran.status == 0
    assert ran.outcomes == {"test_matrix.py::test_other": "passed"}
    assert ran.out.count("parity items deselected") == 1
    assert DESELECTED in ran.out
    assert "parity: verdicts" not in ran.out
    assert _untouched(project)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_but_parity_items_is_nothing_selected(tmp_path: Path, mode: str) -> None:
    project = Project(tmp_path, claims={"same": exact_claim()})
    ran = project.run(mode=mode)
    assert ran.status == 5
    assert not ran.reports
    assert "parity: 2 parity items deselected" in ran.out
    assert _untouched(project)


@pytest.mark.parametrize("expression", ["not parity", "not  parity", "slow and not parity"])
def test_not_parity_is_no_wish_for_parity(project: Project, expression: str) -> None:
    ran = project.run("-m", expression)
    assert ran.status == (5 if "slow" in expression else 0)
    assert "parity: session" not in ran.out
    assert _untouched(project)


@pytest.mark.parametrize("mode", MODES)
def test_the_plan_is_printed_and_nothing_runs(project: Project, mode: str) -> None:
    ran = project.run("--parity-plan", mode=mode)
    assert ran.status == 0
    assert not ran.reports
    for line in (
        "same-d64-synthetic               2   16  unknown",
        "control-e-plain-d64-synthetic    6   16  unknown",
        "speed-d64-synthetic              6   16  unknown",
        "14 pairs, 28 engine starts, machine time unknown; 3 cells never measured before",
        "order R C | C R | R C | …, fixed; a ratio above 1: the candidate wins",
    ):
        assert " ".join(line.split()) in " ".join(ran.out.split())
    assert _untouched(project)


def test_the_plan_adds_up_machine_time_where_engines_declare_it(tmp_path: Path) -> None:
    guess = {"start_s": 10, "prefill_tps": 8, "decode_tps": 1}
    project = Project(tmp_path, claims={"same": exact_claim()}, engine={"estimate": guess})
    ran = project.run("--parity-plan")
    # A side: 10 s start, 16 warm-up and 64 measured prompt tokens at 8 a second, 16 tokens at 1 a second.
    assert "2 pairs, 4 engine starts, about 2 min of machine time" in ran.out
    assert ran.status == 0


def test_the_plan_is_of_what_is_left_by_the_options(project: Project) -> None:
    ran = project.run(
        "--parity-plan", "--claims", "unasked", "--depths", "96", "--fixture-class", "natural-prose"
    )
    assert "unasked-d96-natural-prose" in ran.out
    assert "unasked-d64" not in ran.out
    assert "2 pairs, 4 engine starts" in ran.out
    ran = project.run("--parity-plan", "-k", "same")
    assert "2 pairs, 4 engine starts" in ran.out
    ran = project.run("--parity-plan", "--pairs", "5")
    assert "control" not in ran.out.split("collected")[1]
    assert "10 pairs, 20 engine starts" in ran.out
    ran = project.run("--parity-plan", "--claims", "all")
    assert "22 pairs" in ran.out


@pytest.mark.parametrize("mode", MODES)
def test_collecting_only_decides_nothing(project: Project, mode: str) -> None:
    ran = project.run("-m", "parity", "--collect-only", "-q", mode=mode)
    assert ran.status == 0
    assert "test_matrix.py::test_cell[speed-d64-synthetic-r6]" in ran.out
    assert "INCOMPLETE" not in ran.out
    assert _untouched(project)


MIND = "Options filter cells and never widen a claim: declare the cell in the register first."


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--depths", "63"),
            f"parity: --depths 63: expected values that the asked claims declare: 64; found 63. {MIND}",
        ),
        (
            ("--fixture-class", "natural-code"),
            "parity: --fixture-class natural-code: expected values that the asked claims declare: synthetic; "
            f"found natural-code. {MIND}",
        ),
        (
            ("--depths", "64,x"),
            "--depths 64,x: expected whole numbers from 1, separated by commas; found '64,x'. "
            "Write for instance --depths 2048,65536.",
        ),
        (("--reps", "0"), "parity: --reps 0: expected at least 1; found 0. Ask for one pair."),
        (("--pairs", "7"), "parity: --pairs 7: expected one of 2, 5, 6, 6+6; found '7'. Name a plan."),
        (("--claims", "sped"), "parity: --claims: claim 'sped': expected a claim of the register: speed"),
        (
            ("--parity-gate", "relase"),
            "parity: --parity-gate relase: expected a gate of parity.toml: release, nothing; found 'relase'. "
            "Add it under [gates], or correct the name.",
        ),
        (
            ("--parity-gate", "nothing"),
            "parity: gate nothing: expected at least one claim; found none. A gate over nothing passes nothing.",
        ),
        (
            ("--parity-config", "none.toml"),
            "parity: none.toml: expected a file; found none. Write it: the README shows one.",
        ),
    ],
)
def test_an_unknown_value_is_refused_with_what_was_expected(
    project: Project, options: tuple[str, ...], text: str
) -> None:
    ran = project.run("-m", "parity", *options)
    assert ran.status == 4
    assert text in ran.out
    assert not ran.reports
    assert _untouched(project)


def test_a_filter_that_leaves_nothing_is_nothing_selected(project: Project) -> None:
    ran = project.run("-m", "parity", "-k", "nowhere")
    assert ran.status == 5
    assert _untouched(project)


ROW = "[claims.a]\n" + "".join(f"{field} = {json.dumps(value)}\n" for field, value in exact_claim().items())
BROKEN = {
    "syntax": ("parity.toml", "quiet_s = = 1\n", "parity: parity.toml:1:11: expected TOML; found"),
    "unknown": (
        "parity.toml",
        "quiet = 1\n",
        "parity: parity.toml:1: quiet: expected a known field; found an unknown field.",
    ),
    "row": (
        "claims/x.toml",
        ROW + "magin = 1\n",
        "parity: claims/x.toml:11: claim 'a', field 'magin': expected one of",
    ),
}


UNREADABLE = [
    ("syntax", "no-xdist", ("-m", "parity")),
    ("unknown", "no-xdist", ()),
    *[("row", mode, options) for mode in MODES for options in ((), ("-m", "parity"))],
]


@pytest.mark.parametrize(("what", "mode", "options"), UNREADABLE)
def test_what_cannot_be_read_is_named_with_its_line(
    tmp_path: Path, what: str, mode: str, options: tuple[str, ...]
) -> None:
    project = Project(tmp_path, claims={"same": exact_claim()})
    file, text, told = BROKEN[what]
    (project.root / file).write_text(text)
    ran = project.run(*options, mode=mode)
    assert ran.status == 4
    assert told in ran.out
    assert "INTERNALERROR" not in ran.out
    assert _untouched(project)


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_broken_register_stops_a_pair_that_is_named(tmp_path: Path, mode: str) -> None:
    project = Project(tmp_path, claims={"same": exact_claim()})
    (project.root / "claims" / "x.toml").write_text(ROW + "magin = 1\n")
    ran = project.run("test_matrix.py::test_cell[same-d64-synthetic-r1]", mode=mode)
    assert ran.status == 4
    assert "claims/x.toml:11: claim 'a', field 'magin'" in ran.out
    assert "INTERNALERROR" not in ran.out


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_register_without_claims_is_unreadable(tmp_path: Path, mode: str) -> None:
    project = Project(tmp_path, claims={"same": exact_claim()}, top={"default_claims": []})
    ran = project.run(mode=mode)
    assert ran.status == 4
    assert "the plan: expected at least one claim; found none." in ran.out
    assert "INTERNALERROR" not in ran.out


@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_marker_names_a_claim_of_the_register(tmp_path: Path, mode: str) -> None:
    tests = "import pytest\n\n\n@pytest.mark.parity(claim='sam')\ndef test_own(parity):\n    pass\n"
    ran = Project(tmp_path, claims={"same": exact_claim()}, tests=tests).run("-m", "parity", mode=mode)
    assert ran.status == 4
    assert (
        "parity: test_matrix.py::test_own: claim 'sam': expected a claim of the register; found 'sam'. "
        "Correct the marker, or write the claim's row." in ran.out
    )


def test_a_second_generic_test_is_refused(tmp_path: Path) -> None:
    tests = GENERIC + "\n\ndef test_again(parity):\n    parity.measure().exact().record()\n"
    ran = Project(tmp_path, claims={"same": exact_claim()}, tests=tests).run("-m", "parity")
    assert ran.status == 4
    assert (
        "expected one generic parity test in a run; found another one: test_matrix.py::test_cell." in ran.out
    )


def test_a_project_without_parity_tests_pays_nothing(tmp_path: Path) -> None:
    """No module that costs anything is loaded, and nothing is printed."""
    (tmp_path / "test_a.py").write_text(
        "import sys\n\n\ndef test_a():\n"
        "    costly = {'numpy', 'httpx', 'pydantic', 'filelock', 'pytest_parity.control'} & set(sys.modules)\n"
        "    assert 'pytest_parity.plugin' in sys.modules\n"
        "    assert not costly\n"
    )
    project = Project(tmp_path / "x")
    project.root = tmp_path
    ran = project.run("-p", "no:hypothesispytest", "test_a.py::test_a")
    assert ran.status == 0, ran.out
    assert "parity:" not in ran.out


PLAIN = """\
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_a(n):
    pass
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_run_without_a_parity_test_says_nothing_of_claims(tmp_path: Path, mode: str) -> None:
    project = Project(tmp_path, claims={"same": exact_claim()}, tests=PLAIN)
    (project.root / "claims" / "x.toml").write_text("unreadable")
    ran = project.run(mode=mode)
    assert ran.status == 0
    assert "parity:" not in ran.out
    assert "not asked" not in ran.out


def test_ten_thousand_pairs_are_collected(tmp_path: Path) -> None:
    depths = list(range(10, 10 + 5000))
    project = Project(
        tmp_path, claims={"many": exact_claim(depths=depths)}, engine={"context": 8192}, tests=OTHER
    )
    ran = project.run("--collect-only", "-q", "-m", "parity")
    assert ran.status == 0
    assert ran.out.count("test_matrix.py::test_cell[many-d") == 10_000
    ran = project.run()
    assert "parity: 10000 parity items deselected" in ran.out
    ran = project.run("-k", "many-d5009", "--parity-plan")
    assert "2 pairs, 4 engine starts" in ran.out

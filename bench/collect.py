"""What collecting costs: 10,000 parity items against 10,000 plain parametrized tests, in one run.

Run it with ``python bench/collect.py [--reps N] [--items N] [--profile]``. It writes two small projects
into a temporary folder and runs ``pytest --collect-only -q -m MARKER`` in fresh processes, the arms in turn:

* parity: a register of exact claims with many depths and two fixture classes, and the one generic test
* plain: one test with the same ids from a literal list, with the plugin installed and nothing to do
* plain without plugin: the same with ``-p no:parity``

Printed are wall and processor time of the whole process, and each arm's ratio to the plain arm of its turn;
then the same of 20 items, which is the start alone, and the processor time that an item adds to it.
``--profile`` runs the parity arm once more under cProfile and prints where the time goes (its total is
higher: the profiler itself costs).
"""

from __future__ import annotations

import argparse
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CLASSES = ("synthetic", "natural-prose")
PAIRS = 2
CLAIMS = 5
FEW = 20

CONFIGURATION = """\
device = "bench"
quiet_s = 0.0

[engines.embedded]
argv = ["{python}", "-m", "pytest_parity.engines.embedded", "--port", "{port}", "--ctx-size", "{context}"]
context = 131200
vocabulary = "bytes-260"
lanes = { plain = {}, fused = { argv = ["--kernels", "fused"] } }
"""

ROW = """\
[claims.{name}]
wording = "At {{depths}} the fused kernels wrote the tokens of the plain ones."
candidate = "embedded"
reference = "embedded"
lane = "fused"
reference_lane = "plain"
kind = "exact"
depths = {depths}
fixtures = ["synthetic", "natural-prose"]
output_tokens = 64

"""

GENERIC = """\
def test_cell(parity):
    parity.measure().exact().record()
"""

PLAIN = """\
import pytest

IDS = {ids}


@pytest.mark.case
@pytest.mark.parametrize("case", IDS)
def test_cell(case):
    pass
"""


@dataclass(frozen=True)
class Arm:
    """A project and how pytest is called in it."""

    folder: Path
    options: tuple[str, ...]
    environment: Mapping[str, str]

    def command(self, *interpreter: str) -> list[str]:
        return [
            *(sys.executable, *interpreter, "-m", "pytest"),
            *("--collect-only", "-q", "-p", "no:cacheprovider", *self.options),
        ]


def with_bytecode(folder: Path) -> dict[str, str]:
    """Our environment, with bytecode kept in ``folder``: users have it, and a checkout's may be stale."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHONDONTWRITE"))
    }
    return kept | {"PYTHONPYCACHEPREFIX": str(folder)}


def write(folder: Path, items: int) -> dict[str, Arm]:
    """Both projects, with the same ids. ``items`` is a multiple of claims, classes and pairs together."""
    depths = [64 + step for step in range(items // (CLAIMS * len(CLASSES) * PAIRS))]
    names = [f"bench-{number}" for number in range(CLAIMS)]
    ids = [
        f"{name}-d{depth}-{kind}-r{rep}"
        for name in names
        for depth in depths
        for kind in CLASSES
        for rep in range(1, PAIRS + 1)
    ]
    if len(ids) != items:
        raise SystemExit(f"--items must be a multiple of {CLAIMS * len(CLASSES) * PAIRS}")
    parity, plain = folder / "parity", folder / "plain"
    (parity / "claims").mkdir(parents=True)
    plain.mkdir()
    (parity / "parity.toml").write_text(CONFIGURATION)
    rows = "".join(ROW.format(name=name, depths=depths) for name in names)
    (parity / "claims" / "bench.toml").write_text(rows)
    (parity / "claims" / "test_matrix.py").write_text(GENERIC)
    (parity / "pytest.ini").write_text("[pytest]\n")
    (plain / "test_matrix.py").write_text(PLAIN.format(ids=ids))
    (plain / "pytest.ini").write_text("[pytest]\nmarkers = case: a case\n")
    environment = with_bytecode(folder.parent / "bytecode")
    return {
        "parity": Arm(parity, ("-m", "parity"), environment),
        "plain": Arm(plain, ("-m", "case"), environment),
        "plain without plugin": Arm(plain, ("-m", "case", "-p", "no:parity"), environment),
    }


def run(arm: Arm, items: int) -> tuple[float, float]:
    """Wall and processor seconds of one collection in a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        arm.command(), cwd=arm.folder, env=arm.environment, capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.stdout.count("::test_cell[") != items or done.returncode:
        raise SystemExit(
            f"expected {items} items, exit 0; the bench is broken\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


Took = dict[str, list[tuple[float, float]]]
"""Wall and processor seconds of each arm's collections, in the order of the turns."""


def table(took: Took) -> str:
    lines = [
        f"{'arm':24}{'wall s':>9}{'CPU s':>9}{'wall ratio':>12}{'CPU ratio':>12}{'CPU, least':>12}{'most':>8}"
    ]
    for name, rows in took.items():
        couples = list(zip(rows, took["plain"], strict=True))
        cpu = [mine[1] / plain[1] for mine, plain in couples]
        lines.append(
            f"{name:24}{statistics.median(row[0] for row in rows):9.2f}{statistics.median(row[1] for row in rows):9.2f}"
            f"{statistics.median(mine[0] / plain[0] for mine, plain in couples):12.3f}"
            f"{statistics.median(cpu):12.3f}{min(cpu):12.3f}{max(cpu):8.3f}"
        )
    return "\n".join(lines)


def per_item(many: Took, few: Took, items: int) -> str:
    def added(name: str) -> float:
        rows = zip(many[name], few[name], strict=True)
        return statistics.median((most[1] - least[1]) / (items - FEW) for most, least in rows)

    return "\n".join(
        f"{name:24}{added(name) * 1e6:9.0f} us CPU an item{added(name) / added('plain'):9.3f}"
        for name in many
    )


def profile(arm: Arm, lines: int) -> None:
    """One collection under cProfile: the heaviest functions, ours and all."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "profile"
        command = arm.command("-m", "cProfile", "-o", str(out))
        subprocess.run(command, cwd=arm.folder, env=arm.environment, stdout=subprocess.DEVNULL, check=True)
        for order, only in (("cumulative", "pytest_parity"), ("tottime", "")):
            print(f"\nparity, under cProfile, by {order} time{', this package only' if only else ''}:")
            shown = (only, lines) if only else (lines,)
            pstats.Stats(str(out)).sort_stats(order).print_stats(*shown)


def main() -> None:
    parser = argparse.ArgumentParser(description="What collecting parity items costs.")
    parser.add_argument(
        "--reps", type=int, default=5, help="collections of each arm (after one that is not counted)"
    )
    parser.add_argument("--items", type=int, default=10_000, help="items of each project")
    parser.add_argument("--profile", action="store_true", help="profile the parity arm afterwards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="collect-") as name:
        sizes = {
            options.items: write(Path(name) / "many", options.items),
            FEW: write(Path(name) / "few", FEW),
        }
        names = list(sizes[FEW])
        took: dict[int, Took] = {items: {arm: [] for arm in names} for items in sizes}
        for rep in range(options.reps + 1):
            turn = rep % len(names)
            for arm in names[turn:] + names[:turn]:
                for items, arms in sizes.items():
                    result = run(arms[arm], items)
                    if rep:  # the first writes bytecode and fills the disk's cache: nobody's
                        took[items][arm].append(result)
        print(f"{options.reps} collections an arm and size, in turn; ratios to the plain arm of the turn")
        for items, rows in took.items():
            print(f"\n{items} items\n{table(rows)}")
        print(f"\nwhat an item adds\n{per_item(took[options.items], took[FEW], options.items)}", flush=True)
        if options.profile:
            profile(sizes[options.items]["parity"], 25)


if __name__ == "__main__":
    main()

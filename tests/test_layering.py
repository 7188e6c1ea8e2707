"""The house as DESIGN draws it, read from the imports: every arrow points inward.

Imports count wherever they stand: at the top, under TYPE_CHECKING, inside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "pytest_parity"
ROOT = Path(__file__).parents[1] / PACKAGE

GLUE = frozenset(
    {
        "cli",
        "commands",
        "configuration",
        "control",
        "fixtures",
        "handle",
        "options",
        "plugin",
        "reporting",
        "scheduling",
        "session",
        "stash",
    }
)
ADAPTERS = frozenset({"engines", "apparatus", "evidence"})
INNER = frozenset({"errors", "core", "engines.provision", "measurement"}) | ADAPTERS
INWARD = {
    "errors": frozenset[str](),
    "core": frozenset({"errors"}),
    "engines.embedded": frozenset({"errors"}),
    "engines.provision": frozenset({"errors", "core", "engines", "engines.embedded"}),
    **{room: frozenset({"errors", "core"}) for room in ADAPTERS},
    "measurement": frozenset({"errors", "core", "engines.provision"}) | ADAPTERS,
    **dict.fromkeys(GLUE, INNER | GLUE),
    "": INNER | GLUE,
}
"""Which rooms a room may import besides itself. ``""`` is the package's own ``__init__``."""

PURE = frozenset(
    {
        "__future__",
        "collections",
        "dataclasses",
        "functools",
        "hashlib",
        "itertools",
        "json",
        "math",
        "pydantic",
        "re",
        "shlex",
        "string",
        "typing",
    }
)
"""All that the core may import from outside: no files, clock, environment, chance, network or processes."""
IMPURE_CALLS = frozenset({"open", "print", "input", "eval", "exec", "breakpoint", "__import__", "id", "hash"})


def modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """(dotted name, tree) of every module; a package's own is called ``….__init__``."""
    for path in sorted(root.rglob("*.py")):
        steps = [root.name, *path.relative_to(root).with_suffix("").parts]
        yield ".".join(steps), ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that ``module`` imports, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def room(name: str) -> str:
    """The room that a dotted name of the package belongs to."""
    steps = name.split(".")[1:]
    if steps[:1] == ["engines"] and steps[1:2] in (["embedded"], ["provision"]):
        return ".".join(steps[:2])
    return "" if not steps or steps[0].startswith("__") else steps[0]


def offences(root: Path) -> list[str]:
    """One sentence for everything that stands where it must not."""
    found = []
    for module, tree in modules(root):
        here = room(module)
        if here not in INWARD:
            found.append(f"{module}: a room that this test does not know")
            continue
        if "utils" in module.split("."):
            found.append(f"{module}: no file is called utils")
        for line, name in imports(module, tree):
            outside = name.split(".")[0]
            if outside == root.name:
                there = room(name)
                if there != here and there not in INWARD[here]:
                    found.append(
                        f"{module}:{line} imports {name}: {here or root.name} -> {there or root.name}"
                    )
            elif here == "core" and outside not in PURE:
                found.append(f"{module}:{line} imports {name}: the core is pure")
            if outside == "_pytest" or name.startswith("pytest._"):
                found.append(f"{module}:{line} imports {name}: only pytest's public names")
        if here == "core":
            found.extend(
                f"{module}:{node.lineno} calls {node.func.id}(): the core is pure"
                for node in ast.walk(tree)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in IMPURE_CALLS
            )
    return found


def test_every_arrow_points_inward() -> None:
    assert offences(ROOT) == []


def test_nothing_is_overlooked() -> None:
    names = [module for module, _ in modules(ROOT)]
    assert len(names) > 60
    assert {room(name) for name in names} == set(INWARD)


PLANTED: list[tuple[str, str, str]] = [
    ("errors.py", "from pytest_parity.core import plan", "errors -> core"),
    ("core/a.py", "import pytest_parity.engines.driver", "core -> engines"),
    ("core/a.py", "from pytest_parity import measurement", "core -> measurement"),
    ("core/a.py", "import os", "the core is pure"),
    ("core/a.py", "from pathlib import Path", "the core is pure"),
    ("core/a.py", "def f():\n    import time", "the core is pure"),
    ("core/a.py", "import pytest", "the core is pure"),
    ("core/a.py", "import random", "the core is pure"),
    ("core/a.py", "import datetime", "the core is pure"),
    ("core/a.py", "import subprocess", "the core is pure"),
    ("core/a.py", "import httpx, numpy", "the core is pure"),
    ("core/a.py", "def f(name):\n    return open(name)", "calls open(): the core is pure"),
    (
        "core/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pytest_parity.session import S",
        "core -> session",
    ),
    ("core/a.py", "from .. import plugin", "core -> plugin"),
    ("core/a.py", "from ..evidence import store", "core -> evidence"),
    ("engines/a.py", "from pytest_parity.apparatus import lease", "engines -> apparatus"),
    ("apparatus/a.py", "from pytest_parity.evidence.store import ReceiptStore", "apparatus -> evidence"),
    ("evidence/a.py", "from pytest_parity import engines", "evidence -> engines"),
    ("evidence/a.py", "from pytest_parity.measurement.pair import Receipt", "evidence -> measurement"),
    ("engines/a.py", "from pytest_parity.engines.embedded import model", "engines -> engines.embedded"),
    ("engines/a.py", "from . import provision", "engines -> engines.provision"),
    ("engines/provision/a.py", "from pytest_parity.evidence import store", "engines.provision -> evidence"),
    (
        "engines/embedded/a.py",
        "from pytest_parity.engines.driver import Driver",
        "engines.embedded -> engines",
    ),
    ("engines/embedded/a.py", "from ...core import plan", "engines.embedded -> core"),
    ("measurement/a.py", "from pytest_parity.plugin import CONTROLLER", "measurement -> plugin"),
    (
        "measurement/a.py",
        "async def f():\n    from pytest_parity import configuration",
        "measurement -> configuration",
    ),
    ("core/a.py", "import pytest_parity", "core -> pytest_parity"),
    ("plugin.py", "from _pytest.config import Config", "only pytest's public names"),
    ("reporting/a.py", "import _pytest.terminal", "only pytest's public names"),
    ("core/utils.py", "", "no file is called utils"),
    ("reporting/utils/a.py", "", "no file is called utils"),
    ("helpers.py", "", "a room that this test does not know"),
]


@pytest.mark.parametrize(("file", "text", "sentence"), PLANTED)
def test_a_planted_arrow_is_found(tmp_path: Path, file: str, text: str, sentence: str) -> None:
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert any(found.endswith(sentence) for found in offences(tmp_path / PACKAGE)), offences(
        tmp_path / PACKAGE
    )


ALLOWED: list[tuple[str, str]] = [
    (
        "core/a.py",
        "import math\nfrom pytest_parity.core.plan import Cell\nfrom pytest_parity.errors import ParityError",
    ),
    ("core/a.py", "from . import b\nfrom ..errors import ParityError"),
    ("engines/a.py", "from pytest_parity.core.transcript import Words\nimport subprocess"),
    ("engines/embedded/a.py", "from .model import Model\nimport numpy"),
    (
        "measurement/a.py",
        "from pytest_parity.evidence import ReceiptStore\nfrom pytest_parity.apparatus.lease import Lease",
    ),
    ("plugin.py", "import pytest\nfrom pytest_parity.control import Controller"),
    ("reporting/a.py", "from pytest_parity.core.explain import claim_lines"),
]


@pytest.mark.parametrize(("file", "text"), ALLOWED)
def test_an_arrow_that_points_inward_is_no_offence(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / PACKAGE / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert offences(tmp_path / PACKAGE) == []

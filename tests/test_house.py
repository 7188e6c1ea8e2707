"""Rules of the house that no type checker knows: sizes, docstrings, documents, and nobody's home folder."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pytest_parity import cli, options

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_parity"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 420
LONGER = {"pytest_parity/core/diagnostics.py": 500, "pytest_parity/core/stats.py": 480}
"""Modules that still wait to be split: they may shrink, and never grow."""
UNFINISHED = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X)\b")  # bracketed, so that this line is not found
HOMES = re.compile(r"(?<![\w.{/-])/(?:home|Users|root)/[\w.-]+")
EXAMPLE_HOMES = ("/home/user", "/home/me", "/home/you")


def short(path: Path) -> str:
    """A file's path in this repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that git tracks or would track."""
    told = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if told.returncode:
        pytest.skip("no git checkout")
    return tuple(path for name in told.stdout.split("\0") if name and (path := ROOT / name).is_file())


@cache
def texts() -> dict[str, str]:
    """Every tracked file that is a text."""
    found = {}
    for path in tracked():
        try:
            found[short(path)] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


@cache
def documents() -> str:
    """The README and every page of docs/."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages if page.exists())


class _Group:
    """Stands in for pytest's option group and notes what is registered."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def getgroup(self, name: str, description: str = "") -> _Group:
        """The only group."""
        return self

    def addoption(self, *names: str, **more: object) -> None:
        """Note an option."""
        self.names += names


@cache
def plugin_options() -> tuple[str, ...]:
    """Every option of the plugin."""
    group = _Group()
    options.add_options(group)  # type: ignore[arg-type]
    return tuple(group.names)


def commands(
    parser: argparse.ArgumentParser, above: str = "parity"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, as it is typed."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield above, parser
    for action in below:
        for name, inner in action.choices.items():
            yield from commands(inner, f"{above} {name}")


COMMANDS = dict(commands(cli._parser()))


def test_the_rules_have_something_to_look_at() -> None:
    assert len(MODULES) > 80 and len(texts()) > 100
    assert len(plugin_options()) >= 9 and len(COMMANDS) >= 8


@pytest.mark.parametrize("path", MODULES, ids=short)
class TestEveryModule:
    def test_can_be_read_in_one_sitting(self, path: Path) -> None:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= LONGER.get(short(path), LONGEST)

    def test_says_what_it_is_and_so_does_all_that_is_public(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.stat().st_size:
            assert ast.get_docstring(tree), f"{short(path)} has no docstring"
        public = [
            node
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and not node.name.startswith(("_", "pytest_"))  # pytest's hooks are documented by pytest
        ]
        assert [node.name for node in public if not ast.get_docstring(node)] == []


class TestEveryFile:
    def test_is_finished(self) -> None:
        found = [
            f"{name}:{number}"
            for name, text in texts().items()
            if name.endswith((".py", ".toml", ".md")) and not name.startswith("fixtures/text/")
            for number, line in enumerate(text.splitlines(), start=1)
            if UNFINISHED.search(line)
        ]
        assert found == []

    def test_names_nobodys_home_folder(self) -> None:
        found = [
            f"{name}: {match}"
            for name, text in texts().items()
            for match in HOMES.findall(text)
            if match not in EXAMPLE_HOMES
        ]
        assert found == []

    def test_is_called_by_what_is_in_it(self) -> None:
        assert [
            name for name in map(short, MODULES) if Path(name).stem in ("utils", "util", "helpers", "misc")
        ] == []


class TestDocuments:
    def test_the_readme_says_how_to_start(self) -> None:
        assert "pytest -m parity" in (ROOT / "README.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize("option", plugin_options())
    def test_every_option_is_told_of(self, option: str) -> None:
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", documents()), (
            f"{option} in README.md or docs/*.md"
        )

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_is_told_of(self, command: str) -> None:
        assert re.search(rf"{command}(?![\w-])", documents()), f"{command} in README.md or docs/*.md"

    def test_every_command_that_is_told_of_exists(self) -> None:
        known = {command for name in COMMANDS for command in (name, " ".join(name.split()[:2]))}
        known |= {"parity --help"}
        told = {
            " ".join(line.split()[:3])
            for line in re.findall(r"^\s*\$?\s*(parity [a-z].*)$", _blocks(documents()), re.MULTILINE)
        }
        unknown = {line for line in told if not {line, " ".join(line.split()[:2])} & known}
        assert unknown == set()

    def test_every_option_of_a_told_command_exists(self) -> None:
        wrong = []
        for line in re.findall(r"^\s*\$?\s*(parity [a-z].*)$", _blocks(documents()), re.MULTILINE):
            name = next((n for n in sorted(COMMANDS, key=len, reverse=True) if line.startswith(n)), None)
            if name is not None:
                known = {option for action in COMMANDS[name]._actions for option in action.option_strings}
                wrong += [
                    f"{line}: {word}" for word in re.findall(r"(?<!\S)--[a-z-]+", line) if word not in known
                ]
        assert wrong == []


def _blocks(text: str) -> str:
    """What stands in code blocks."""
    return "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))

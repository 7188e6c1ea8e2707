"""What the plugin costs a project that has no parity test: nothing heavy is imported, nothing is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "httpx", "pydantic", "filelock", "h11", "pytest_parity.core")

IMPORT_ONLY = """\
import json, sys

events = []
sys.addaudithook(lambda name, args: events.append(name) if name in STARTS else None)
before = set(sys.modules)
import pytest
known = set(sys.modules)
MODULES
print(json.dumps({"loaded": sorted(set(sys.modules) - before), "own": sorted(set(sys.modules) - known), "events": events}))
"""
STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "socket.connect",
)

OTHER_PLUGINS = ("anyio", "hypothesispytest", "xdist")
"""Installed beside this one; what they load is not ours to answer for."""

# A plugin of the run under test: it listens from the very first import on, and writes down what it saw.
WITNESS = """\
import json, os, sys

events = []
sys.addaudithook(lambda name, args: events.append(name) if name in STARTS else None)

def pytest_unconfigure():
    with open(os.environ["WITNESS"], "w") as file:
        json.dump({"loaded": sorted(sys.modules), "events": events}, file)
"""


def imported(*lines: str) -> dict[str, list[str]]:
    script = IMPORT_ONLY.replace("STARTS", repr(STARTS)).replace("MODULES", "\n".join(lines))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def heavy(loaded: list[str]) -> list[str]:
    return [name for name in loaded if any(name == h or name.startswith(h + ".") for h in HEAVY)]


def test_importing_the_plugin_loads_nothing_heavy_and_starts_nothing() -> None:
    found = imported("import pytest_parity", "import pytest_parity.plugin")
    assert "pytest_parity.plugin" in found["loaded"]
    assert heavy(found["loaded"]) == []
    assert found["events"] == []
    assert {name.split(".")[0] for name in found["own"]} == {"pytest_parity"}, (
        "pytest has loaded the rest already"
    )


def test_the_search_finds_what_is_heavy_and_what_is_started() -> None:
    found = imported("import pytest_parity.control", "import subprocess; subprocess.run(['true'])")
    assert {"pydantic", "filelock", "pytest_parity.core"} <= set(heavy(found["loaded"]))
    assert "subprocess.Popen" in found["events"]


PLAIN = "def test_it():\n    pass\n"
MARKED = "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n):\n    pass\n"


@pytest.mark.parametrize(
    ("arguments", "test"),
    [
        ((), PLAIN),
        (("-v", "-k", "it", "--junitxml=out.xml"), MARKED),
        (("--collect-only",), PLAIN),
        (("--markers",), ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_project_without_parity_tests_pays_nothing(
    tmp_path: Path, arguments: tuple[str, ...], test: str
) -> None:
    (tmp_path / "test_it.py").write_text(test)
    found = run(tmp_path, *arguments)
    assert "pytest_parity.plugin" in found["loaded"], "the plugin is installed in that run"
    assert heavy(found["loaded"]) == []
    assert found["events"] == []
    assert not (tmp_path / ".parity").exists()


def test_a_project_with_a_parity_test_does_load_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(parity):\n    pass\n")
    assert "pytest_parity.core.claims" in run(tmp_path, expected=4)["loaded"], "the test above can fail"


def run(folder: Path, *arguments: str, expected: int = 0) -> dict[str, list[str]]:
    """What a run of pytest in ``folder`` had loaded and started by its end."""
    (folder / "witness.py").write_text(WITNESS.replace("STARTS", repr(STARTS)))
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {"WITNESS": str(folder / "seen.json"), "PYTHONPATH": str(folder), "PATH": ""}
    others = [word for name in OTHER_PLUGINS for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-p", "witness", *others, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    found: dict[str, list[str]] = json.loads((folder / "seen.json").read_text())
    return found

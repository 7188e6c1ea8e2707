"""A small project with claims about the embedded engine, and what one run of pytest in it came to.

Everything is told apart by files that the run leaves: the reports as pytest made them, JUnit XML, receipts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

MODES: dict[str, tuple[str, ...]] = {"no-xdist": ("-p", "no:xdist"), "n0": ("-n0",), "n2": ("-n2",)}
ARGV = {**MODES, "n1": ("-n1",)}

GENERIC = """\
def test_cell(parity):
    parity.measure().exact().record()
"""

CONFTEST = """\
import json
import os
import pathlib

REPORTS = pathlib.Path(__file__).with_name("reports.jsonl")


def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        seen = {
            "nodeid": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "xfail": hasattr(report, "wasxfail"),
            "text": str(report.longrepr or ""),
            "properties": [[name, value] for name, value in report.user_properties],
        }
        with REPORTS.open("a") as file:
            file.write(json.dumps(seen) + "\\n")
"""


@dataclass(frozen=True)
class Report:
    """One item's or claim's outcome. ``word``: passed, failed, skipped, xfailed or error."""

    nodeid: str
    word: str
    text: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class Ran:
    """One finished run of pytest."""

    status: int
    out: str
    reports: tuple[Report, ...]
    junit: ElementTree.Element | None

    @property
    def outcomes(self) -> dict[str, str]:
        """Short name of every item and claim to its word: ``same-d64-synthetic-r1``, ``claims/x.toml::same``."""
        return {short(report.nodeid): report.word for report in self.reports}

    def of(self, name: str) -> Report:
        """The report of one item or claim."""
        return next(report for report in self.reports if short(report.nodeid) == name)

    def claim(self, name: str) -> Report:
        """The report of one claim's verdict."""
        return self.of(f"claims/x.toml::{name}")

    def cases(self) -> dict[str, ElementTree.Element]:
        """JUnit's test cases by short name; a claim by its own."""
        assert self.junit is not None
        return {short(str(case.get("name"))): case for case in self.junit.iter("testcase")}


def short(nodeid: str) -> str:
    """What stands in the brackets of an item's id; anything else as it is."""
    return nodeid.rpartition("[")[2].removesuffix("]") if nodeid.endswith("]") else nodeid


def properties_of(case: ElementTree.Element) -> dict[str, str]:
    """Properties of a JUnit test case."""
    return {str(p.get("name")): str(p.get("value")) for p in case.iter("property")}


@dataclass
class Project:
    """A folder with ``parity.toml``, ``claims/x.toml``, tests and a conftest that notes every report."""

    root: Path
    lanes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    claims: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    tests: str = GENERIC
    top: Mapping[str, object] = field(default_factory=dict)
    gates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    engine: Mapping[str, object] = field(default_factory=dict)
    lane_tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    more_engines: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write()

    def write(self) -> None:
        """Write all files."""
        (self.root / "claims").mkdir(parents=True, exist_ok=True)
        lines = [f"{k} = {_toml(v)}" for k, v in {"quiet_s": 0.0, "lease": "lease.lock", **self.top}.items()]
        if self.gates:
            lines += ["[gates]", *(f"{name} = {_toml(claims)}" for name, claims in self.gates.items())]
        for name, fields in {"e": self.engine, **self.more_engines}.items():
            lines += [
                f"[engines.{name}]",
                *(f"{k} = {_toml(v)}" for k, v in {**self._defaults(), **fields}.items()),
            ]
            lines += [f"[engines.{name}.lanes]", "plain = {}", 'fused = { argv = ["--kernels", "fused"] }']
            lines += [f"{lane} = {{ argv = {_toml(list(argv))} }}" for lane, argv in self.lanes.items()]
            lines += [f"{lane} = {_toml(table)}" for lane, table in self.lane_tables.items()]
        (self.root / "parity.toml").write_text("\n".join(lines) + "\n")
        rows = [
            f"[claims.{n}]\n" + "\n".join(f"{k} = {_toml(v)}" for k, v in row.items())
            for n, row in self.claims.items()
        ]
        (self.root / "claims" / "x.toml").write_text("\n\n".join(rows) + "\n")
        (self.root / "test_matrix.py").write_text(self.tests)
        (self.root / "conftest.py").write_text(CONFTEST)
        (self.root / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -ra\n")

    def _defaults(self) -> dict[str, object]:
        module = ["{python}", "-m", "pytest_parity.engines.embedded"]
        return {
            "argv": [*module, "--port", "{port}", "--ctx-size", "{context}", "--alias", self.alias],
            "context": 2048,
            "vocabulary": "bytes-260",
            "warmup_tokens": 16,
            "start_s": 60,
            "silence_s": 60,
            "grace_s": 2,
        }

    @property
    def alias(self) -> str:
        """The name that this project's engines answer with: tells them from any other engine."""
        return f"engine-of-{self.root.name}"

    # --- running ----------------------------------------------------------------------------------

    def run(
        self, *args: str, mode: str = "no-xdist", timeout_s: float = 240.0, wrap: Sequence[str] = ()
    ) -> Ran:
        """Run pytest to its end. ``wrap``: a program that executes it."""
        with self.started(*args, mode=mode, wrap=wrap) as process:
            process.wait(timeout_s)
        return self.finished(process)

    @contextmanager
    def started(
        self, *args: str, mode: str = "no-xdist", wrap: Sequence[str] = (), group: bool = False
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A run of pytest that goes on meanwhile; killed at the block's end if it still does.

        ``group``: in a process group of its own, as a shell does it.
        """
        for name in ("reports.jsonl", "junit.xml", "out.txt"):
            (self.root / name).unlink(missing_ok=True)
        argv = [*wrap, sys.executable, "-m", "pytest", "--junitxml=junit.xml", *ARGV[mode], *args]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        environment["COLUMNS"] = "400"
        with (self.root / "out.txt").open("wb") as out:
            process = subprocess.Popen(
                argv, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                process_group=0 if group else None,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def finished(self, process: subprocess.Popen[bytes]) -> Ran:
        """What a run that has ended came to."""
        junit = self.root / "junit.xml"
        return Ran(
            process.returncode,
            (self.root / "out.txt").read_text(errors="replace"),
            tuple(self._reports()),
            ElementTree.parse(junit).getroot() if junit.exists() else None,
        )

    def _reports(self) -> Iterator[Report]:
        path = self.root / "reports.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for seen in lines:
            if seen["when"] == "call" or seen["outcome"] != "passed":
                word = "xfailed" if seen["xfail"] else seen["outcome"]
                if word == "failed" and seen["when"] not in ("call", "???"):
                    word = "error"
                yield Report(seen["nodeid"], word, seen["text"], dict(seen["properties"]))

    # --- what it left -----------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where receipts lie."""
        return self.root / ".parity" / "receipts"

    def receipts(self) -> dict[str, dict[str, Any]]:
        """Every receipt by its pair's id; of several sessions the newest."""
        found = {}
        for path in sorted(self.folder.glob("*.json")):
            body = json.loads(path.read_bytes())
            found[body["pair"]] = body
        return found

    def sessions(self) -> list[str]:
        """Names of the sessions that left a receipt."""
        return sorted({path.name.split(".")[0] for path in self.folder.glob("*.json")})

    def intents(self) -> list[dict[str, Any]]:
        """Every intent."""
        return [json.loads(path.read_bytes()) for path in sorted((self.folder / "intents").glob("*.json"))]

    def engines(self) -> list[int]:
        """Pids of this project's engines that live now."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    argv = (folder / "cmdline").read_bytes().split(b"\0")
                    alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                except OSError:
                    continue
                if alive and self.alias.encode() in argv and b"pytest_parity.engines.embedded" in argv:
                    found.append(int(folder.name))
        return found

    def lease_is_free(self) -> bool:
        """Can util-linux take the lease?"""
        return (
            subprocess.run(["flock", "-n", str(self.root / "lease.lock"), "true"], check=False).returncode
            == 0
        )

    @contextmanager
    def lease_held(self) -> Iterator[int]:
        """Another program (util-linux) holds the lease; yields its pid."""
        argv = ["flock", "--no-fork", str(self.root / "lease.lock"), "sh", "-c", "echo held; exec sleep 300"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            yield holder.pid
            holder.kill()


def exact_claim(lane: str = "fused", **more: object) -> dict[str, object]:
    """A row of kind exact with tiny cells."""
    return {
        "wording": "On {fixtures} at {depths}, lane {lane} wrote what the plain one wrote.",
        "candidate": "e",
        "reference": "e",
        "lane": lane,
        "reference_lane": "plain",
        "kind": "exact",
        "depths": [64],
        "fixtures": ["synthetic"],
        "output_tokens": 16,
        **more,
    }


def speed_claim(lane: str = "fused", **more: object) -> dict[str, object]:
    """A row of kind parity with tiny cells. Memory, because it stays the same on a machine that is busy."""
    row = {**exact_claim(lane), "kind": "parity", "metric": "peak_rss_bytes", "margin": 0.5, "pairs": "6"}
    return {**row, **more}


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = 60.0) -> float:
    """Wait for something and return how long that took; fail with ``what`` when it does not come."""
    started = time.monotonic()
    while not true():
        if time.monotonic() - started > timeout_s:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.05)
    return time.monotonic() - started


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)

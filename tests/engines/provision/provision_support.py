"""Small archives, models and stand-in programs for the tests of this room."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_parity.engines.provision.commands import Finished, Report

Answer = Callable[[Sequence[str]], Finished]


def silent(_line: str) -> None:
    """A report that nobody reads."""


class FakeRunner:
    """Stands in for ``run_command``: answers by a function of the argument list and remembers the calls."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.calls: list[list[str]] = []
        self.environments: list[Mapping[str, str] | None] = []

    def __call__(
        self,
        argv: Sequence[str],
        *,
        report: Report,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Finished:
        assert timeout_s > 0
        assert cwd is None
        self.calls.append(list(argv))
        self.environments.append(env)
        finished = self._answer(argv)
        for line in finished.tail:
            report(line)
        return finished


def no_run(argv: Sequence[str]) -> Finished:
    """The answer of a runner that must not be asked."""
    raise AssertionError(f"nothing may run here, but {list(argv)} did")


def tarball(path: Path, members: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> str:
    """Write a gzipped tar with these members; return its SHA-256."""
    with tarfile.open(path, "w:gz") as bundle:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))
        for name, to in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.SYMTYPE
            member.linkname = to
            bundle.addfile(member)
    return hashlib.sha256(path.read_bytes()).hexdigest()

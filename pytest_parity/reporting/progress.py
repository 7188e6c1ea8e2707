"""Progress of a long request, without disturbing it; and the harness kept off the engine's processors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_parity.core.plan import PairPlan
from pytest_parity.session import ParitySession

__all__ = ["pinned", "reporter"]

QUIET_START_S = 5.0
"""Nothing is printed in a request's first seconds: most requests are over by then, undisturbed."""
TTY_EVERY_S = 1.0
LINES_EVERY_S = 15.0


def reporter(config: pytest.Config, pair: PairPlan) -> Callable[[str, int, int], None] | None:
    """A callback for the driver, or ``None`` when there is no terminal reporter."""
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if terminal is None:
        return None
    tty = bool(terminal.isatty) if hasattr(terminal, "isatty") else False
    started = time.monotonic()
    last = started - LINES_EVERY_S

    def show(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - started < QUIET_START_S or now - last < (TTY_EVERY_S if tty else LINES_EVERY_S):
            return
        last = now
        share = f"{100 * done // total} %" if total else "?"
        text = f"{pair.id}: {phase} {done:,} of {total:,} ({share})"
        if capture is None:
            _write(terminal, text, tty)
        else:
            with capture.global_and_fixture_disabled():
                _write(terminal, text, tty)

    return show


def _write(terminal: Any, text: str, tty: bool) -> None:
    if tty:
        terminal.rewrite(text, erase=True)
    else:
        terminal.ensure_newline()
        terminal.write_line(text)


@contextmanager
def pinned(session: ParitySession) -> Iterator[None]:
    """Keep this process on ``harness_cpus`` while it measures."""
    cpus = session.configuration.harness_cpus if session.asked_ids else None
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    session.workspace.free_cpus = tuple(sorted(before))
    if not set(cpus) <= before:
        missing = ", ".join(str(cpu) for cpu in sorted(set(cpus) - before))
        raise pytest.UsageError(
            f"parity: harness_cpus: expected processors that pytest may use ({', '.join(map(str, sorted(before)))}); "
            f"found {missing}. Correct harness_cpus in parity.toml."
        )
    os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

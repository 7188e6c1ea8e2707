"""Under xdist: the pairs of a cell, and a control with the cells that use it, in order on one worker."""

from __future__ import annotations

import ctypes
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_parity.session import ParitySession

__all__ = ["end_with_parent", "make_scheduler"]

_SET_PDEATHSIG = 1


def make_scheduler(config: pytest.Config, log: Any, session: ParitySession) -> Any:
    """A scheduler whose scope is the pair's group; other tests are scopes of their own.

    ``--dist loadgroup`` is silently without effect on pytest 9.2 with xdist 3.8, hence this.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ParityScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            pair = session.pair_of(nodeid) if session.asked_ids else None
            return pair.group if pair is not None else nodeid

        def _reschedule(self, node: Any) -> None:
            # A worker begins a test only once it has the next one, or knows that none follows. When a worker
            # dies, xdist queues its finished units again and gives its replacement one unit at a time: with
            # none or one test in it, both wait for ever.
            super()._reschedule(node)
            while (
                self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2
            ):
                self._assign_work_unit(node)

    return ParityScheduling(config, log)


def end_with_parent() -> None:
    """Let a worker die with its controller, and its engine with it.

    A worker whose controller was killed is not told before it next speaks to it, and an engine's request may
    take hours until then. Where the kernel does not know this request, nothing changes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

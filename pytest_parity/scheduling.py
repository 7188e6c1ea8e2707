"""Under xdist: the pairs of a cell, and a control with the cells that use it, in order on one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_parity.session import ParitySession

__all__ = ["make_scheduler"]


def make_scheduler(config: pytest.Config, log: Any, session: ParitySession) -> Any:
    """A scheduler whose scope is the pair's group; other tests are scopes of their own.

    ``--dist loadgroup`` is silently without effect on pytest 9.2 with xdist 3.8, hence this.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ParityScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            pair = session.pair_of(nodeid) if session.asked_ids else None
            return pair.group if pair is not None else nodeid

    return ParityScheduling(config, log)

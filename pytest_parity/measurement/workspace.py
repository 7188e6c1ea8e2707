"""Where a session keeps its things, and what stands in each of its receipts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pytest_parity.core.canonical import canonical_bytes
from pytest_parity.engines.description import EngineDescription
from pytest_parity.evidence.ledger import Ledger
from pytest_parity.evidence.store import Published, ReceiptStore
from pytest_parity.measurement.installed import InstalledEngine, install

__all__ = ["Workspace", "new_session_id"]


def new_session_id() -> str:
    """A session's name: its start in UTC, and six random hex digits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


@dataclass(slots=True)
class Workspace:
    """One session's folders and facts.

    ``root``: folder of ``parity.toml``. ``receipts``, ``prompts``, ``logs``: folders for evidence, prompt ids
    and engine output. ``lease``: lock file, ``None`` for the device's default. ``quiet_s``: seconds without
    any work before each pair. ``machine``, ``code``: facts for the receipts. ``free_cpus``: processors for engines
    that name none, where the harness keeps to ``harness_cpus``.
    """

    session: str
    root: Path
    receipts: Path
    prompts: Path
    logs: Path
    engines: Mapping[str, EngineDescription]
    device: str
    lease: Path | None
    quiet_s: float
    machine: Mapping[str, Any]
    code: Mapping[str, Any]
    harness_cpus: tuple[int, ...] | None = None
    free_cpus: tuple[int, ...] | None = None
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    _installed: dict[str, InstalledEngine] = field(default_factory=dict)

    @property
    def store(self) -> ReceiptStore:
        """The receipts folder."""
        return ReceiptStore(self.receipts)

    @property
    def ledger(self) -> Ledger:
        """The receipts folder's log."""
        return Ledger(self.receipts)

    @property
    def session_lock(self) -> Path:
        """Workers of this session queue here."""
        return self.logs / f"{self.session}.lock"

    def today(self) -> date:
        """Today, in UTC."""
        return self.now().date()

    def timestamp(self) -> str:
        """The wall clock for people; nothing is computed from it."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def installed(self, name: str) -> InstalledEngine:
        """The engine called ``name`` with its files. Raises AdmissionRefused."""
        if name not in self._installed:
            self._installed[name] = install(self.engines[name], self.root)
        return self._installed[name]

    def publish(self, name: str, body: Mapping[str, Any], subject: Mapping[str, Any]) -> Published:
        """Write a receipt and chain it. It is on disk, and so is its place in the log, before this returns."""
        published = self.store.publish(name, canonical_bytes(body))
        self.ledger.append("receipt", {"name": name, "digest": published.digest, **subject}, self.timestamp())
        return published

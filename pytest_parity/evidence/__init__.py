"""Evidence on disk: receipts that are written once, and the log that chains them.

Adapters to disk. They know the core and the errors, and nothing of engines, of the machine or of pytest.
"""

from pytest_parity.evidence.entries import GENESIS, Entry
from pytest_parity.evidence.ledger import Ledger, head
from pytest_parity.evidence.recovery import Recovered, log_unlogged
from pytest_parity.evidence.store import Published, ReceiptStore
from pytest_parity.evidence.verification import Problem, Verification, verify

__all__ = [
    "GENESIS",
    "Entry",
    "Ledger",
    "Problem",
    "Published",
    "ReceiptStore",
    "Recovered",
    "Verification",
    "head",
    "log_unlogged",
    "verify",
]

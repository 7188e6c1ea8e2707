"""Everything that pytest-parity raises, in one tree, named by cause.

Each message says four things: the thing, what was expected, what was found, and what to do.
The classes survive pickling, because xdist carries exceptions between processes.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AdmissionRefused",
    "ClockBackwards",
    "ConfigurationError",
    "ContextExceeded",
    "EngineDied",
    "EngineError",
    "EngineNotReady",
    "EngineSilent",
    "EngineStartFailed",
    "EvidenceError",
    "ForeignProcess",
    "IdentityMismatch",
    "LeaseError",
    "LeaseUnavailable",
    "LedgerBroken",
    "MalformedReply",
    "NothingCompared",
    "ParityError",
    "PinMismatch",
    "PortTaken",
    "ProvisionError",
    "ReceiptExists",
    "ReceiptUnreadable",
    "SettingsIgnored",
    "StorageFailed",
    "TimingUnreadable",
    "Unsupported",
]


class ParityError(Exception):
    """Base of all errors of this package.

    ``thing`` names what is wrong, ``expected`` and ``found`` say how, ``mend`` what to do about it.
    """

    def __init__(self, thing: str, *, expected: str, found: str, mend: str) -> None:
        self.thing = thing
        self.expected = expected
        self.found = found
        self.mend = mend
        super().__init__(f"{thing}: expected {expected}; found {found}. {mend}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.thing, self.expected, self.found, self.mend))


def _rebuild(kind: type[ParityError], thing: str, expected: str, found: str, mend: str) -> ParityError:
    return kind(thing, expected=expected, found=found, mend=mend)


class ConfigurationError(ParityError):
    """A register, a configuration or an option cannot be read (exit status 4)."""


class NothingCompared(ParityError):
    """A comparison, a selection or a sum over nothing: never a pass."""


class Unsupported(ParityError):
    """A driver cannot do what the claim asks; found before anything starts."""


class AdmissionRefused(ParityError):
    """A pair was refused before anything was started."""


class ContextExceeded(AdmissionRefused):
    """Prompt and output together do not fit the engine's context."""


class PinMismatch(AdmissionRefused):
    """An engine or a model is not the one that was pinned."""


class TimingUnreadable(ParityError):
    """Events do not allow the rate that was asked for."""


class ClockBackwards(TimingUnreadable):
    """A later event carries an earlier time."""


class LeaseError(ParityError):
    """The lease's file is unsafe or unusable."""


class LeaseUnavailable(LeaseError):
    """Somebody else holds the accelerator (exit status 75)."""


class ForeignProcess(ParityError):
    """Another engine or a profiler runs beside the measurement."""


class EngineError(ParityError):
    """Something went wrong with one side's engine."""


class EngineStartFailed(EngineError):
    """The program could not be started, or ended before it was ready."""


class EngineNotReady(EngineError):
    """The deadline passed before one real token was served."""


class EngineDied(EngineError):
    """The engine's process ended while it was being used."""


class EngineSilent(EngineError):
    """No event arrived for longer than the silence limit."""


class PortTaken(EngineError):
    """The port answers, and it is not our engine."""


class IdentityMismatch(EngineError):
    """What answers is not what was started or declared."""


class MalformedReply(EngineError):
    """Bytes that are not what the dialect promises."""


class SettingsIgnored(EngineError):
    """A setting that was asked for did not take effect."""


class EvidenceError(ParityError):
    """Evidence could not be written or read."""


class ReceiptExists(EvidenceError):
    """A receipt of that name is there already; receipts are never replaced."""


class ReceiptUnreadable(EvidenceError):
    """A receipt's bytes are not a receipt."""


class LedgerBroken(EvidenceError):
    """The chain of the log does not hold."""


class StorageFailed(EvidenceError):
    """The evidence volume refused a write (full, read-only, gone)."""


class ProvisionError(ParityError):
    """An engine or a model could not be fetched, verified or built."""

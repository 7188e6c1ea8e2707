"""What can go wrong when an engine or a model is provided, named by cause.

Every error names the thing, says what was expected, what was found, and what to do about it.
"""

from __future__ import annotations

from pytest_parity.errors import ProvisionError

__all__ = [
    "BuildFailed",
    "CacheUnusable",
    "DigestMismatch",
    "DoesNotStart",
    "MissingMember",
    "PinUnreadable",
    "ProvisionError",
    "RegistryUnavailable",
    "ToolMissing",
    "UnknownName",
    "UnsafeArchive",
]


class UnknownName(ProvisionError):
    """An engine, a model or a variant that no pin describes."""


class DigestMismatch(ProvisionError):
    """Bytes that are not the pinned ones: downloaded, cached, extracted or derived."""


class UnsafeArchive(ProvisionError):
    """An archive with a member that would leave the folder it is unpacked into, or that is no file."""


class MissingMember(ProvisionError):
    """An archive, or a finished build, without a file that the pin names."""


class RegistryUnavailable(ProvisionError):
    """The package index could not be asked, or does not have the pinned file: the real tier is NOT RUN."""


class ToolMissing(ProvisionError):
    """A compiler, cmake, a make program, pip or a Python package that is needed is not installed."""


class BuildFailed(ProvisionError):
    """Configuring or compiling ended with an error or ran past its limit; carries the log's tail."""


class DoesNotStart(ProvisionError):
    """A binary that was built, or taken from the cache, and can't be executed here."""


class PinUnreadable(ProvisionError):
    """A local pin that is no JSON, of another format, or whose fields are missing or of a wrong type."""


class CacheUnusable(ProvisionError):
    """The cache folder can't be written, is full, or is held by another process for too long."""

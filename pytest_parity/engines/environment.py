"""Which of our environment an engine gets to see, and what may never be written down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from pytest_parity.errors import ConfigurationError

__all__ = ["KEPT_VARIABLES", "is_secret", "scrubbed_environment"]

KEPT_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""Names (``*`` stands for anything) that an engine's environment keeps without being asked."""

_NEVER_KEPT = ("LLAMA_ARG_*", "LLAMA_SERVER_*", "GGML_*")
"""An engine reads these like arguments: inherited, they would change it behind its argv's back."""
_SECRET_WORDS = frozenset((
    "TOKEN", "SECRET", "PASS", "PAT", "BEARER", "AUTHORIZATION",
    "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "KEY", "APIKEY",
    "AUTH", "COOKIE",
))  # fmt: skip
_SECRET_VALUE = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def scrubbed_environment(
    base: Mapping[str, str], keep: Iterable[str], add: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment for an engine, and the sorted names that were left out of ``base``.

    Kept are KEPT_VARIABLES and the names or patterns in ``keep``, but never secrets and never what an engine
    reads like an argument (LLAMA_ARG_*, LLAMA_SERVER_*, GGML_*): such a setting has to be declared, in
    ``add``, which is taken as it is. Raises ConfigurationError for a secret in ``add``: declared settings are
    published.
    """
    patterns = (*KEPT_VARIABLES, *keep)
    kept = {
        name: value
        for name, value in base.items()
        if _matches(name, patterns) and not _matches(name, _NEVER_KEPT) and not is_secret(name, value)
    }
    dropped = tuple(sorted(set(base) - set(kept) - set(add)))
    for name, value in add.items():
        if is_secret(name, value):
            raise ConfigurationError(
                f"environment variable {name} of an engine",
                expected="settings that may stand in a receipt",
                found="a name or a value that looks like a secret",
                mend="Let the engine read the secret from a file outside of the repository.",
            )
        kept[name] = value
    return kept, dropped


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_secret(name: str, value: str) -> bool:
    """Does a variable look like a secret, by a word of its name or by credentials in its value?"""
    # Whole words: TOKENIZERS_PARALLELISM and MAX_TOKENS are no secrets.
    return not _SECRET_WORDS.isdisjoint(name.upper().split("_")) or _SECRET_VALUE.search(value) is not None

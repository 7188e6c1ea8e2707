"""Keeps secrets and this machine's paths out of everything that is written."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_parity.engines.environment import is_secret

__all__ = ["Redactor"]

_SECRET_OPTION = re.compile(
    r"--?(?:.*[-_])?(?:key|token|secret|password|passwd|pass|pat|credentials?)", re.IGNORECASE
)
_CREDENTIALS = re.compile(
    r"://([^/\s@]*:[^/\s@]+)@|\bBearer\s+(\S+)|(?:[?&;]|\b)(?:access_token|api_key|token|password|pass|key)=([^&;\s]+)",
    re.IGNORECASE,
)
_SHORTEST = 6
"""Shorter values are words of the texts themselves, and no secrets."""


class Redactor:
    """Replaces known paths by placeholders, and secrets by ``[redacted]``.

    Secrets are the values of secret-looking variables in ``environments``, what follows an option such as
    ``--api-key`` in ``argvs``, and credentials inside of addresses in either.
    """

    def __init__(
        self,
        places: Mapping[str, str | Path | None],
        environments: Sequence[Mapping[str, str]],
        argvs: Sequence[Sequence[str]] = (),
    ) -> None:
        marks = {
            os.path.realpath(sys.executable): "{python}",
            sys.executable: "{python}",
            sys.prefix: "{venv}",
            str(Path(__file__).parents[1]): "{package}",
            os.path.expanduser("~"): "{home}",
            os.getcwd(): "{cwd}",
        }
        marks |= {str(path): mark for mark, path in places.items() if path is not None}
        marks = {path: mark for path, mark in marks.items() if os.path.isabs(path) and path != "/"}
        secrets = {secret for found in environments for secret in _of_environment(found)}
        secrets |= {secret for argv in argvs for secret in _of_arguments(argv)}
        marks |= {secret: "[redacted]" for secret in secrets if len(secret) >= _SHORTEST}
        self._marks = sorted(marks.items(), key=lambda item: -len(item[0]))

    def text(self, text: str) -> str:
        """``text`` with everything known replaced."""
        for found, mark in self._marks:
            text = text.replace(found, mark)
        return text

    def value(self, value: Any) -> Any:
        """``value`` (JSON) with every string in it replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


def _of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if is_secret(name, value):
            yield value
        yield from _credentials(value)


def _of_arguments(argv: Sequence[str]) -> Iterator[str]:
    secret_next = False
    for argument in argv:
        if secret_next:
            yield argument
        option, equals, value = argument.partition("=")
        secret_option = _SECRET_OPTION.fullmatch(option) is not None
        if secret_option and equals:
            yield value
        secret_next = secret_option and not equals
        yield from _credentials(argument)


def _credentials(text: str) -> Iterator[str]:
    for match in _CREDENTIALS.finditer(text):
        yield from (found for found in match.groups() if found)

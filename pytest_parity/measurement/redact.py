"""Keeps secrets and this machine's paths out of everything that is written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Redactor"]

SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)


class Redactor:
    """Replaces known paths by placeholders and the values of secret-looking variables by ``[redacted]``."""

    def __init__(self, places: Mapping[str, str | Path | None], environment: Mapping[str, str]) -> None:
        marks = {str(path): mark for mark, path in places.items() if path is not None}
        home = os.path.expanduser("~")
        if len(home) > 1:
            marks.setdefault(home, "{home}")
        for name, value in environment.items():
            if SECRET_NAMES.search(name) and len(value) >= 6:
                marks[value] = "[redacted]"
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

"""Bytes to ids and back: 256 bytes, an end id, a begin id and two spare ones.

Ids below 256 are the bytes themselves. There is no merging, so every text has exactly one tokenisation and
its length in ids is its length in bytes.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE = 260
END = 256
BEGIN = 257

SPECIAL_NAMES: MappingProxyType[int, str] = MappingProxyType(
    {END: "<|end|>", BEGIN: "<|bos|>", 258: "<|spare-0|>", 259: "<|spare-1|>"}
)
"""How the ids that are no byte are written in a text."""

_BY_NAME = MappingProxyType({name: token for token, name in SPECIAL_NAMES.items()})
_SPECIAL = re.compile("(" + "|".join(re.escape(name) for name in SPECIAL_NAMES.values()) + ")")


def tokenize(text: str, *, parse_special: bool = False) -> list[int]:
    """Return the ids of ``text``; with ``parse_special`` the names of special ids become those ids."""
    if not parse_special:
        return list(text.encode("utf-8"))
    ids: list[int] = []
    for part in _SPECIAL.split(text):
        if part in _BY_NAME:
            ids.append(_BY_NAME[part])
        else:
            ids.extend(part.encode("utf-8"))
    return ids


def piece(token: int, *, special: bool = True) -> bytes:
    """Return the bytes that ``token`` stands for; a special id has a name, or nothing without ``special``."""
    if not 0 <= token < SIZE:
        message = f"vocabulary: expected an id from 0 to {SIZE - 1}, found {token}; use ids of this model"
        raise ValueError(message)
    if token < END:
        return bytes((token,))
    return SPECIAL_NAMES[token].encode() if special else b""


def join(tokens: Iterable[int], *, special: bool = True) -> bytes:
    """Return the bytes of several ids."""
    return b"".join(piece(token, special=special) for token in tokens)


def display_piece(token: int) -> str | list[int]:
    """Return a piece as llama.cpp's /tokenize writes it: text where it is UTF-8, else a list of bytes."""
    raw = piece(token)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return list(raw)

"""One way to write a value as bytes, so that a digest of the bytes is a digest of the value.

Canonical bytes are JSON in UTF-8: keys sorted by code point, no spaces, floats in their shortest form that
reads back bit for bit, integers exact, tuples written as lists, one newline at the end and nowhere else.
What JSON can't carry without loss is refused, never coerced.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import NoReturn, TypeAlias

from pytest_parity.errors import EvidenceError, ReceiptUnreadable

__all__ = ["Json", "canonical_bytes", "digest", "is_digest", "parse"]

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

# The way to a value from the outside in, spelled out only when something is wrong there.
_Place: TypeAlias = "tuple[_Place, object] | None"

# Deep enough for any evidence, and far from the interpreter's own limit, which differs between versions.
_DEEPEST = 100
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MEND_VALUE = "Give plain JSON values: text, whole numbers, finite floats, lists and objects with text keys."
_MEND_BYTES = "Restore the stored bytes from where they were published; evidence is never rewritten."
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def digest(data: bytes) -> str:
    """The name of these bytes: ``sha256:`` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_digest(text: object) -> bool:
    """Whether ``text`` has the form that ``digest`` gives."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def canonical_bytes(value: object) -> bytes:
    """Write ``value`` in its one canonical form.

    Raises ``EvidenceError``, naming the place, for NaN and infinities, keys that are not text, lone
    surrogates, integers too long to be read back, nesting beyond 100 levels, and every type that JSON lacks.
    """
    plain = _plain(value, None, 0)
    try:
        text = _ENCODER.encode(plain)
    except ValueError as error:
        # Only the interpreter's limit on the digits of an integer is left to trip over here.
        raise _refused(None, "integers that can be written out", str(error)) from error
    return text.encode("utf-8") + b"\n"


def parse(data: bytes) -> Json:
    """Read canonical bytes back.

    Raises ``ReceiptUnreadable`` for anything else: a byte order mark, bytes that are not UTF-8, duplicate
    keys, NaN, anything after the value, and JSON that is well formed but not in the canonical form.
    """
    if data.startswith(_BYTE_ORDER_MARK):
        raise _unreadable("bytes without a byte order mark", "one at the start")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable("UTF-8", f"byte {error.start} is not ({error.reason})") from error
    try:
        value: Json = _DECODER.decode(text)
    except RecursionError as error:
        raise _unreadable(f"at most {_DEEPEST} levels of nesting", "more") from error
    except json.JSONDecodeError as error:
        raise _unreadable("one JSON value", f"{error.msg} at character {error.pos}") from error
    except ValueError as error:
        raise _unreadable("integers that can be read", str(error)) from error
    try:
        again = canonical_bytes(value)
    except EvidenceError as error:
        raise _unreadable(error.expected, error.found) from error
    if again != data:
        place = _first_difference(data, again)
        raise _unreadable("canonical bytes", f"another spelling of the same value from byte {place} on")
    return value


def _plain(value: object, place: _Place, level: int) -> Json:
    """The same value made of JSON's own types only; what has none is refused with its place."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(place, "a finite number", repr(float(value)))
        return float(value)
    if level >= _DEEPEST:
        raise _refused(None, f"at most {_DEEPEST} levels of nesting", "more")
    if isinstance(value, Mapping):
        return {_key(key, place): _plain(item, (place, key), level + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (place, number), level + 1) for number, item in enumerate(value)]
    raise _refused(place, "a JSON value", f"a {type(value).__name__}")


def _key(key: object, place: _Place) -> str:
    if not isinstance(key, str):
        raise _refused(place, "text keys", f"the key {key!r}, a {type(key).__name__}")
    return _text(key, place)


def _text(value: str, place: _Place) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _refused(place, "text without lone surrogates", f"one at character {error.start}") from error
    # A str subclass (an enumeration's member) is written as the text that it is.
    return str.__str__(value)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise _unreadable("each key once", f"the key {twice!r} twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise _unreadable("finite numbers", name)


def _first_difference(one: bytes, other: bytes) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _refused(place: _Place, expected: str, found: str) -> EvidenceError:
    steps = ""
    while place is not None:
        place, step = place
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}") + steps
    return EvidenceError(f"value at ${steps}", expected=expected, found=found, mend=_MEND_VALUE)


def _unreadable(expected: str, found: str) -> ReceiptUnreadable:
    return ReceiptUnreadable("stored bytes", expected=expected, found=found, mend=_MEND_BYTES)


# Made once: json.dumps and json.loads would make new ones for every line of a log.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)

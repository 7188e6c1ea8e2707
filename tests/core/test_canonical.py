"""Canonical bytes: what goes in comes out, and there is only one way to write it."""

from __future__ import annotations

import enum
import json
import math
import re
import struct
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_parity.core.canonical import Json, canonical_bytes, digest, is_digest, parse
from pytest_parity.errors import EvidenceError, ReceiptUnreadable

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=30)
MEND_VALUE = "Give plain JSON values: text, whole numbers, finite floats, lists and objects with text keys."
MEND_BYTES = "Restore the stored bytes from where they were published; evidence is never rewritten."


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Json) -> None:
    data = canonical_bytes(value)
    back = parse(data)
    assert back == value
    assert repr(back) == repr(_sorted(value)), "equality alone would let 1, 1.0 and True pass for each other"
    assert canonical_bytes(back) == data
    assert data.endswith(b"\n") and data.count(b"\n") == 1


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(5e-324)
@example(0.1 + 0.2)
@example(1.7976931348623157e308)
@example(1e16)
def test_a_float_comes_back_bit_for_bit(value: float) -> None:
    back = parse(canonical_bytes({"rate": value}))
    assert isinstance(back, dict)
    rate = back["rate"]
    assert isinstance(rate, float)
    assert struct.pack("<d", rate) == struct.pack("<d", value)


@given(st.integers(min_value=-(10**400), max_value=10**400))
def test_an_integer_comes_back_exact(value: int) -> None:
    assert parse(canonical_bytes(value)) == value


@given(st.dictionaries(TEXT, SCALARS, min_size=2))
def test_the_order_of_keys_does_not_matter(value: dict[str, Json]) -> None:
    turned = dict(reversed(list(value.items())))
    assert canonical_bytes(turned) == canonical_bytes(value)


def test_the_form_itself() -> None:
    value = {"b": [1, 2.0, True, None], "a": "ünï\n", "c": {}}
    assert canonical_bytes(value) == '{"a":"ünï\\n","b":[1,2.0,true,null],"c":{}}\n'.encode()


class Word(enum.StrEnum):
    EOS = "eos"


class Count(enum.IntEnum):
    ONE = 1


def test_what_is_json_in_all_but_type_is_written_as_json() -> None:
    value = {
        "ids": (1, 2),
        "stop": Word.EOS,
        "n": Count.ONE,
        "s": MappingProxyType({"t": 0}),
    }
    assert canonical_bytes(value) == b'{"ids":[1,2],"n":1,"s":{"t":0},"stop":"eos"}\n'


REFUSED: list[tuple[object, str, str, str]] = [
    (math.nan, "$", "a finite number", "nan"),
    ({"a": [1.0, math.inf]}, "$.a[1]", "a finite number", "inf"),
    ({"a": {"b": -math.inf}}, "$.a.b", "a finite number", "-inf"),
    ({"a": {1: 2}}, "$.a", "text keys", "the key 1, a int"),
    ({None: 2}, "$", "text keys", "the key None, a NoneType"),
    ("x\ud800", "$", "text without lone surrogates", "one at character 1"),
    ({"\udfff": 1}, "$", "text without lone surrogates", "one at character 0"),
    ([b"bytes"], "$[0]", "a JSON value", "a bytes"),
    ({"ids": {1, 2}}, "$.ids", "a JSON value", "a set"),
    (1 + 2j, "$", "a JSON value", "a complex"),
]


@pytest.mark.parametrize(("value", "place", "expected", "found"), REFUSED)
def test_what_json_cannot_carry_is_refused(value: object, place: str, expected: str, found: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        canonical_bytes(value)
    assert str(caught.value) == f"value at {place}: expected {expected}; found {found}. {MEND_VALUE}"


def test_deep_nesting_and_cycles_are_refused() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(EvidenceError) as caught:
        canonical_bytes(cycle)
    assert str(caught.value) == (
        f"value at $: expected at most 100 levels of nesting; found more. {MEND_VALUE}"
    )
    deep: Json = 1
    for _ in range(100):
        deep = [deep]
    assert parse(canonical_bytes(deep)) == deep


def test_an_integer_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(
        EvidenceError, match="expected integers that can be written out; found Exceeds the limit"
    ):
        canonical_bytes(10**5000)
    with pytest.raises(
        ReceiptUnreadable, match="expected integers that can be read; found Exceeds the limit"
    ):
        parse(b"1" * 5000 + b"\n")


UNREADABLE: list[tuple[bytes, str, str]] = [
    (b"", "one JSON value", "Expecting value at character 0"),
    (b'{"a":1}\n{"b":2}\n', "one JSON value", "Extra data at character 8"),
    (b'{"a":1,"a":1}\n', "each key once", "the key 'a' twice"),
    (b'{"b":{"a":1,"c":2,"a":3}}\n', "each key once", "the key 'a' twice"),
    (b'{"a":NaN}\n', "finite numbers", "NaN"),
    (b'{"a":-Infinity}\n', "finite numbers", "-Infinity"),
    (b'{"a":1e999}\n', "a finite number", "inf"),
    (b"\xef\xbb\xbf{}\n", "bytes without a byte order mark", "one at the start"),
    (b'"\xff"\n', "UTF-8", "byte 1 is not (invalid start byte)"),
    (b'"\\ud800"\n', "text without lone surrogates", "one at character 0"),
    (b"{}", "canonical bytes", "another spelling of the same value from byte 2 on"),
    (b"{}\n\n", "canonical bytes", "another spelling of the same value from byte 3 on"),
    (b' {"a":1}\n', "canonical bytes", "another spelling of the same value from byte 0 on"),
    (b'{"a": 1}\n', "canonical bytes", "another spelling of the same value from byte 5 on"),
    (b'{"b":1,"a":2}\n', "canonical bytes", "another spelling of the same value from byte 2 on"),
    (b"1.50\n", "canonical bytes", "another spelling of the same value from byte 3 on"),
    (b"-0\n", "canonical bytes", "another spelling of the same value from byte 0 on"),
    (b'"\\u0041"\n', "canonical bytes", "another spelling of the same value from byte 1 on"),
    (b"[" * 101 + b"]" * 101 + b"\n", "at most 100 levels of nesting", "more"),
    (b"[" * 200_000 + b"]" * 200_000 + b"\n", "at most 100 levels of nesting", "more"),
]


@pytest.mark.parametrize(("data", "expected", "found"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_bytes_that_are_not_canonical_are_refused(data: bytes, expected: str, found: str) -> None:
    with pytest.raises(ReceiptUnreadable) as caught:
        parse(data)
    assert str(caught.value) == f"stored bytes: expected {expected}; found {found}. {MEND_BYTES}"


@given(VALUES, st.data())
def test_no_edit_of_one_byte_reads_as_the_same_value(value: Json, data: st.DataObject) -> None:
    stored = canonical_bytes(value)
    at = data.draw(st.integers(0, len(stored) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != stored[at]))
    edited = stored[:at] + bytes([byte]) + stored[at + 1 :]
    try:
        back = parse(edited)
    except ReceiptUnreadable:
        return
    assert canonical_bytes(back) != stored


@given(st.binary(max_size=60))
def test_parse_refuses_or_reads_and_nothing_else(data: bytes) -> None:
    try:
        value = parse(data)
    except ReceiptUnreadable:
        return
    assert canonical_bytes(value) == data


def test_digest() -> None:
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert is_digest(digest(b"x"))
    for other in ("", "sha256:", "sha256:" + "A" * 64, "md5:" + "0" * 64, digest(b"x") + "\n", None, 7):
        assert not is_digest(other)


def test_canonical_json_is_json() -> None:
    value = {"ids": [1, 2], "rate": 1e-7}
    assert json.loads(canonical_bytes(value)) == value
    assert not re.search(rb"[ \t]", canonical_bytes(value))


def _sorted(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value

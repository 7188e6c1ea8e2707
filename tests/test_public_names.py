"""The package's public names."""

from __future__ import annotations

import pytest

import pytest_parity


@pytest.mark.parametrize("name", pytest_parity.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pytest_parity, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Parity'"):
        _ = pytest_parity.Parity

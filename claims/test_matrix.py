"""Every row of the register, one item a pair."""

from pytest_parity import ParityHandle


def test_cell(parity: ParityHandle) -> None:
    parity.measure().exact().record()

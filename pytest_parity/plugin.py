"""The pytest hooks. Each body is a few lines; the work is done in the modules next to this one.

Importing this module must cost a project that has no parity tests nothing: only the standard library and
pytest are imported here, everything else on first need.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_parity import options
from pytest_parity.fixtures import candidate, lease, parity, reference
from pytest_parity.stash import CONTROLLER, HANDLE

if TYPE_CHECKING:
    from pytest_parity.control import Controller

__all__ = ["candidate", "lease", "parity", "reference"]


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "parity(claim=NAME): a pair of an engine claim; runs only when asked for with -m parity"
    )
    if options.is_active(config):
        if config.option.parity_plan:
            config.option.dist, config.option.tx = "no", []  # workers would have nothing to do
        _controller(config).check_configuration()
    elif options.distributes(config) and _has_configuration(config):
        _controller(config)  # the workers collect; verdicts and the session's name come from here


def _has_configuration(config: pytest.Config) -> bool:
    """Could there be parity tests at all? Asked without importing anything."""
    return config.getoption("--parity-config") is not None or (config.rootpath / "parity.toml").exists()


def _controller(config: pytest.Config) -> Controller:
    """Made on first need, so that a run without parity tests imports nothing."""
    if CONTROLLER not in config.stash:
        from pytest_parity.control import Controller

        config.stash[CONTROLLER] = Controller(config)
        config.pluginmanager.register(config.stash[CONTROLLER], "parity-controller")
    return config.stash[CONTROLLER]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "parity" in metafunc.fixturenames:
        _controller(metafunc.config).parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    if "parity" in getattr(item, "fixturenames", ()):
        item.add_marker("parity")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, Any, Any]:
    before = [item for item in items if item.get_closest_marker("parity")]
    result = yield
    if before:
        _controller(config).select(items, before)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {}).get("parity")
    if told:
        _controller(node.config).hear(told)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        result = yield
        if HANDLE in item.stash:
            item.stash[HANDLE].require_recorded()
        elif any("claim" in marker.kwargs for marker in item.iter_markers("parity")):
            pytest.fail(
                "marked with a claim, and nothing was measured: the test takes no 'parity' fixture",
                pytrace=False,
            )
    finally:
        if HANDLE in item.stash:
            item.stash[HANDLE].close()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if HANDLE in item.stash:
        item.stash[HANDLE].annotate(report, call.excinfo.value if call.excinfo else None)
    return report

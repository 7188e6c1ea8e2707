"""Free ports, and who listens on them."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_parity.engines import ports
from pytest_parity.engines.ports import assert_owned, free_port, socket_owner
from pytest_parity.errors import EngineStartFailed, IdentityMismatch, PortTaken

SERVER = """
import socket, sys, time
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen()
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def server(port: int, address: str = "127.0.0.1") -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", SERVER, address, str(port)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_free_ports_are_free_and_no_clients_port() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for _ in range(50):
        port = free_port()
        assert not low <= port <= high
        assert socket_owner(port) == frozenset()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_no_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: number)
        with pytest.raises(EngineStartFailed) as caught:
            free_port()
    assert str(caught.value) == (
        "port on 127.0.0.1: expected a free one; found none in 200 tries. End the servers that hold them."
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_owner_on_every_address_that_answers(address: str) -> None:
    if ":" in address and not has_ipv6():
        pytest.skip("no IPv6 here")
    port = free_port()
    with server(port, address) as child:
        assert socket_owner(port) == {child.pid}
        assert_owned(port, child.pid)
        assert_owned(port, {child.pid})
    assert socket_owner(port) == frozenset()


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_listener_elsewhere_does_not_answer(address: str) -> None:
    if ":" in address and not has_ipv6():
        pytest.skip("no IPv6 here")
    port = free_port()
    with server(port, address):
        assert socket_owner(port) == frozenset()


def test_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with server(port) as child:
        with pytest.raises(PortTaken) as caught:
            assert_owned(port, os.getpgid(0))
        assert str(caught.value) == (
            f"port {port} of 127.0.0.1: expected our engine to listen on it; found it held by pid "
            f"{child.pid} "
            f"({sys.executable} -c). End that process, or run again: every start chooses another port."
        )
        monkeypatch.setattr(ports, "_owners", lambda _: frozenset())
        with pytest.raises(PortTaken, match="found it held by a process hidden from us"):
            assert_owned(port, child.pid)


def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(IdentityMismatch) as caught:
        assert_owned(port, os.getpgid(0))
    assert str(caught.value) == (
        f"port {port} of 127.0.0.1: expected our engine to listen on it; found nobody listening. "
        "Check that the engine's argv passes {port} and that it listens on 127.0.0.1."
    )


@pytest.mark.parametrize("ours", [lambda pid: pid, lambda pid: {pid}])
def test_port_shared_with_a_stranger(ours: Callable[[int], int | set[int]]) -> None:
    port = free_port()
    with server(port) as mine, server(port) as stranger:
        assert socket_owner(port) == {mine.pid, stranger.pid}
        with pytest.raises(IdentityMismatch) as caught:
            assert_owned(port, ours(mine.pid))
        text = str(caught.value)
        assert text.startswith(
            f"port {port} of 127.0.0.1: expected our engine alone to listen on it; found it shared with pid "
            f"{stranger.pid} ("
        )
        assert text.endswith("). End that process: nobody can tell who answered.")
        assert f"pid {mine.pid} " not in text

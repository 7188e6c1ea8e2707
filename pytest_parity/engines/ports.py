"""A free port for an engine, and proof of who listens on it.

Whoever answers at an address need not be the engine that was started there: an older server, a router
or another session may hold the port. The kernel knows the listening socket and the processes that have
it open; an answer counts only after :func:`assert_owned`.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Collection
from pathlib import Path

from pytest_parity.errors import EngineStartFailed, IdentityMismatch, PortTaken

__all__ = ["assert_owned", "free_port", "socket_owner"]

_LOWEST = 10240
_EPHEMERAL_LOW = 32768  # Linux's default, where the setting cannot be read
_ATTEMPTS = 200
_LISTEN = "0A"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, outside the range that the kernel gives to clients.

    Nothing is reserved: an engine cannot inherit a reservation. Random choice outside of the clients' range
    leaves only other servers to collide with, and :func:`assert_owned` finds those. Raises EngineStartFailed.
    """
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        low = _EPHEMERAL_LOW
    choose = random.SystemRandom()  # the seed of a test must not make two workers choose alike
    for _ in range(_ATTEMPTS):
        port = choose.randrange(_LOWEST, low) if low > _LOWEST + 1000 else 0
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                # No SO_REUSEADDR: a port with connections that still close is left alone too.
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EngineStartFailed(
        "port on 127.0.0.1",
        expected="a free one",
        found=f"none in {_ATTEMPTS} tries",
        mend="End the servers that hold them.",
    )


def socket_owner(port: int) -> frozenset[int]:
    """Processes that have a socket open which listens where 127.0.0.1:``port`` is answered.

    Sockets on all addresses count. Empty where nobody listens, and where the owner is hidden from us.
    """
    return _owners(_listening(port))


def assert_owned(port: int, ours: int | Collection[int]) -> None:
    """Raise unless everybody who could answer on 127.0.0.1:``port`` is one of ``ours``.

    ``ours``: a process group's id, or pids. Raises PortTaken where the port is somebody else's, and
    IdentityMismatch where nobody listens or a stranger shares the port with us.
    """
    inodes = _listening(port)
    owners = _owners(inodes)
    strangers = sorted(pid for pid in owners if not _is_ours(pid, ours))
    if inodes and owners and not strangers:
        return
    thing = f"port {port} of 127.0.0.1"
    if not inodes:
        raise IdentityMismatch(
            thing,
            expected="our engine to listen on it",
            found="nobody listening",
            mend="Check that the engine's argv passes {port} and that it listens on 127.0.0.1.",
        )
    found = ", ".join(f"pid {pid} ({_command(pid)})" for pid in strangers) or "a process hidden from us"
    if len(strangers) < len(owners):
        raise IdentityMismatch(
            thing,
            expected="our engine alone to listen on it",
            found=f"it shared with {found}",
            mend="End that process: nobody can tell who answered.",
        )
    raise PortTaken(
        thing,
        expected="our engine to listen on it",
        found=f"it held by {found}",
        mend="End that process, or run again: every start chooses another port.",
    )


def _is_ours(pid: int, ours: int | Collection[int]) -> bool:
    if not isinstance(ours, int):
        return pid in ours
    try:
        return os.getpgid(pid) == ours
    except ProcessLookupError:
        return False


def _listening(port: int) -> frozenset[int]:
    """Inodes of the listening sockets that answer a connection to 127.0.0.1:``port``."""
    loopback, mapped = _hex("127.0.0.1"), _hex("0.0.0.0") * 2 + _hex_word(b"\0\0\xff\xff")
    addresses = {loopback, "0" * 8, "0" * 32, mapped + loopback}
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:  # no IPv6
            continue
        for fields in map(str.split, lines):
            address, _, at = fields[1].partition(":")
            if fields[3] == _LISTEN and int(at, 16) == port and address in addresses:
                found.add(int(fields[9]))
    return frozenset(found)


def _hex(address: str) -> str:
    return _hex_word(socket.inet_aton(address))


def _hex_word(network_order: bytes) -> str:
    """Four bytes as the kernel prints them: a number in the machine's own byte order."""
    return f"{int.from_bytes(network_order, sys.byteorder):08X}"


def _owners(inodes: frozenset[int]) -> frozenset[int]:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = set()
    for name in os.listdir("/proc") if wanted else ():
        if not name.isdigit():
            continue
        try:
            if any(_target(f"/proc/{name}/fd/{fd}") in wanted for fd in os.listdir(f"/proc/{name}/fd")):
                found.add(int(name))
        except OSError:  # gone, or another user's
            continue
    return frozenset(found)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        # Only the head: what follows may be a whole program, or a secret.
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2]
    except OSError:
        return "command unknown"
    return " ".join(b" ".join(words).decode("utf-8", "replace").split())[:200] or "command unknown"

"""The engine's command line, in llama-server's names where it has them."""

from __future__ import annotations

import argparse
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pytest_parity.engines.embedded.faults import NAMES, FaultError, Faults, parse_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

DRAFT_WINDOWS = (768, 384)
LARGEST_CONTEXT = 4_194_304
KERNELS = ("plain", "fused")
MUTANT_NAMES = ("rope-base", "swap-kv", "window-minus-one", "epsilon-x10")
"""Kept here as well as in ``mutants`` (a test compares them): reading argv must not load numpy."""


@dataclass(frozen=True)
class Options:
    """What the command line said."""

    host: str
    port: int
    context: int
    seed: int
    block: int
    speculative: bool
    draft_window: int
    kernels: str
    load_seconds: float
    faults: Faults
    mutant: str | None
    alias: str
    position: int | None


class _Parser(argparse.ArgumentParser):
    """argparse, with the house's form of error: what was wrong, then where the options are told."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; run with --help for the options\n")


@dataclass(frozen=True)
class _Whole:
    """A whole number within bounds, for argparse."""

    least: int
    most: int | None = None

    def __call__(self, text: str) -> int:
        until = f" to {self.most}" if self.most is not None else " on"
        message = f"expected a whole number from {self.least}{until}, found {text!r}"
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(message) from None
        if number < self.least or (self.most is not None and number > self.most):
            raise argparse.ArgumentTypeError(message)
        return number


def _loopback(text: str) -> str:
    try:
        loopback = text == "localhost" or ipaddress.ip_address(text).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        message = f"expected a loopback address such as 127.0.0.1, found {text!r}: the engine answers anybody"
        raise argparse.ArgumentTypeError(message)
    return text


def _seconds(text: str) -> float:
    message = f"expected a number of seconds from 0 on, found {text!r}"
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(message) from None
    if not 0.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(message)
    return seconds


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m pytest_parity.engines.embedded", allow_abbrev=False, description=(__doc__ or "")
    )
    add = parser.add_argument
    add("--host", type=_loopback, default="127.0.0.1", help="loopback address to listen on")
    add(
        "--port",
        type=_Whole(0, 65_535),
        default=8080,
        help="0 takes a free one; it is printed when it listens",
    )
    add("--ctx-size", type=_Whole(2, LARGEST_CONTEXT), default=131_072, help="prompt and output ids together")
    add("--seed-weights", type=_Whole(0, 2**32 - 1), default=0, help="seed of the weights")
    add("--batch", type=_Whole(1), default=256, help="ids of a prompt that are read at once")
    add("--speculative", action="store_true", help="draft by looking up the prompt")
    add("--draft-window", type=int, choices=DRAFT_WINDOWS, default=768, help="ids a draft is looked up in")
    add("--kernels", choices=KERNELS, default="plain", help="fused decodes faster and writes the same ids")
    add("--load-seconds", type=_seconds, default=0.0, help="answer 503 for so long first")
    add("--fault", action="append", default=[], metavar="NAME[=VALUE]", help=", ".join(NAMES))
    add("--mutant", choices=MUTANT_NAMES, help="run a forward pass with this mistake")
    add("--alias", default="embedded", help="the model's name in replies")
    add("--position", type=_Whole(1, 2), help="first or second engine of its pair (for slow-first)")
    return parser


def parse_options(arguments: Sequence[str]) -> Options:
    """Read the command line; on a mistake say what is wrong and exit with status 2."""
    parser = _parser()
    read = parser.parse_args(arguments)
    try:
        faults = parse_faults(read.fault)
    except FaultError as error:
        parser.error(str(error))
    return Options(
        host=read.host,
        port=read.port,
        context=read.ctx_size,
        seed=read.seed_weights,
        block=read.batch,
        speculative=read.speculative,
        draft_window=read.draft_window,
        kernels=read.kernels,
        load_seconds=read.load_seconds,
        faults=faults,
        mutant=read.mutant,
        alias=read.alias,
        position=read.position,
    )

"""``parity``: what is done outside a test run. Exit status 0 all well, 1 something does not hold, 4 unreadable."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    from pytest_parity.errors import ConfigurationError, ParityError

    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ConfigurationError as error:
        print(f"parity: {error}", file=sys.stderr)
        return 4
    except ParityError as error:
        print(f"parity: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read along has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("parity: interrupted", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parity", description="Claims about LLM engines: evidence and engines."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _plan(commands.add_parser("plan", help="what a run would measure, and its machine time"))
    _verify(
        commands.add_parser(
            "verify", help="check receipts and derive their verdicts again, without any engine"
        )
    )
    _explain(commands.add_parser("explain", help="one receipt in words"))
    _ledger(commands.add_parser("ledger", help="the log of a receipts folder"))
    _engine(commands.add_parser("engine", help="build pinned engines, provide pinned models"))
    return parser


def _plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--claims", help="names, separated by commas; 'all' for all (default: default_claims)"
    )
    parser.add_argument("--parity-config", default="parity.toml", type=Path)

    def run(options: argparse.Namespace) -> int:
        from pytest_parity.commands.plan import plan

        return plan(options.parity_config, options.claims)

    parser.set_defaults(run=run)


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default=Path(".parity/receipts"), type=Path)
    parser.add_argument("--since", metavar="HEAD", help="a head digest that must still be in the log")

    def run(options: argparse.Namespace) -> int:
        from pytest_parity.commands.verify import verify

        return verify(options.folder, options.since)

    parser.set_defaults(run=run)


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipt", type=Path, help="a receipt's file")

    def run(options: argparse.Namespace) -> int:
        from pytest_parity.commands.explain import explain

        return explain(options.receipt)

    parser.set_defaults(run=run)


def _ledger(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="the log, a line each")
    show.add_argument("folder", nargs="?", default=Path(".parity/receipts"), type=Path)
    publish = actions.add_parser("publish", help="copy sessions into the committed receipts folder")
    publish.add_argument("session", nargs="+")
    publish.add_argument("--from", dest="source", default=Path(".parity/receipts"), type=Path)
    publish.add_argument("--to", dest="target", default=Path("receipts"), type=Path)

    def run_show(options: argparse.Namespace) -> int:
        from pytest_parity.commands.ledger import show as show_log

        return show_log(options.folder)

    def run_publish(options: argparse.Namespace) -> int:
        from pytest_parity.commands.ledger import publish as publish_sessions

        return publish_sessions(options.session, options.source, options.target)

    show.set_defaults(run=run_show)
    publish.set_defaults(run=run_publish)


def _engine(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser(
        "build", help="fetch, verify and build a pinned engine, or take it from the cache"
    )
    build.add_argument("name")
    model = actions.add_parser("model", help="fetch and verify a pinned model, and derive its variants")
    model.add_argument("name")
    model.add_argument("variant", nargs="*", help="variants to make (default: all of them)")
    listing = actions.add_parser("list", help="what can be built, and what is there")

    def run_build(options: argparse.Namespace) -> int:
        from pytest_parity.commands.engine import build as build_one

        return build_one(options.name)

    def run_model(options: argparse.Namespace) -> int:
        from pytest_parity.commands.engine import model as provide_one

        return provide_one(options.name, options.variant)

    def run_list(_options: argparse.Namespace) -> int:
        from pytest_parity.commands.engine import listing as list_all

        return list_all()

    build.set_defaults(run=run_build)
    model.set_defaults(run=run_model)
    listing.set_defaults(run=run_list)

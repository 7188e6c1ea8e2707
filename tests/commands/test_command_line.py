"""The command as a shell runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RECEIPTS = Path(__file__).parents[2] / "receipts"


def test_a_reader_that_has_seen_enough_is_no_traceback() -> None:
    program = [
        sys.executable,
        "-c",
        "import sys; from pytest_parity.cli import main; sys.exit(main(sys.argv[1:]))",
    ]
    with subprocess.Popen(
        [*program, "ledger", "show", str(RECEIPTS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.close()
        said = shown.stderr.read().decode()
        assert shown.wait(30) == 1
    assert "Traceback" not in said

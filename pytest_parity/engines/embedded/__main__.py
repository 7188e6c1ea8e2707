"""``python -m pytest_parity.engines.embedded``: run the engine."""

from __future__ import annotations

import os
import sys

# Before numpy is imported anywhere: a second BLAS thread costs more than it gives on matrices this small.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_variable] = "1"


def main() -> int:
    """Read the command line and serve until told to stop; returns the exit status."""
    from pytest_parity.engines.embedded.options import parse_options

    options = parse_options(sys.argv[1:])
    from pytest_parity.engines.embedded.server import serve

    return serve(options)


if __name__ == "__main__":
    sys.exit(main())

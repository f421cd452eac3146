"""`python -m amgc` is `amgc`."""

from __future__ import annotations

import sys

from amgc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

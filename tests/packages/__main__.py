"""The command ``python -m tests.packages``."""

from __future__ import annotations

import sys

from tests.packages.run import main

if __name__ == '__main__':
    sys.exit(main())

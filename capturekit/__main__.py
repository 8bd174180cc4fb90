"""``python -m capturekit``."""

import sys

from capturekit.cli import main

if __name__ == '__main__':
    sys.exit(main())

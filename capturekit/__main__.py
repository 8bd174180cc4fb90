# PYTHON_ARGCOMPLETE_OK
"""``python -m capturekit``."""

import sys

from capturekit.cli.main import main

if __name__ == '__main__':
    sys.exit(main())

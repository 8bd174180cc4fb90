"""Whether a thread is in a graphed function: then others are part of its work, and run as they stand."""

from __future__ import annotations

import threading


class _Busy(threading.local):
    """How many graphed functions this thread is in."""

    depth = 0


BUSY = _Busy()

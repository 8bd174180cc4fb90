"""GPU tests share the device with those of other processes; one marked ``serial`` has it for itself.

For tests that count what is the whole device's (free memory), that take times, or that watch with CUPTI: any number of
processes (``-n 16``) may run others meanwhile, so there is no group to be put in and nothing to choose.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Set while a test has its turn: what it starts belongs to it, and must not wait for it.
_HAS_TURN = 'CAPTUREKIT_TESTS_HAVE_TURN'


def folder() -> Path:
    """Where the locks of this user's tests are, whichever run they belong to."""
    return Path(tempfile.gettempdir(), f'capturekit-tests-{os.getuid()}')


@contextmanager
def turn(alone: bool, folder: Path) -> Iterator[None]:
    """Wait until the device is free for a test, or for one that wants it alone, and have it for the block."""
    if _HAS_TURN in os.environ:
        yield
        return
    folder.mkdir(exist_ok=True)
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with (folder / 'device').open('a') as device:
        # Everybody passes the door. Who wants to be alone keeps it until the device is empty, and is not overtaken.
        with (folder / 'door').open('a') as door:
            fcntl.flock(door, how)
            fcntl.flock(device, how)
        os.environ[_HAS_TURN] = '1'
        try:
            yield
        finally:
            del os.environ[_HAS_TURN]

"""The garbage collector's freezing, for tests: what conftest has frozen is frozen again afterwards.

Not where CuPy, with a GPU, has been imported since: arrays that only the collector would free hold a GPU's memory.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen() -> Iterator[None]:
    """Freeze all objects for a block."""
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if before:  # there is no way to unfreeze a part
            pass_over()


@contextmanager
def thawed() -> Iterator[None]:
    """Let the collector have all objects for a block."""
    before = gc.get_freeze_count()
    gc.unfreeze()
    try:
        yield
    finally:
        if before:
            pass_over()


def pass_over() -> None:
    """Let the collector pass over what there is."""
    cupy = sys.modules.get('cupy')
    if cupy is None or hasattr(cupy, '__capturekit_simulated__') or not cupy.is_available():
        gc.collect()
        gc.freeze()

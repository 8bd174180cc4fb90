"""The garbage collector's freezing, for tests: what conftest has frozen is frozen again afterwards."""

from __future__ import annotations

import gc
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
            _freeze()


@contextmanager
def thawed() -> Iterator[None]:
    """Let the collector have all objects for a block."""
    before = gc.get_freeze_count()
    gc.unfreeze()
    try:
        yield
    finally:
        if before:
            _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()

"""``cupyx.errstate``: whether CuPy reads on the host if a factorization has failed. Each thread has its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _Config(threading.local):
    linalg = 'ignore'


_config = _Config()


def get_config_linalg() -> str:
    return _config.linalg


def geterr() -> dict[str, Any]:
    return {'divide': None, 'over': None, 'under': None, 'invalid': None, 'linalg': get_config_linalg()}


def seterr(
    *, divide: Any = None, over: Any = None, under: Any = None, invalid: Any = None, linalg: Any = None
) -> dict[str, Any]:
    """Set how errors are treated: ``linalg`` is 'ignore' or 'raise'; CuPy has nothing else."""
    if not (divide is over is under is invalid is None) or linalg not in (None, 'ignore', 'raise'):
        raise NotImplementedError
    old = geterr()
    _config.linalg = linalg or old['linalg']
    return old


@contextlib.contextmanager
def errstate(
    *, divide: Any = None, over: Any = None, under: Any = None, invalid: Any = None, linalg: Any = None
) -> Iterator[None]:
    """Set how errors are treated in a block."""
    old = seterr(divide=divide, over=over, under=under, invalid=invalid, linalg=linalg)
    try:
        yield
    finally:
        seterr(**old)

"""Captures lost below Python, in every way that we know: the error names the line that did it.

Each way of ``first_cause.txt`` runs in a process of its own, for a lost capture can poison a library. The guilty line
ends in ``# <-- here``.
"""

# ruff: noqa: F401
from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from tests.gpu.world import in_process, programs_of

pytestmark = pytest.mark.gpu
FILE = Path(__file__).with_name('first_cause.txt')
WAYS = programs_of(FILE)


def runtime() -> Any:
    from cuda.bindings import runtime

    return runtime


def driver_library() -> Any:
    return ctypes.CDLL('libcuda.so.1')


def trial(name: str) -> str:
    """Lose a capture in this way, with and without an exception of the block's own; a new capture works afterwards."""
    import cupy as cp

    way, x = WAYS[name].compiled('cp, cap, x', vars(sys.modules[__name__])), cp.ones(16)
    x + 1, x * 2  # loaded beforehand
    if 'torch' in name:
        import torch

        torch.ones(4, device='cuda').sum()
    where = str(FILE), WAYS[name].line
    for own in (False, True):
        error: Exception
        try:
            with ck.capture() as cap:
                way(cp, cap, x)
                if own:
                    raise KeyError('of my own')
        except Exception as found:  # what CuPy says of the next launch into the lost capture, perhaps
            error = found
        else:
            raise AssertionError('the capture was not lost')
        if isinstance(error, ck.InvalidatedError):
            assert error.lost_at is not None, str(error)
            assert (error.lost_at.file, error.lost_at.line) == where, str(error)
            assert error.location == error.lost_at
            good = error.active_at
            assert good is not None and (good.file != where[0] or good.line <= where[1])
            assert (
                'Active after' in str(error) and 'Invalidated after' in str(error) and 'thread MainThread' in str(error)
            )
        else:
            notes = ' '.join(error.__notes__)
            assert f'Invalidated after {where[0].rpartition("/")[2]}:{where[1]}' in notes, notes
        cp.cuda.get_current_stream().synchronize()
        with ck.capture() as cap:
            y = x * 3
        cap.graph.launch()
        assert bool((y == x * 3).all())
    return f'{name} named'


@pytest.mark.parametrize('name', sorted(WAYS))
def test_the_line_that_lost_a_capture_is_named(name: str) -> None:
    if 'torch' in name and importlib.util.find_spec('torch') is None:
        pytest.skip('torch is not installed')
    if sys.version_info < (3, 12) and name in ('a_destructor_waits', 'the_garbage_collector_finds_one_that_waits'):
        pytest.skip('lines of destructors are followed from Python 3.12 on')
    code = f'from tests.gpu.test_first_cause_gpu import trial\nprint(trial({name!r}))'
    assert in_process(code).splitlines()[-1] == f'{name} named'

"""A stand-in for CuPy that is not installed any more can be freed, with all that was recorded on it."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall


def work() -> Any:
    """Use what asks the guard about its functions, and the decorator about the compiler."""
    cp: Any = sys.modules['cupy']
    x = cp.arange(4.0)
    with ck.capture() as cap:
        stream = cp.cuda.get_current_stream()
        stream.wait_event(event=stream.record())
        y = x.astype('f4', copy=True)
    cap.graph.launch()
    assert y.get(order='C').tolist() == [0, 1, 2, 3]
    graphed = ck.graphed(lambda a: cp.sqrt(a) + 1)
    for _ in range(4):
        assert np.allclose(graphed(x).get(), np.sqrt(np.arange(4)) + 1)
    assert graphed.variants[0].launches == 3
    return weakref.ref(cp)


def test_a_stand_in_that_was_used_is_freed() -> None:
    used = []
    for _ in range(3):
        install(SimulatedDevice())
        try:
            used.append(work())
        finally:
            uninstall()
    gc.collect()
    assert [one() for one in used[:-1]] == [None, None], 'the last one is remembered until the next is used'

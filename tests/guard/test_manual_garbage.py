"""No garbage is collected while a capture begun by hand is open: a destructor may make a call that loses it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import watch
from capturekit.model.rules import Mode


class Holder:
    """In a cycle with itself, so that only the collector frees it."""

    def __init__(self, held: Any, ended: list[int]) -> None:
        self.held, self.itself, self.ended = held, self, ended

    def __del__(self) -> None:
        self.ended.append(1)


def litter() -> None:
    """Make so many containers that the collector would come by itself."""
    for _ in range(20):
        _kept = [[number] for number in range(5_000)]


@pytest.fixture
def collects() -> Any:
    """As in a program: other tests have made the collector come seldom."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize('mode', [Mode.GLOBAL, Mode.THREAD_LOCAL, Mode.RELAXED])
def test_memory_of_garbage_is_freed_after_the_capture(cp: Any, collects: Any, mode: Mode) -> None:
    """``cudaFree`` loses a capture of another mode than relaxed."""
    x, stream, ended = cp.arange(4.0), cp.cuda.Stream(non_blocking=True), list[int]()
    y = x * 3  # the kernel is compiled before
    cp.cuda.Stream.null.synchronize()
    with watch(), stream:
        Holder(cp.cuda.memory.Memory(512), ended)
        stream.begin_capture(int(mode))
        litter()
        cp.multiply(x, 2, out=y)
        assert ended == [] and not gc.isenabled()
        graph = stream.end_capture()
        assert gc.isenabled()
        litter()
        assert ended == [1]
        graph.launch(stream)
        stream.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_it_is_collected_again_after_a_capture_that_never_ends(sim: Any) -> None:
    with watch():
        stream = sim.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_collected_again_after_a_capture_that_is_refused(sim: Any) -> None:
    with watch():
        with pytest.raises(ck.LegacyStreamError, match='Capture on another stream'):
            sim.cuda.Stream.null.begin_capture()
        assert gc.isenabled()
        stream = sim.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        with pytest.raises(ck.CaptureError):
            stream.begin_capture()
        assert not gc.isenabled()
        stream.end_capture()
        assert gc.isenabled()

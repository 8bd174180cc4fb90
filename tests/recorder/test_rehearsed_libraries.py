"""Rehearsed blocks with work of libraries: allocations that no body of a conditional node holds, exports by DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from tests.recorder.rehearsed import failed, rehearsed, same


def test_solves_after_checked_reads(cp: Any) -> None:
    """cuSOLVER records allocations from the second capture of a process on, and no body holds these."""
    matrix, b = cp.eye(3) * 2 + 0.25, cp.arange(1.0, 4.0)

    def steps(b: Any) -> Any:
        scale = float(abs(b).max())
        for _ in range(6):
            b = cp.linalg.solve(matrix, b / scale)
            if float(abs(b).max()) < 0.01:
                break
        return b

    for n in range(3):
        b += n
        wanted = steps(b).get()
        _, cap, y = rehearsed(steps, b)
        cap.graph.launch()
        assert same(y.get(), wanted)
    b *= 3
    failed(cap)


def test_an_allocation_after_a_checked_read_is_told(cp: Any) -> None:
    x, runtime = cp.arange(3.0), cp.cuda.runtime

    def allocates(x: Any) -> Any:
        y = x * 2
        if float(y.sum()) > 0:
            stream = cp.cuda.get_current_stream().ptr
            with GUARD.inside:  # as a library does it
                runtime.freeAsync(runtime.mallocAsync(512, stream), stream)
        return y

    with pytest.raises(ck.UnsupportedCallError, match=r'(?i)mem ?alloc.* behind a host read'):
        rehearsed(allocates, x)
    _, cap, y = rehearsed(lambda x: x * float(x.sum()), x)
    cap.graph.launch()
    assert y.get().tolist() == [0.0, 3.0, 6.0]


class OnTheHost:
    """An array whose values other libraries get on the host, by DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(dl_device=(1, 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_values_that_are_exported_to_the_host(cp: Any) -> None:
    x = cp.arange(1.0, 4.0)

    def scaled(x: Any) -> Any:
        return x * float(np.from_dlpack(OnTheHost(x * 2)).sum())

    rehearsal, cap, y = rehearsed(scaled, x)
    assert [read.value.tolist() for read in rehearsal.reads] == [[2.0, 4.0, 6.0]]
    cap.graph.launch()
    assert y.get().tolist() == [12.0, 24.0, 36.0]
    x *= 2
    failed(cap)

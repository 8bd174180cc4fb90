"""What is not the user's own: wrappers of a capture elsewhere, and memory beyond an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


strided = np.lib.stride_tricks.as_strided


def test_the_wrappers_of_a_capture_elsewhere_are_no_replacement(cp: Any) -> None:
    fn = ck.graphed(lambda x: cp.concatenate([x, x + cp.cuda.get_current_stream().ptr * 0]))
    plain = ck.graphed(lambda x: cp.exp(x.sum()) + cp.linalg.norm(x))
    x = cp.zeros(2)
    for _ in range(3):
        plain(x)
        fn(x)
    environment = plain.variants[0].environment
    assert environment is not None
    with ck.capture():
        assert environment.changed() is None
    assert environment.changed() is None and len(plain.variants) == 1


def test_a_kernel_of_ones_own_reads_what_eager_reads(cp: Any, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    from capturekit.simulated import body

    @body('halo_of_a_view')
    def halo(_grid: Any, _block: Any, args: Any) -> None:
        x, y = args
        beyond = strided(x, (5,), (8,))
        y[...] = beyond[:-2] + beyond[2:]

    kernel = cp.RawKernel('extern "C" __global__ void halo_of_a_view(const double* x, double* y) {}', 'halo_of_a_view')

    def plain(x: Any) -> Any:
        y = cp.empty(3)
        kernel((1,), (3,), (x, y))
        return y

    fn = ck.graphed(plain)
    for value in range(4):
        whole = cp.arange(5.0) + value
        assert fn(whole[:3]).get().tolist() == plain(whole[:3]).get().tolist()
    assert 'part of another array' in caplog.text
    fn.explain()
    assert 'Pass the whole array, or a copy of the part.' in capsys.readouterr().out

"""Functions of CUDA by the names that CUPTI has for them."""

from __future__ import annotations

import pytest

from capturekit.model.cuda_functions import OPERATIONS, Function, function
from capturekit.model.rules import ROWS, Operation

_O = Operation


@pytest.mark.parametrize(
    ('name', 'shown', 'operation', 'own'),
    [
        ('cudaStreamSynchronize_v3020', 'cudaStreamSynchronize', _O.STREAM_SYNCHRONIZE, False),
        ('cudaStreamSynchronize_ptsz_v7000', 'cudaStreamSynchronize', _O.STREAM_SYNCHRONIZE, True),
        ('cuStreamBeginCapture_v2_ptsz', 'cuStreamBeginCapture', _O.BEGIN_CAPTURE, True),
        ('cuMemcpyDtoH_v2_ptds', 'cuMemcpyDtoH', _O.LEGACY_WORK, True),
        ('cuMemsetD2D8_v2', 'cuMemsetD2D8', _O.LEGACY_WORK, False),
        ('cuCtxSynchronize_v2', 'cuCtxSynchronize', _O.DEVICE_SYNCHRONIZE, False),
        ('cudaMalloc_v3020', 'cudaMalloc', _O.UNSAFE, False),
        ('cuLaunchKernelEx', 'cuLaunchKernelEx', _O.WORK, False),
        ('cuThreadExchangeStreamCaptureMode', 'cuThreadExchangeStreamCaptureMode', None, False),
    ],
)
def test_a_name_is_taken_apart(name: str, shown: str, operation: Operation | None, own: bool) -> None:
    found = function(name)
    assert found is not None
    assert (found.shown, found.operation, found.own) == (shown, operation, own)


@pytest.mark.parametrize('name', ['cuCtxGetCurrent', 'cudaGetLastError_v3020', 'nvmlInit', '', 'cuda'])
def test_what_does_not_matter_is_not_followed(name: str) -> None:
    assert function(name) is None


def test_copies_to_the_host_are_known() -> None:
    assert function('cuMemcpyDtoHAsync_v2') == Function('cuMemcpyDtoHAsync', _O.WORK, False, True)
    assert not getattr(function('cuMemcpyHtoDAsync_v2'), 'reads', True)


def test_every_operation_is_one_that_was_measured() -> None:
    assert set(OPERATIONS.values()) <= {row[1] for row in ROWS}

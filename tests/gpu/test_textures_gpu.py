"""CUDA arrays and textures in captures: their memory is gone with the last reference, unless the graph keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck

pytestmark = pytest.mark.gpu


@pytest.fixture
def cp() -> Any:
    pytest.importorskip('cuda.bindings')
    return pytest.importorskip('cupy')


def filled(cp: Any, data: Any) -> Any:
    kind = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, cp.cuda.runtime.cudaChannelFormatKindFloat)
    made = cp.cuda.texture.CUDAarray(kind, 4, 4)
    made.copy_from(data)
    return made


def test_a_cuda_array_lives_as_long_as_the_graph(cp: Any) -> None:
    data, out = cp.arange(16, dtype='f').reshape(4, 4), cp.zeros((4, 4), 'f')
    with ck.capture() as cap:
        filled(cp, data).copy_to(out)
    for number in (0, 3):
        data += number
        cap.graph.launch()
        assert np.array_equal(out.get(), data.get())


def test_a_function_that_uses_texture_memory(cp: Any) -> None:
    from cupyx.scipy import ndimage

    matrix = cp.asarray([[1, 0, 0.5], [0, 1, 0.25], [0, 0, 1]], 'f')
    fn = ck.graphed(lambda x: ndimage.affine_transform(x, matrix, order=1, texture_memory=True) * 2)
    for number in range(4):
        x = cp.arange(64, dtype='f').reshape(8, 8) + number
        expected = ndimage.affine_transform(x, matrix, order=1, texture_memory=True) * 2
        assert np.array_equal(fn(x).get(), expected.get())
    with ck.capture() as cap, pytest.raises(ck.UnsupportedCallError, match='affine_transformation'):
        ndimage.affine_transform(x, matrix, order=1, texture_memory=True)
    cap.graph.launch()

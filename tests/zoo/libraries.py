"""Libraries inside of a capture: refused by CuPy, refused by name, or calling CUDA past everybody."""

from __future__ import annotations

from typing import Any

import capturekit as ck
from tests.zoo.cases import case

REAL = 'needs the real {}'.format


@case('https://github.com/pytorch/pytorch/issues/188355', ck.UnsupportedCallError, 'before the capture',
      lambda x: x + 1)  # fmt: skip
def svd(cp: Any, x: Any) -> Any:
    """A decomposition, whose library waits for the stream."""
    cp.linalg.svd(x.reshape(2, 4))  # + <-- instead: before the block
    with ck.capture() as cap:
        y = x + 1
        cp.linalg.svd(x.reshape(2, 4))  # - <-- here
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/96632', ck.UnsupportedCallError, 'between two graphs', lambda x: x * 2)
def least_squares(cp: Any, x: Any) -> Any:
    """Solves a system that decides on the host how to go on."""
    with ck.capture() as cap:
        y = x * 2
        cp.linalg.lstsq(cp.eye(8), x, rcond=None)  # - <-- here
    cap.graph.launch()  # +
    cp.linalg.lstsq(cp.eye(8), y, rcond=None)  # + <-- instead: after the launch
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/84614', ck.UnsupportedCallError, 'before the capture', lambda x: x + 1,
      rest=lambda x: x + 0)  # fmt: skip
def generator_made_in_the_block(cp: Any, x: Any) -> Any:
    """Makes its random generator in the block: the seed would be a constant, and each launch draw the same."""
    generator = cp.random.Generator(cp.random.XORWOW())  # + <-- instead: before the block
    with ck.capture() as cap:
        y = x + 0
        y += cp.random.Generator(cp.random.XORWOW()).random(8) < 2  # - <-- here
        y += generator.random(8) < 2  # +
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/46148', ck.UnsupportedCallError, 'before the decision',
      lambda x: x + 1, rest=lambda x: x)  # fmt: skip
def choice_without_replacement(cp: Any, x: Any) -> Any:
    """Draws a sample without replacement in a branch: CuPy's host makes its order, and does not know the branch."""
    with ck.capture() as cap:
        y, going = x + 0, cp.ones((), bool)
        order = cp.random.choice(8, 8, replace=False)  # + <-- instead
        with cap.if_(going):
            y += cp.random.choice(8, 8, replace=False) < 8  # - <-- here
            y += order < 8  # +
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/48875', NotImplementedError, 'cuRAND', lambda x: x + 1, goes_on=False)
def random_on_bare_cupy(cp: Any, x: Any) -> Any:
    """Draws random numbers in a bare capture, which CuPy refuses."""
    cp.random.rand(8)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            y = x + (cp.random.rand(8) < 2)  # <-- here
        finally:
            graph = stream.end_capture()
    return graph, y


@random_on_bare_cupy.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:  # <-- instead
        y = x + (cp.random.rand(8) < 2)
    return cap, y


@case('https://github.com/cupy/cupy/issues/6290', NotImplementedError, 'cuBLAS', lambda x: x * 4,
      goes_on=False, needs=REAL('cuBLAS'))  # fmt: skip
def product_on_bare_cupy(cp: Any, x: Any) -> Any:
    """Multiplies matrices in a bare capture: CuPy refuses cuBLAS there."""
    twice = cp.eye(8) * 2
    y = twice @ twice @ x
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            y = twice @ twice @ x  # <-- here
        finally:
            graph = stream.end_capture()
    return graph, y


@product_on_bare_cupy.repaired
def _(cp: Any, x: Any) -> Any:
    twice = cp.eye(8) * 2
    with ck.capture() as cap:  # <-- instead
        y = twice @ twice @ x
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/1398', ck.UnsupportedCallError, 'before the capture', lambda x: x * 2,
      needs=REAL('cuSPARSE'))  # fmt: skip
def sum_of_sparse_matrices(cp: Any, x: Any) -> Any:
    """Adds two sparse matrices: how many entries there are has to be known on the host."""
    from cupyx.scipy import sparse

    matrix = sparse.csr_matrix(cp.eye(8))
    matrix.sum_duplicates()  # else CuPy asks the device whether that is needed, and that is a host read  # -
    total = matrix + matrix  # + <-- instead: before the block
    with ck.capture() as cap:
        y = x * 2  # -
        matrix + matrix  # - <-- here
        y = total @ x  # +
    return cap, y


@case('https://github.com/lodestone-rock/ComfyUI_FluxMod/pull/4', ck.HostReadError, 'before the capture, and write',
      lambda x: x * 1)  # fmt: skip
def repeats_by_a_list(cp: Any, x: Any) -> Any:
    """Repeats by a list: CuPy uploads it, adds it up on the device, and reads how long the result is."""
    rows = cp.array([0, 1, 2, 3, 4, 5, 6, 7])  # + <-- instead: before the block
    with ck.capture() as cap:
        y = x * 1  # -
        cp.repeat(x, [1] * 8)  # - <-- here
        y = x[rows] * 1  # +
    return cap, y


@case('https://github.com/rapidsai/rmm/issues/2518', ck.InvalidatedError, 'Move that call out of the block',
      lambda x: x * 3, goes_on=False, needs=REAL('driver'))  # fmt: skip
def call_past_cupy(cp: Any, x: Any) -> Any:
    """Calls CUDA through cuda-bindings, and does not look at the code that is returned."""
    from cuda.bindings import runtime

    with ck.capture() as cap:
        y = x * 3
        runtime.cudaDeviceSynchronize()  # - <-- here
    cap.graph.launch()  # +
    runtime.cudaDeviceSynchronize()  # + <-- instead: after the launch
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/92684', ck.InvalidatedError, 'Move that call out of the block',
      lambda x: x * 2, goes_on=False, needs=REAL('PyTorch'), module='torch')  # fmt: skip
def torch_inside(cp: Any, x: Any) -> Any:
    """Another library synchronises in the block."""
    import torch

    with ck.capture() as cap:
        y = x * 2
        try:  # noqa: SIM105 (swallowing it is the fault)
            torch.cuda.synchronize()  # <-- here
        except RuntimeError:
            pass
    return cap, y


@torch_inside.repaired
def _(cp: Any, x: Any) -> Any:
    import torch

    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    torch.cuda.synchronize()  # <-- instead: after the launch
    return cap, y

"""Nodes of a GPU's graphs: read as elementwise work and reductions, and put in the place of others as fused kernels.

A fused kernel is compiled by CuPy, and found in its caches by its source. CUDA Driver API, "Graph Management":
``cuGraphKernelNodeSetParams`` takes another function of the same context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from capturekit.driver.cuda import CudaDevice
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_reader import Described, NodeInfo
from capturekit.fusion import fused_reduction
from capturekit.fusion.elementwise import Elementwise, Rounded, copying, of_node, operations
from capturekit.fusion.fused_kernel import FusedKernel, name_of
from capturekit.fusion.fused_reduction import FusedReduction
from capturekit.fusion.reduction import CUB, Reduction, block_codes, of_block_node, reductions
from capturekit.fusion.reduction import of_node as reduction_of_node
from capturekit.fusion.source import source
from capturekit.model.errors import CudaCallError

if TYPE_CHECKING:
    from capturekit.fusion.simulated_nodes import SimulatedNodes

_OPTIONS = ('--std=c++17',)
#: So many elements of a reduction are loaded at once; they are combined one after the other.
_TOGETHER = 4
#: What was compiled, by its source and the device.
_MADE: dict[Any, Any] = {}


class FusingError(ValueError):
    """A kernel can not be made; the text says why."""


class CudaNodes:
    """Reads and fuses the nodes of a :class:`capturekit.driver.cuda.CudaDevice`."""

    def __init__(self, device: Any) -> None:
        self._device = device

    # -- what nodes do ------------------------------------------------------------------------------------------------

    #: The operation that copies an element of a dtype.
    copy_operation = staticmethod(copying)

    def graph_work(self, g: int) -> dict[int, Elementwise | Reduction | str]:
        """What each kernel's node of a definition computes for each element or reduces, by its handle; or why it can
        not be fused. Other nodes are left out."""
        known, reducing, blocks = operations(), reductions(), block_codes()
        found: dict[int, Elementwise | Reduction | str] = {}
        for info, function, arguments in self._kernels(g):
            if '_cub_' in info.name or ('cub' in info.name and 'educe' in info.name) or function in blocks:
                does = of_block_node(info, blocks.get(function), arguments or ())
                found[info.handle] = CUB if does is None else Rounded.of(CUB, does)
            elif arguments is None:
                found[info.handle] = 'its arguments can not be read'
            elif function in reducing:
                found[info.handle] = reduction_of_node(info, reducing[function], arguments)
            else:
                other = "it is not one of CuPy's elementwise kernels" if function else 'a library'
                found[info.handle] = of_node(info.name, known.get(function, other), arguments)
        return found

    def _kernels(self, g: int) -> Iterator[tuple[NodeInfo, int, list[Argument] | None]]:
        """The kernels of a definition, each with its function and its arguments; None where these can't be read."""
        reader = self._device._needed('changing a graph')
        described: Described = {}
        for info in reader.infos(g):
            if info.kind == 'kernel':
                try:
                    _name, function, arguments = reader.kernel(info.handle, described)
                except CudaCallError:
                    function, arguments = 0, None
                yield info, function, arguments

    # -- fused kernels ------------------------------------------------------------------------------------------------

    def fused_function(self, kernel: FusedKernel | FusedReduction, names: tuple[str, ...]) -> tuple[str, Any]:
        """The name and the function of a fused kernel, on the current device, by way of CuPy's caches.

        Raises:
            FusingError: the compiler refuses the source, or CuPy's template of a reduction is another one.
        """
        cupy = sys.modules['cupy']
        try:
            if isinstance(kernel, FusedReduction):
                name, code, options = _reduction_source(cupy, kernel, names)
            else:
                name, code, options = _kernel_source(cupy, kernel, names)
            key = (code, name, str(cupy.cuda.Device().id))
            if key not in _MADE:
                _MADE[key] = cupy._core.core.compile_with_cache(code, options).get_function(name)
        except cupy.cuda.compiler.CompileException as error:
            raise FusingError(f'the compiler refuses the kernel: {str(error).strip().splitlines()[0]}') from error
        return name, _MADE[key]

    def fuse_node(self, g: int, node: int, kernel: FusedKernel | FusedReduction, name: str, function: Any) -> None:
        """``cuGraphKernelNodeSetParams``: a kernel's node of a definition runs a fused kernel from now on."""
        if isinstance(kernel, FusedReduction):
            grid, block = (kernel.reduction.blocks, 1, 1), (kernel.reduction.code.block, 1, 1)
            arguments = fused_reduction.arguments(kernel)
        else:
            made = source(kernel)
            grid, block, arguments = (made.layout.blocks, 1, 1), (*made.layout.block, 1), made.arguments()
        self._device._put_kernel(node, grid, block, 0, arguments, int(function.ptr))


def _kernel_source(cupy: Any, kernel: FusedKernel, names: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """The name and the source of a fused kernel, and the options to compile it with."""
    made = source(kernel)
    name = name_of(names, made.text)
    described = (*made.text, name)
    if described not in _MADE:  # kept, because its parameters say what the kernel reads and writes
        _MADE[described] = cupy.ElementwiseKernel(*made.text[:2], made.operation, name)
    return name, made.code(name), _OPTIONS


def _reduction_source(cupy: Any, kernel: FusedReduction, names: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """The same for a fused reduction. Raises FusingError."""
    inputs, outputs = fused_reduction.declared(kernel)
    words = (inputs, outputs, *fused_reduction.parts(kernel).text, *kernel.reduction.code.text)
    name = name_of(names, words)
    try:
        if words not in _MADE:  # kept, because its parameters say what the kernel reads and writes
            made = cupy.ReductionKernel(inputs, outputs, '0', 'a + b', '', '0', name, reduce_type='int')
            _MADE[words] = made
        infos = fused_reduction.infos(kernel, cupy)
        return name, fused_reduction.source(kernel, name, _MADE[words]._params, infos, _TOGETHER), ()
    except ValueError as error:
        raise FusingError(str(error)) from error


if TYPE_CHECKING:
    FusingNodes = CudaNodes | SimulatedNodes


def nodes_of(device: Any) -> FusingNodes:
    """What reads the nodes of a device's graphs, and lets them run fused kernels."""
    if isinstance(device, CudaDevice):
        return CudaNodes(device)
    from capturekit.fusion.simulated_nodes import SimulatedNodes  # only those without a GPU need it

    return SimulatedNodes(device)

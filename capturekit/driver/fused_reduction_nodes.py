"""Nodes that run a fused reduction: compiled by CuPy, found in its caches by its source, put in another's place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from capturekit.driver.fused_nodes import FusingError, name_of
from capturekit.driver.fused_reduction import FusedReduction, arguments, declared, infos, parts, source

#: So many elements are loaded at once; they are combined one after the other.
_TOGETHER = 4


class FusingReductions:
    """The verbs of :class:`capturekit.driver.cuda.CudaDevice` that make fused reductions and put them into nodes."""

    _writer: Callable[[], Any]
    fused: dict[Any, Any]
    fusing: list[float]

    def fused_reduction(self, kernel: FusedReduction, names: tuple[str, ...]) -> tuple[str, Any]:
        """The name and the function of a fused reduction, on the current device, by way of CuPy's caches.

        Raises:
            FusingError: the compiler refuses the source, or CuPy's template is another one.
        """
        cupy = sys.modules['cupy']
        text, code = parts(kernel), kernel.reduction.code
        words = (*declared(kernel), *text.text, *code.text)
        name = name_of(kernel, names, words)
        start = time.perf_counter()
        try:
            made = self.fused.get(words)
            if made is None:  # kept, because its parameters say what the kernel reads and writes
                inputs, outputs = declared(kernel)
                made = cupy.ReductionKernel(inputs, outputs, '0', 'a + b', '', '0', name, reduce_type='int')
                self.fused[words] = made
            whole = source(kernel, name, made._params, infos(kernel, cupy), _TOGETHER)
            key = (whole, str(cupy.cuda.Device().id))
            if key not in self.fused:
                self.fused[key] = cupy._core.core.compile_with_cache(whole, ()).get_function(name)
        except ValueError as error:
            raise FusingError(str(error)) from error
        except cupy.cuda.compiler.CompileException as error:
            raise FusingError(f'the compiler refuses the kernel: {str(error).strip().splitlines()[0]}') from error
        self.fusing[0] += 1
        self.fusing[1] += time.perf_counter() - start
        return name, self.fused[key]

    def reduce_node(self, g: int, node: int, kernel: FusedReduction, name: str, function: Any) -> None:
        """``cuGraphKernelNodeSetParams``: a kernel's node of a definition runs a fused reduction from now on."""
        grid, block = (kernel.reduction.blocks, 1, 1), (kernel.reduction.code.block, 1, 1)
        self._writer().put_function(node, int(function.ptr), grid, block, arguments(kernel))

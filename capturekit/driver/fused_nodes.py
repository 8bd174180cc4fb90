"""Nodes that run a fused kernel: compiled by CuPy, found in its caches by its source, put in the place of another.

CUDA Driver API, "Graph Management": ``cuGraphKernelNodeSetParams`` takes another function of the same context.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capturekit.driver.fused_kernel import FusedKernel
    from capturekit.driver.fused_source import Source

_OPTIONS = ('--std=c++17',)


class FusingError(ValueError):
    """A kernel can not be made; the text says why."""


def name_of(kernel: Any, names: tuple[str, ...], text: tuple[str, ...]) -> str:
    """A name that tells the first operations, and is another one for another source."""
    from hashlib import sha256  # with OpenSSL, for those who fuse

    words = '_'.join(name.removeprefix('cupy_').partition('__')[0] for name in names)
    words = re.sub(r'\W|_+', '_', words)[:48].rstrip('_')
    digest = sha256('\0'.join(text).encode()).hexdigest()[:8]
    return f'cupy_fused_{words}_{digest}'


def _source(kernel: FusedKernel) -> Source:
    """A kernel's source. What writes it is imported here, for those who fuse."""
    from capturekit.driver.fused_source import source

    return source(kernel)


class FusingNodes:
    """The verbs of :class:`capturekit.driver.cuda.CudaDevice` that make fused kernels and put them into nodes."""

    _writer: Callable[[], Any]
    fused: dict[Any, Any]
    #: How many kernels were asked of CuPy, and the seconds that took.
    fusing: list[float]

    def fused_function(self, kernel: FusedKernel, names: tuple[str, ...]) -> tuple[str, Any]:
        """The name and the function of a fused kernel, on the current device, by way of CuPy's caches.

        Raises:
            FusingError: the compiler refuses the source.
        """
        cupy = sys.modules['cupy']
        made = _source(kernel)
        name = name_of(kernel, names, made.text)
        start = time.perf_counter()
        described, key = (*made.text, name), (*made.text, name, str(cupy.cuda.Device().id))
        if described not in self.fused:  # kept, because its parameters say what the kernel reads and writes
            self.fused[described] = cupy.ElementwiseKernel(*made.text[:2], made.operation, name)
        try:
            if key not in self.fused:
                module = cupy._core.core.compile_with_cache(made.code(name), _OPTIONS)
                self.fused[key] = module.get_function(name)
        except cupy.cuda.compiler.CompileException as error:
            raise FusingError(f'the compiler refuses the kernel: {str(error).strip().splitlines()[0]}') from error
        self.fusing[0] += 1
        self.fusing[1] += time.perf_counter() - start
        return name, self.fused[key]

    def fuse_node(self, g: int, node: int, kernel: FusedKernel, name: str, function: Any) -> None:
        """``cuGraphKernelNodeSetParams``: a kernel's node of a definition runs a fused kernel from now on."""
        made = _source(kernel)
        grid, block = (made.layout.blocks, 1, 1), (*made.layout.block, 1)
        self._writer().put_function(node, int(function.ptr), grid, block, made.arguments())

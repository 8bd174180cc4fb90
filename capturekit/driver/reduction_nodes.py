"""What the nodes of a definition reduce: by CuPy's own kernels, or by those that CuPy makes around CUB's blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.driver.block_reduction import block_codes, of_block_node
from capturekit.driver.elementwise import Rounded
from capturekit.driver.node_reader import Described
from capturekit.driver.reduction import CUB, Reduction, of_node, reductions
from capturekit.model.errors import CudaCallError


class ReductionNodes:
    """The method of :class:`capturekit.driver.cuda.CudaDevice` that reads what nodes reduce."""

    reader: Any
    _writer: Callable[[], Any]

    def graph_reductions(self, g: int) -> dict[int, Reduction | str]:
        """What each reduction kernel's node of a definition reduces, by its handle; or why it can not be fused.

        Other nodes are left out.
        """
        known, blocks, writer = reductions(), block_codes(), self._writer()
        found: dict[int, Reduction | str] = {}
        described: Described = {}
        for info in self.reader.infos(g):
            if info.kind != 'kernel':
                continue
            library = '_cub_' in info.name or ('cub' in info.name and 'educe' in info.name)
            if library:
                found[info.handle] = CUB
            try:
                function, arguments = writer.kernel(info.handle, described)
            except CudaCallError:
                continue
            if library or function in blocks:
                does = of_block_node(info, blocks.get(function), arguments)
                found[info.handle] = CUB if does is None else Rounded.of(CUB, does)
                continue
            code = known.get(function) if function else None
            if code is not None:
                found[info.handle] = of_node(info, code, arguments)
        return found

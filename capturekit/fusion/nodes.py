"""Who reads and fuses the nodes of a device: a GPU's, or the simulated one's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capturekit.driver.cuda import CudaDevice
from capturekit.fusion.cuda_nodes import CudaNodes

if TYPE_CHECKING:
    from capturekit.fusion.simulated_nodes import SimulatedNodes

    FusingNodes = CudaNodes | SimulatedNodes


def nodes_of(device: Any) -> FusingNodes:
    """What reads the nodes of a device's graphs, and lets them run fused kernels."""
    if isinstance(device, CudaDevice):
        return CudaNodes(device)
    from capturekit.fusion.simulated_nodes import SimulatedNodes  # only those without a GPU need it

    return SimulatedNodes(device)

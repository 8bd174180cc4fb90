"""Memory of the simulated device: addresses are given, the bytes behind them lie elsewhere."""

from __future__ import annotations

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from capturekit.simulated.device.device_state import (
    DeviceState,
)

_TOTAL_MEMORY = 1 << 34


class Memory(DeviceState):
    """The calls about memory of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    def malloc(self, nbytes: int) -> int:
        """``cudaMalloc``: an address in a simulated space; the bytes are the caller's business."""
        with self._lock:
            self._unsafe('malloc')
            if self.mem_get_info()[0] < nbytes:
                raise CudaCallError(Code.cudaErrorMemoryAllocation, 'malloc')
            address = self._addresses
            self._addresses += (max(nbytes, 1) + 511) // 512 * 512
            here = self.get_device()
            self._memory[address], self._lies_on[address] = nbytes, here
            self._used[here] = self._used.get(here, 0) + nbytes
            return address

    def free(self, ptr: int) -> None:
        """``cudaFree``."""
        with self._lock:
            self._unsafe('free')
            nbytes = self._memory.pop(ptr, None)
            if nbytes is None:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'free')
            self._used[self._lies_on.pop(ptr)] -= nbytes

    def memory_device(self, address: int) -> int:
        """The device that the memory which begins at an address lies on; 0 where there is none."""
        return self._lies_on.get(address, 0)

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        return _TOTAL_MEMORY - self._used.get(self.get_device(), 0), _TOTAL_MEMORY

    def host_alloc(self, nbytes: int) -> int:
        """``cudaHostAlloc``: pinned memory, addressed like :meth:`malloc`."""
        return self.malloc(nbytes)

    def host_free(self, ptr: int) -> None:
        """``cudaFreeHost``."""
        self.free(ptr)

"""The number of devices that the simulated machine has, and which of them each thread works on."""

from __future__ import annotations

import threading

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

#: ``cudaErrorInvalidDevice`` and ``cudaErrorPeerAccessAlreadyEnabled``.
_INVALID, _ENABLED = 101, 704


class Devices:
    """``devices`` devices; each thread begins on device 0."""

    def __init__(self, devices: int) -> None:
        if isinstance(devices, bool) or not isinstance(devices, int):
            raise TypeError(f'devices must be a whole number, got {devices!r}')
        if devices < 1:
            raise ValueError(f'devices must be at least 1, got {devices}')
        self.device_count = devices
        self._current = threading.local()
        self._peers: set[tuple[int, int]] = set()

    def get_device(self) -> int:
        """``cudaGetDevice``: the number of this thread's device."""
        return getattr(self._current, 'number', 0)

    def set_device(self, number: int) -> None:
        """``cudaSetDevice``."""
        self._known(number)
        self._current.number = number

    def _known(self, number: int) -> None:
        if not 0 <= number < self.device_count:
            raise CudaCallError(_INVALID, f'device {number}')

    def can_access_peer(self, device: int, peer: int) -> bool:
        """``cudaDeviceCanAccessPeer``: any two may, no device is its own peer."""
        self._known(device)
        self._known(peer)
        return device != peer

    def enable_peer_access(self, peer: int) -> None:
        """``cudaDeviceEnablePeerAccess``, from this thread's device."""
        pair = self.get_device(), peer
        if not self.can_access_peer(*pair):
            raise CudaCallError(_INVALID, f'device {peer}')
        if pair in self._peers:
            raise CudaCallError(_ENABLED, f'device {peer}')
        self._peers.add(pair)

    @staticmethod
    def _same_device(one: int, other: int, call: str) -> None:
        if one != other:
            raise CudaCallError(Code.cudaErrorInvalidResourceHandle, f'{call}: the devices are {one} and {other}')


def reaches(devices: Devices, device: int) -> bool:
    """Whether kernels of this thread's device reach the memory of a device: its own, or that of an enabled peer."""
    here = devices.get_device()
    return device == here or (here, device) in devices._peers

"""``cupy.cuda.device``."""

from __future__ import annotations

import itertools
from typing import Any

from capturekit.simulated.cupy.surface import named
from capturekit.simulated.device.constants import ATTRIBUTES

from . import runtime, runtime_calls, syncdetect

#: Handles of libraries: the same number is never given twice.
_numbers = itertools.count(0x1000)


def _get_handle(name: str, device: int) -> int:
    """This thread's handle of a library on a device, made when it is first asked for."""
    return int(runtime_calls.of_thread(name, dict).setdefault(device, next(_numbers)))


def get_device_id() -> int:
    return runtime.getDevice()


def is_available() -> bool:
    return True


def get_local_runtime_version() -> int:
    return int(runtime.runtimeGetVersion())


class Device:
    """A CUDA device; as a context manager, the current one."""

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        now = runtime.getDevice()
        runtime_calls.of_thread('stack', list).append(now)
        if self.id != now:
            runtime.setDevice(self.id)
        return self

    def __exit__(self, *args: object) -> None:
        runtime.setDevice(runtime_calls.of_thread('stack', list).pop())

    def __repr__(self) -> str:
        return f'<CUDA Device {self.id}>'

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    __hash__ = None  # type: ignore[assignment]

    def use(self) -> Device:
        runtime.setDevice(self.id)
        return self

    def synchronize(self) -> None:
        syncdetect._declare_synchronize()
        with runtime._on(self.id):
            runtime.deviceSynchronize()

    @property
    def compute_capability(self) -> str:
        return f'{runtime.deviceGetAttribute(75, self.id)}{runtime.deviceGetAttribute(76, self.id)}'

    @property
    def mem_info(self) -> tuple[int, int]:
        with runtime._on(self.id):
            return runtime.memGetInfo()

    @property
    def attributes(self) -> dict[str, int]:
        """The device's attributes by name, without ``cudaDevAttr``."""
        return dict(ATTRIBUTES)


def _handle_property(name: str) -> property:
    return property(lambda self: _get_handle(name, self.id))


for _library, _name in (
    ('cublas', 'cublas_handles'), ('cusolver', 'cusolver_handles'), ('cusolver_sp', 'cusolver_sp_handles'),
    ('cusparse', 'cusparse_sp_handles'),
):  # fmt: skip
    setattr(Device, f'{_library}_handle', _handle_property(_name))


def _this_threads(name: str) -> Any:
    return named(lambda: getattr(Device(), f'{name}_handle'), f'get_{name}_handle', module=__name__)


get_cublas_handle, get_cusolver_handle, get_cusparse_handle = map(_this_threads, ('cublas', 'cusolver', 'cusparse'))

"""Kernels and plans that recorded work still needs, although CuPy has dropped them.

A graph's nodes name functions of loaded modules, and cuFFT's kernels belong to plans. CuPy unloads a module and
destroys a plan with its last reference; a graph made of them would crash when it is instantiated or launched. While
captures are open or graphs live, such calls of CuPy's are deferred until the last graph has ended.

CuPy's calls go through pointers in its extension modules (:mod:`capturekit.driver.vendor_libraries`). Where these can't
be found nothing is deferred, and :attr:`Unloading.unable` says why.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.driver.vendor_libraries import LinkedPointer, Object, loaded
from capturekit.model.lease import Lease
from capturekit.model.skipped_exits import Lock

CallOnHandle = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Plan = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


class Unloading:
    """Calls that are deferred while there are leases."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.holders = 0
        self.known: list[Any] = []
        self._pointers: list[tuple[LinkedPointer, int]] = []
        self._alive: list[Any] = []
        self._later: list[Callable[[], Any]] = []
        self.unable: dict[str, str] = {}

    def hold(self, platform: Platform) -> Lease:
        """Defer what CuPy unloads from now on, until the last lease is released."""
        with self._lock:
            if not platform.simulated and not any(cupy is platform.cupy for cupy in self.known):
                if not self.known:
                    atexit.register(self.leave)
                self._find()
                self.known.append(platform.cupy)
            for pointer, value in self._pointers:
                pointer.replace(value)
            self.holders += 1
        return Lease(self._release)

    def _release(self) -> None:
        """Release one lease; with the last one make all deferred calls, and then raise the first error, if any."""
        with self._lock:
            self.holders -= 1
            if self.holders:
                return
            for pointer, _value in reversed(self._pointers):
                pointer.restore()
            later, self._later = self._later, []
        Lease(*reversed(later)).release()

    def leave(self) -> None:
        """Note that the process ends: later calls go directly to CUDA, and deferred ones are not made."""
        with self._lock:
            for pointer, _value in reversed(self._pointers):
                pointer.restore()
            self._pointers, self._later = [], []

    def _find(self) -> None:
        self.unable = {}
        try:
            library = ctypes.CDLL(loaded('libcuda.so'))
            driver = importlib.import_module('cupy_backends.cuda.api.driver')
            with suppress(driver.CUDADriverError):  # CuPy looks its pointers up when the first call is made
                driver.ctxGetCurrent()
            unload = library.cuModuleUnload
            places = Object(str(driver.__file__)).holding(int(ctypes.cast(unload, ctypes.c_void_p).value or 0))
            if not places:
                raise LookupError('CuPy keeps no pointer to cuModuleUnload')
            unload.argtypes = [ctypes.c_void_p]
            self._replace(places, CallOnHandle(lambda handle: self.put_off(unload, handle)))
        except (LookupError, OSError, ImportError) as error:
            self.unable['modules'] = str(error)
        try:
            path = importlib.import_module('cupy.cuda.cufft').__file__
            place = Object(str(path)).jump('cufftDestroy')
            destroy = ctypes.CDLL(loaded('libcufft.so')).cufftDestroy
            self._replace([place], _Plan(lambda plan: self.put_off(destroy, plan)))
        except (LookupError, OSError, ImportError) as error:
            self.unable['plans'] = str(error)

    def _replace(self, places: list[int], mine: Any) -> None:
        self._alive.append(mine)
        address = int(ctypes.cast(mine, ctypes.c_void_p).value or 0)
        self._pointers += [(LinkedPointer(place), address) for place in places]

    def put_off(self, call: Callable[[Any], Any], handle: Any) -> int:
        with self._lock:
            if self.holders:
                self._later.append(lambda: call(handle))
                return 0
        return int(call(handle))  # a call of another thread that was on its way here when the last lease ended


UNLOADING = Unloading()

"""CuPy's library handles work on the caller's stream again when a capture is over; functions that set none get one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.library_streams import SILENT, LibraryStreams
from capturekit.guard import GUARD

PACKAGE = 'cupy_backends.cuda.libs'


class Library:
    """A library's module and handle: what the silent functions work on is what ``setStream`` was told last."""

    def __init__(self, name: str) -> None:
        self.module: Any = ModuleType(f'{PACKAGE}.{name}')
        self.stream = 0
        self.module.setStream = self.set_stream
        for function in SILENT[name]:
            setattr(self.module, function, lambda handle, *args: (handle, self.stream, args))

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 7
        self.stream = stream


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, Library]:
    made = {name: Library(name) for name in SILENT}
    for library in made.values():
        monkeypatch.setitem(sys.modules, library.module.__name__, library.module)
    return made


class NoDevice(RuntimeError):
    """What CuPy raises where there is no device."""


def cupy_on(*streams: int) -> Any:
    """A CuPy whose current stream is the first of these, then the next ..., at each question."""
    left = list(streams)
    device = SimpleNamespace(cublas_handle=7, cusolver_handle=7, cusparse_handle=7)
    current = lambda *_device: SimpleNamespace(ptr=left.pop(0) if len(left) > 1 else left[0])  # noqa: E731
    runtime = SimpleNamespace(getDevice=lambda: 0, CUDARuntimeError=NoDevice)
    return SimpleNamespace(
        cuda=SimpleNamespace(get_current_stream=current, runtime=runtime, Device=lambda _number: device)
    )


@pytest.mark.parametrize('name', sorted(SILENT))
def test_silent_functions_get_the_current_stream(libraries: dict[str, Library], name: str) -> None:
    streams, library = LibraryStreams(), libraries[name]
    for function in SILENT[name]:
        original = getattr(library.module, function)
        with streams.following(cupy_on(0x10, 0x20)):
            assert getattr(library.module, function)(7, 'a') == (7, 0x10, ('a',))
            with streams.following(cupy_on(0x30)):
                assert getattr(library.module, function)(7) == (7, 0x20, ())
            assert getattr(library.module, function)(7) == (7, 0x20, ())
        assert getattr(library.module, function) is original


def test_handles_that_a_capture_used_get_the_callers_stream(libraries: dict[str, Library]) -> None:
    streams, cupy = LibraryStreams(), cupy_on(0x40)
    for library in libraries.values():
        library.stream = 0x999
    streams.note(cupy, 'cusparse')
    streams.note(cupy, 'curand')  # its generators are given a stream at each call
    streams.give_back(cupy)
    assert {name: library.stream for name, library in libraries.items()} == {
        'cublas': 0x999,
        'cusolver': 0x999,
        'cusparse': 0x40,
    }
    libraries['cusparse'].stream = 0x999
    streams.give_back(cupy)
    assert libraries['cusparse'].stream == 0x999, 'it was given back once'


def test_without_a_device_no_handle_was_used(libraries: dict[str, Library]) -> None:
    streams, cupy = LibraryStreams(), cupy_on(0x40)

    def no_device() -> int:
        raise NoDevice

    cupy.cuda.runtime.getDevice = no_device
    streams.note(cupy, 'cusparse')
    streams.give_back(cupy)
    assert libraries['cusparse'].stream == 0


def test_a_failing_function_takes_the_wrappers_away(libraries: dict[str, Library]) -> None:
    streams = LibraryStreams()
    original = libraries['cublas'].module.zdotc
    with pytest.raises(KeyError), streams.following(cupy_on(1)):
        raise KeyError
    assert libraries['cublas'].module.zdotc is original


@pytest.mark.gpu
def test_a_product_that_sets_no_stream_is_recorded() -> None:
    """``vdot`` of complex numbers is the first call of cuBLAS in the capture, and the handle was used elsewhere."""
    cp = pytest.importorskip('cupy')
    a = cp.asarray(np.arange(64) + 1j)
    with cp.cuda.Stream(non_blocking=True) as elsewhere:
        cp.vdot(a, a)
        elsewhere.synchronize()
    with ck.capture() as cap:
        b = cp.vdot(a, a)
    a *= 2
    cap.graph.launch()
    assert abs(complex(b) - complex(cp.vdot(a, a))) < 1e-6
    assert cap.recording.node_count >= 1


@pytest.mark.gpu
def test_a_handle_is_on_the_callers_stream_after_a_capture() -> None:
    cp = pytest.importorskip('cupy')
    sparse = pytest.importorskip('cupyx.scipy.sparse')
    pytest.importorskip('scipy')
    from cupy_backends.cuda.libs import cusparse

    matrix = sparse.random(64, 64, 0.2, format='csr')
    dense = cp.ones((64, 4))
    matrix @ dense
    handle = cp.cuda.Device().cusparse_handle
    with ck.capture() as cap:
        y = matrix @ dense
        assert cusparse.getStream(handle) == cap.stream.ptr
    assert cusparse.getStream(handle) == cp.cuda.get_current_stream().ptr
    cap.graph.launch()
    assert cp.allclose(y, matrix.toarray() @ dense)
    assert not GUARD.installation.installed

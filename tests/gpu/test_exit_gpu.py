"""The way out on the GPU: whatever happens in the block, afterwards everything is as it was before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.model.rules import Code
from tests.gpu.world import set_thread_mode, status, thread_mode, world

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

N = 256


class Scene:
    """Two streams, an array, and the capture of the test."""

    def __init__(self) -> None:
        self.x = cp.arange(N, dtype='f8')
        for made in (self.x + 1, self.x * 2):
            del made
        self.origin = cp.cuda.Stream(non_blocking=True)
        self.side = cp.cuda.Stream(non_blocking=True)
        self.outside = cp.cuda.Stream(non_blocking=True)
        self.cap: Any = None
        cp.cuda.Device().synchronize()

    def open(self, **options: Any) -> Any:
        self.cap = ck.capture(self.origin, **options)
        return self.cap

    def work(self, join: bool = True) -> Any:
        """Work on the origin and on a lane."""
        a = self.x + 1
        self.side.wait_event(self.origin.record())
        with self.side:
            b = a * 2
        if join:
            self.origin.wait_event(self.side.record())
        return b


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Before and after: the driver says that no stream captures, and the world is the same; a capture works at once."""
    made = Scene()
    before = world()
    yield made
    assert [status(s) for s in (made.origin, made.side, made.outside, 2)] == ['None'] * 4
    assert world() == before
    if made.cap is not None and made.cap.recording.outcome == 'failed':
        with pytest.raises(ck.ClosedError):
            made.cap.graph.launch()
    good_capture(made)
    assert world() == before


def good_capture(scene: Scene) -> None:
    with ck.capture(scene.origin) as cap:
        result = scene.work()
    cap.graph.launch(scene.origin)
    assert np.array_equal(result.get(stream=scene.origin), (np.arange(N) + 1.0) * 2)


def lose() -> None:
    """A call below Python that no capture can hold: what a C library might do."""
    from cuda.bindings import runtime

    assert int(runtime.cudaDeviceSynchronize()[0]) == Code.cudaErrorStreamCaptureUnsupported
    runtime.cudaGetLastError()


@pytest.mark.parametrize('mode', ['relaxed', 'thread_local', 'global'])
@pytest.mark.parametrize('noticed', ['at the next call', 'at the end', 'beside an exception'])
def test_lost_below_python(scene: Scene, noticed: str, mode: str) -> None:
    kind = ZeroDivisionError if noticed == 'beside an exception' else ck.InvalidatedError
    with pytest.raises(kind) as info, scene.open(mode=mode):
        scene.work()
        lose()
        assert status(scene.origin) == status(scene.side) == 'Invalidated'
        if noticed == 'at the next call':
            scene.origin.record()
        if noticed == 'beside an exception':
            raise ZeroDivisionError
    if isinstance(info.value, ck.InvalidatedError):
        assert info.value.cuda_error == 'cudaErrorStreamCaptureInvalidated'
        assert info.value.active_at is not None
        assert info.value.active_at.file == __file__


def test_lost_again_and_again(scene: Scene) -> None:
    for _ in range(20):
        with pytest.raises(ck.InvalidatedError), scene.open():
            scene.work()
            lose()
        good_capture(scene)


@pytest.mark.parametrize('mode', [0, 1, 2], ids=['global', 'thread_local', 'relaxed'])
@pytest.mark.parametrize('ending', ['good', 'raises', 'unjoined', 'lost'])
def test_the_threads_mode_is_given_back(scene: Scene, mode: int, ending: str) -> None:
    """Whatever mode the thread had: in the block it is relaxed, afterwards it is the old one."""
    old = set_thread_mode(mode)
    try:
        try:
            with scene.open(mode='global'):
                assert thread_mode() == 2
                scene.work(join=ending != 'unjoined')
                if ending == 'raises':
                    raise ZeroDivisionError
                if ending == 'lost':
                    lose()
        except (ZeroDivisionError, ck.CaptureError):
            assert ending != 'good'
        assert thread_mode() == mode
    finally:
        set_thread_mode(old)


def test_captures_in_captures_are_undone_one_by_one(scene: Scene) -> None:
    """A second capture on another stream inside the first fails; the first goes on and is good."""
    with ck.capture(scene.origin) as cap:
        a = scene.x + 1
        with pytest.raises(ZeroDivisionError), ck.capture(scene.outside):
            scene.x * 2
            raise ZeroDivisionError
        assert (status(scene.origin), status(scene.outside)) == ('Active', 'None')
        assert cp.cuda.get_current_stream().ptr == scene.origin.ptr
        with ck.capture(scene.outside) as inner:
            c = scene.x * 3
        b = a * 2
    cap.graph.launch(scene.origin)
    inner.graph.launch(scene.origin)
    assert np.array_equal(b.get(stream=scene.origin), (np.arange(N) + 1.0) * 2)
    assert np.array_equal(c.get(stream=scene.origin), np.arange(N) * 3.0)

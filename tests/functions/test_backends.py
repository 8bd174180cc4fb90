"""Functions of SciPy that a backend makes: which backends are set counts, for all threads and for one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck

fft = pytest.importorskip('scipy.fft')


class Tenfold:
    """A backend of the user's: each function answers with ten times the sum of what it is given."""

    __ua_domain__ = 'numpy.scipy.fft'
    answer = 10.0

    @staticmethod
    def __ua_function__(method: Any, given: Any, named: Any) -> Any:
        return np.full(2, Tenfold.answer * float(np.sum(given[0])))


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    yield
    fft.set_global_backend('scipy')


def transformed(x: Any) -> Any:
    return x * float(fft.fft(np.ones(2))[0].real)


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


def test_a_function_of_scipy_is_recorded(cp: Any) -> None:
    reached, called = ck.graphed(lambda x: x * 2 if callable(fft.fft) else x), ck.graphed(transformed)
    for _ in range(4):
        assert reached(cp.ones(2)).get().tolist() == called(cp.ones(2)).get().tolist() == [2.0, 2.0]
    assert launches(reached) >= 2
    assert launches(called) >= 2


def test_a_block_inside_of_the_function_is_recorded(cp: Any) -> None:
    def work(x: Any) -> Any:
        with fft.set_backend('scipy'), fft.set_backend('scipy', only=True):
            return transformed(x)

    fn = ck.graphed(work)
    for _ in range(4):
        assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
    assert launches(fn) >= 2


def replaced() -> contextlib.AbstractContextManager[Any]:
    import scipy.fft._backend as inside

    patch = pytest.MonkeyPatch()
    patch.setattr(inside._ScipyBackend, '__ua_function__', staticmethod(Tenfold.__ua_function__))
    return contextlib.closing(_Undo(patch))


class _Undo:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.close = patch.undo


def for_all() -> contextlib.AbstractContextManager[Any]:
    fft.set_global_backend(Tenfold)
    return contextlib.closing(_Again())


class _Again:
    def close(self) -> None:
        fft.set_global_backend('scipy')


SETTING: list[Callable[[], Any]] = [lambda: fft.set_backend(Tenfold), for_all, replaced]


@pytest.mark.parametrize('change', SETTING, ids=['in a block', 'for all', 'the method of a backend'])
def test_another_backend_is_seen(cp: Any, change: Callable[[], Any]) -> None:
    fn = ck.graphed(transformed)
    for _ in range(4):
        assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
    before = launches(fn)
    with change():
        transformed(cp.ones(2))  # the first run in a process may fill caches, and is then followed once more
        for answer in (10.0, 10.0, 10.0, 20.0, 20.0, 20.0, 10.0):
            Tenfold.answer = answer
            assert fn(cp.ones(2)).get().tolist() == [answer * 2] * 2
    assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
    assert launches(fn) > before > 1


def test_a_backend_that_refuses_is_seen(cp: Any) -> None:
    fn = ck.graphed(transformed)
    for _ in range(4):
        fn(cp.ones(2))
    with fft.skip_backend('scipy'), pytest.raises(fft._backend.ua.BackendNotImplementedError):
        fn(cp.ones(2))
    assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]


def test_a_function_that_sets_a_backend_for_all_is_not_recorded(cp: Any) -> None:
    def work(x: Any) -> Any:
        y = transformed(x)
        fft.set_global_backend(Tenfold)
        return y

    fn = ck.graphed(work)
    for _ in range(4):
        assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
        assert transformed(cp.ones(2)).get().tolist() == [20.0, 20.0]
        fft.set_global_backend('scipy')
    assert launches(fn) == 0


def test_a_backend_of_another_thread_is_none_of_this(cp: Any) -> None:
    fn = ck.graphed(transformed)
    set_there, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with fft.set_backend(Tenfold):
            set_there.set()
            done.wait(60)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        set_there.wait(60)
        for _ in range(4):
            assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
    finally:
        done.set()
        thread.join()
    assert launches(fn) >= 2

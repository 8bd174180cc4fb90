"""Thousands of captures, half of them failing in one of many ways; device and host memory, streams, events, handles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import capturekit as ck
from capturekit.model.progress import each
from tests.soak.ground import held, left_open

N = 256


class Failing(Exception):
    """The user's own."""


def good(cp: Any, x: Any, number: int) -> None:
    """A capture with two lanes, launched twice and checked."""
    with ck.capture(strict=number % 3 > 0, lines=number % 2 > 0) as cap:
        a = x + number
        with cap.fork(2) as (left, right):
            with left:
                b = a * 2
            with right:
                c = a * 3
        d = b + c
    for _ in range(2):
        cap.graph.launch()
    assert np.array_equal(cp.asnumpy(d), (np.arange(N) + number) * 5.0)
    if number % 4:
        cap.graph.close()


def _raises(cp: Any, x: Any, cap: Any) -> None:
    with cap.fork(2) as (left, _right), left:
        cp.empty(1 << 16)
        x + 1
        raise Failing


def _unjoined(cp: Any, x: Any, cap: Any) -> None:
    side = cp.cuda.Stream(non_blocking=True)
    side.wait_event(cap.stream.record())
    with side:
        x + 1


def _synchronizes(cp: Any, x: Any, cap: Any) -> None:
    x + 1
    cap.stream.synchronize()


def _reads(cp: Any, x: Any, cap: Any) -> None:
    float((x + 1).sum())


def _escapes(cp: Any, x: Any, cap: Any) -> None:
    with cp.cuda.Stream(non_blocking=True):
        x + 1


def _races(cp: Any, x: Any, cap: Any) -> None:
    y = x + 1
    with cap.fork(2) as (left, right):
        with left:
            cp.add(y, 1, out=y)
        with right:
            cp.add(y, 2, out=y)


def _lost(cp: Any, x: Any, cap: Any) -> None:
    """As a C library would lose it: the device is asked past every wrapper."""
    from capturekit.driver.cuda import current

    x + 1
    with suppress(ck.CudaCallError):
        current().device.device_synchronize()


WAYS: dict[str, tuple[Callable[[Any, Any, Any], None], type[BaseException]]] = {
    'an exception': (_raises, Failing),
    'unjoined': (_unjoined, ck.UnjoinedError),
    'synchronizes': (_synchronizes, ck.SynchronizationError),
    'reads': (_reads, ck.HostReadError),
    'escapes': (_escapes, ck.EscapedWorkError),
    'races': (_races, ck.RaceError),
    'lost below Python': (_lost, ck.InvalidatedError),
}


def failing(cp: Any, x: Any, way: str) -> None:
    """A capture that fails as it should."""
    body, wanted = WAYS[way]
    try:
        with ck.capture(check_races=True) as cap:
            body(cp, x, cap)
    except wanted:
        return
    raise AssertionError(f'{way}: no {wanted.__name__}')


def run(cp: Any, count: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """``count`` captures. Growth is told from one tenth of the way to the end."""
    x = cp.arange(float(N))
    names = list(WAYS)
    done: Counter[str] = Counter()
    before: dict[str, int] = {}
    for number in each('captures', range(count)):
        if number % 2:
            way = names[number // 2 % len(names)]
            failing(cp, x, way)
            done[way] += 1
        else:
            good(cp, x, number)
            done['good'] += 1
        assert not left_open(), (number, left_open())
        if number == count // 10:
            before = held(cp)
        if number % max(count // 10, 1) == 0:
            say(f'captures: {number:,} of {count:,}')
    after = held(cp)
    return {'captures': dict(done), 'growth': {name: after[name] - before[name] for name in after}}

"""What a call of a ``ck.graphed`` function costs, beside the eager call and the bare launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import capturekit as ck
from capturekit.graphed import faster_way
from tests.benchmarks.timing import Line, batch, compared, medians, recorded, seconds

SIZE = 1000
#: Calls of a stateful function before it is timed, and in a row.
BEFORE, ROW = 20, 40
#: What a graphed call may cost the host beyond the bare launch of its graph, in microseconds.
AIM = 5.0


def scaled_sum(x: Any, y: Any) -> Any:
    return x * 2 + y


def positive_doubled(x: Any) -> Any:
    return x * 2 if float(x.sum()) > 0 else x


def calls(cp: Any, rounds: int = 40) -> Iterator[Line]:
    """Two arrays in, one out; then a function with one host read."""
    x, y = cp.random.random_sample(SIZE), cp.random.random_sample(SIZE)
    graphed = ck.graphed(scaled_sum)
    cap = recorded(lambda _cap: scaled_sum(x, y))
    for _ in range(3):
        assert bool((graphed(x, y) == scaled_sum(x, y)).all())
    assert [variant.state for variant in graphed.variants] == ['recorded']
    timed: dict[str, Callable[[], Any]] = {
        'graphed': lambda: graphed(x, y),
        'eager': lambda: scaled_sum(x, y),
        'bare launch': cap.graph.launch,
        'a new array': lambda: cp.ndarray((SIZE,), x.dtype),
    }
    title = 'graphed call, two arrays in, one out: host time'
    line = compared(
        f'{title} / eager', {name: batch(cp, call, 40) for name, call in timed.items()}, 'graphed', 'eager', rounds
    )
    found = line.medians
    line.note = (
        f'{found["graphed"] - found["bare launch"]:.3g} us beyond the bare launch (aim: {AIM:.0f}), of which '
        f'{found["a new array"]:.3g} us make the result'
    )
    yield line
    yield Line(f'{title} / bare launch', found['graphed'] / found['bare launch'])
    yield from one_read(cp, x, rounds)
    graphed.clear()


def one_read(cp: Any, x: Any, rounds: int) -> Iterator[Line]:
    """Both wait for the device: the eager call for the value, the graphed one for its check."""
    graphed = ck.graphed(positive_doubled)
    for _ in range(3):
        graphed(x)
    calls = {'graphed': batch(cp, lambda: graphed(x), 40), 'eager': batch(cp, lambda: positive_doubled(x), 40)}
    yield compared('graphed call with one host read, checked / eager', calls, 'graphed', 'eager', rounds)
    fresh: list[Any] = []

    def first() -> float:
        fresh[:] = [ck.graphed(scaled_sum)]
        return seconds(lambda: fresh[0](x, x + 1))

    def second() -> float:
        taken = seconds(lambda: fresh[0](x, x + 1))
        fresh[0].clear()
        return taken

    eager = lambda: seconds(lambda: scaled_sum(x, x + 1))  # noqa: E731
    once = [(first(), second(), eager()) for _ in range(20)]
    samples = dict(zip(('first call: eager and watched', 'second call: recorded', 'eager'), map(list, zip(*once))))
    found = medians(samples)
    yield Line(
        'the first two calls / two eager calls',
        (sum(found.values()) - found['eager']) / 2 / found['eager'],
        medians=found,
    )
    graphed.clear()


class Momentum:
    def __init__(self, cp: Any) -> None:
        self.velocity, self.rate, self.steps = cp.zeros(SIZE), 0.1, 0

    def replaced(self, p: Any, g: Any) -> Any:
        self.velocity = 0.9 * self.velocity + g
        return p - self.rate * self.velocity

    def counted(self, p: Any, g: Any) -> Any:
        self.steps += 1
        return self.replaced(p, g)

    def in_place(self, p: Any, g: Any) -> Any:
        self.velocity *= 0.9
        self.velocity += g
        return p - self.rate * self.velocity


def programs(cp: Any) -> dict[str, Callable[[], Any]]:
    """What makes each function anew."""
    return {
        'momentum that is replaced': lambda: Momentum(cp).replaced,
        'the same and a counter': lambda: Momentum(cp).counted,
        'momentum in place': lambda: Momentum(cp).in_place,
        'a norm that is read': lambda: lambda p, g: p / float(cp.linalg.norm(g)),
        'a decision': lambda: lambda p, g: p * 2 if float(g.sum()) > 0 else p,
        'a sum': lambda: lambda p, g: p + g,
    }


def stateful(cp: Any) -> Iterator[Line]:
    """Functions with state and with host reads: calls in a row, and calls that are waited for, in parts of eager ones
    and after twenty of them; each also as they were without a choice of the faster way."""
    p, g = cp.arange(float(SIZE)), cp.ones(SIZE)
    for name, make in programs(cp).items():
        chosen, launched = ck.graphed(make()), ck.graphed(make())
        for _ in range(BEFORE):
            chosen(p, g)
        with mock.patch.object(faster_way, 'STOPWATCH', lambda _platform: None):
            for _ in range(BEFORE):
                launched(p, g)
        ways = {'graphed': chosen, 'eager': make(), 'always launched': launched}
        for how, wait in (('in a row', lambda: None), ('waited for', cp.cuda.Device().synchronize)):
            calls = {way: batch(cp, lambda fn=fn: fn(p, g), ROW, wait) for way, fn in ways.items()}
            yield compared(f'{name}, {how}: graphed / eager', calls, 'graphed', 'eager', target=1.05)

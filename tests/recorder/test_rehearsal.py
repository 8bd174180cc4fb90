"""Rehearsed host reads: what is remembered, what is given back, and what a launch does when a value is another one."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.guard import GUARD
from capturekit.launch import own_kernels
from capturekit.model.host_reads import Read
from tests.captured import launched, line_of, simulated
from tests.examples import examples
from tests.recorder.test_teardown import unchanged


def rehearsed(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[ck.Rehearsal, ck.Capture, Any]:
    """Rehearse a call and record it: the rehearsal, the capture, and what the recorded call returned."""
    rehearsal = ck.rehearse(fn, *args)
    with ck.capture(rehearsal=rehearsal, **options) as cap:
        result = fn(*args)
    return rehearsal, cap, result


def failed(cap: ck.Capture) -> ck.AssumptionError:
    """The error of a launch."""
    with pytest.raises(ck.AssumptionError) as info:
        cap.graph.launch()
    return info.value


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


# -- what is remembered -------------------------------------------------------------------------------------------


def test_reads_are_remembered_in_order(sim: Any) -> None:
    x = sim.arange(6.0)

    def fn(scale: float, more: Any = None) -> Any:
        total = float(x.sum() * scale)  # first
        part = x[1:3].get()  # second
        if (x > 9).any():  # third
            return None
        for i in range(2):
            more.append(x.astype('i4')[i].item())  # fourth
        return total, part

    more: list[int] = []
    rehearsal = ck.rehearse(fn, 2.0, more=more)
    assert rehearsal.result[0] == 30 and rehearsal.result[1].tolist() == [1, 2] and more == [0, 1]
    values = [np.array(30.0), np.array([1.0, 2.0]), np.array(False), np.array(0, 'i4'), np.array(1, 'i4')]
    assert len(rehearsal.reads) == len(values)
    for read, word, value in zip(rehearsal.reads, ('first', 'second', 'third', 'fourth', 'fourth'), values):
        assert same(read.value, value)
        assert read.at is not None and read.at.file == __file__ and read.at.function == 'fn'
        assert read.at.line == line_of(__file__, f'# {word}')
        assert read.signature == ((__file__, read.at.line),)
    assert str(rehearsal.reads[1]).startswith('float64[2] at test_rehearsal.py:')
    assert rehearsal.seams == []


def test_what_was_read_is_remembered_even_if_it_is_changed(sim: Any) -> None:
    x = sim.arange(4.0)

    def fn() -> Any:
        value = x.get()
        value += 1
        return value

    rehearsal, cap, value = rehearsed(fn)
    assert (rehearsal.reads[0].value.tolist(), value.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])
    cap.graph.launch()


def test_reads_of_others_are_not_remembered(sim: Any) -> None:
    x = sim.arange(4.0)

    def elsewhere() -> None:
        assert float(x[3]) == 3

    def fn() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(elsewhere).result()
        assert float(x[1]) == 1

    rehearsal = ck.rehearse(fn)
    float(x[2])
    assert [read.value.item() for read in rehearsal.reads] == [1]


def test_nothing_stays_behind(sim: Any) -> None:
    x = sim.arange(4.0)

    def fails() -> None:
        float(x[0])
        raise KeyError('from within')

    with pytest.raises(KeyError, match='from within'):
        ck.rehearse(fails)
    assert not GUARD.installation.installed and GUARD.state.rehearsals == {}
    assert ck.rehearse(lambda: float(x[1])).reads[0].value == 1
    assert not GUARD.installation.installed and GUARD.state.rehearsals == {}


def test_bad_arguments(sim: Any) -> None:
    with unchanged(sim), ck.capture(), pytest.raises(ck.UnmatchedError, match='this thread has a capture open'):
        ck.rehearse(lambda: None)


# -- what is given back -------------------------------------------------------------------------------------------


def on_the_host(array: Any) -> Any:
    """An array whose values other libraries get on the host, by DLPack."""
    return SimpleNamespace(
        __dlpack__=lambda **_options: array.__dlpack__(dl_device=(1, 0)), __dlpack_device__=lambda: (1, 0)
    )


READS: dict[str, Callable[[Any, Any], Any]] = {
    'bool': lambda cp, x: bool(x[0, 0]),
    'if': lambda cp, x: 1 if (x > 2.5).all() else 2,
    'int': lambda cp, x: int(x[0, 1]),
    'float': lambda cp, x: float(x[0, 1]),
    'complex': lambda cp, x: complex(x[0, 1] * 1j),
    'item': lambda cp, x: x[0, 1].item(),
    'tolist': lambda cp, x: x.tolist(),
    'get': lambda cp, x: x.get(),
    'get into': lambda cp, x: x.get(out=np.empty((2, 2))),
    'get in F order': lambda cp, x: x.get(order='F'),
    'get on a stream': lambda cp, x: x.get(stream=cp.cuda.get_current_stream()),
    'asnumpy': lambda cp, x: cp.asnumpy(x[:, ::-1]),
    'str': lambda cp, x: str(x),
    'format': lambda cp, x: f'{x[0, 1]:.3f}',
    'iteration': lambda cp, x: [float(v) for row in x for v in row],
    'in': lambda cp, x: 0.0 in x[0],
    'tobytes': lambda cp, x: x.tobytes(),
    'mask': lambda cp, x: x[x > 0],
    'dlpack': lambda cp, x: np.from_dlpack(on_the_host(x * 2)) + 1,
    'nonzero': lambda cp, x: cp.nonzero(x > 0)[0],
    'size': lambda cp, x: x.ravel()[: int(x[0, 1])],
    'repeat': lambda cp, x: cp.repeat(x.ravel(), x.astype('i4').ravel().tolist()),
    'arange': lambda cp, x: cp.arange(float(x[1, 1])),
    'half': lambda cp, x: float(x.astype('f2').sum()),
    'unsigned': lambda cp, x: int(x.astype('u1')[0, 1]),
}


def test_every_way_of_reading(sim: Any) -> None:
    for name, read in READS.items():
        x = sim.arange(4.0).reshape(2, 2)
        rehearsal, cap, result = rehearsed(read, sim, x)
        assert rehearsal.reads, name
        for _ in range(2):
            cap.graph.launch()
            if isinstance(result, sim.ndarray):
                assert same(result.get(), rehearsal.result.get()), name
            elif isinstance(result, np.ndarray):
                assert same(result, rehearsal.result) and result.strides == rehearsal.result.strides, name
            else:
                assert type(result) is type(rehearsal.result) and result == rehearsal.result, name
        x += 3
        error = failed(cap)
        now = ck.rehearse(read, sim, x).reads
        assert error.index is not None, name
        assert all(same(a.value, b.value) for a, b in zip(rehearsal.reads[: error.index], now)), name
        assert same(error.assumed, rehearsal.reads[error.index].value), name
        assert same(error.actual, now[error.index].value), name
        assert not same(error.actual, error.assumed), name
        assert error.location is not None and error.location.file == __file__, name


# -- when a value is another one ----------------------------------------------------------------------------------


def test_the_error_says_what_and_where(sim: Any) -> None:
    x = sim.arange(4.0)

    def fn() -> Any:
        first = float(x[0])
        second = x[1:3].get()  # here
        return first, second

    _rehearsal, cap, _result = rehearsed(fn)
    x[2] = 7.5
    error = failed(cap)
    assert error.index == 1
    assert error.assumed.tolist() == [1, 2] and error.actual.tolist() == [1, 7.5]
    assert error.location is not None
    assert (error.location.file, error.location.line) == (__file__, line_of(__file__, '# here'))
    assert error.location.function == 'fn'
    text = str(error)
    assert f'test_rehearsal.py:{error.location.line} in fn' in text
    assert 'float64[2] [1., 2.] in the rehearsal and is float64[2] [1. , 7.5] in this launch' in text
    x[0] = -1
    error = failed(cap)
    assert (error.index, error.assumed.item(), error.actual.item()) == (0, 0.0, -1.0)
    assert 'It was 0.0 in the rehearsal and is -1.0 in this launch' in str(error)


def test_what_comes_after_the_check_does_not_happen(sim: Any) -> None:
    """The caller's arrays are as the work before the read left them."""
    x, before, after, late = (sim.zeros(4) for _ in range(4))

    def fn() -> None:
        before[...] = before + 1
        if float(x[0]) < 1:
            after[...] = after + 1
        if float(x[1]) < 1:
            late[...] = late + 1
        after[...] = after * 2

    _rehearsal, cap, _result = rehearsed(fn)
    for array in (before, after, late):
        array[...] = 1
    cap.graph.launch()
    assert [a.get()[0] for a in (before, after, late)] == [2, 4, 2]
    x[1] = 5
    assert failed(cap).index == 1
    assert [a.get()[0] for a in (before, after, late)] == [3, 5, 2]
    x[0] = 5
    assert failed(cap).index == 0
    assert [a.get()[0] for a in (before, after, late)] == [4, 5, 2]
    assert x.get().tolist() == [5, 5, 0, 0]
    x[...] = 0
    cap.graph.launch()
    assert [a.get()[0] for a in (before, after, late)] == [5, 12, 3]


def test_hundreds_of_launches_good_and_bad(sim: Any) -> None:
    """More than the ring of verdicts has slots."""
    x, n = sim.zeros(4), sim.zeros(1)

    def fn() -> None:
        if float(x[0]) == 0:
            n[...] = n + 1

    _rehearsal, cap, _result = rehearsed(fn)
    n[...] = 0
    good = 0
    for i in range(3 * own_kernels.RING):
        bad = i % 5 == 2 or 60 < i < 70
        x[0] = i if bad else 0
        if bad:
            error = failed(cap)
            assert error.actual.item() == i
        else:
            cap.graph.launch()
            good += 1
    assert n.get().item() == good


#: (assumed, found, whether that is the same)
BITS = [
    (np.nan, np.nan, True),
    (np.nan, 0.0, False),
    (0.0, np.nan, False),
    (np.nan, -np.nan, False),
    (0.0, -0.0, False),
    (-0.0, -0.0, True),
    (np.inf, np.inf, True),
    (np.inf, -np.inf, False),
    (5e-324, 0.0, False),
    (1.0, np.nextafter(1.0, 2.0), False),
]


def test_values_are_compared_by_their_bits(sim: Any) -> None:
    x = sim.zeros(3)
    for assumed, now, holds in BITS:
        x.set(np.array([1.0, assumed, 2.0]))
        _rehearsal, cap, value = rehearsed(lambda: float(x[1]))
        assert np.array(value).tobytes() == np.array(assumed).tobytes()
        x.set(np.array([3.0, now, 4.0]))
        if holds:
            cap.graph.launch()
        else:
            assert failed(cap).actual.tobytes() == np.array(now).tobytes()


@pytest.mark.parametrize('dtype', ['?', 'u8', 'f4', 'c16'])
def test_arrays_of_every_size_are_compared_whole(sim: Any, dtype: str) -> None:
    for size in (1, 3, 8, 9, 1000, 40_001):
        host = np.ones(size, dtype)
        x = sim.array(host)
        rehearsal, cap, _value = rehearsed(lambda x: x.get(), x)
        cap.graph.launch()
        for at in {0, size // 2, size - 1}:
            host[at] = 0
            x.set(host)
            error = failed(cap)
            assert same(error.assumed, rehearsal.reads[0].value)
            if host.nbytes <= 64:
                assert same(error.actual, host)
            else:
                assert error.actual is None and 'is another one in this launch' in str(error)
            host[at] = 1
        x.set(host)
        cap.graph.launch()


# -- random programs ----------------------------------------------------------------------------------------------

#: What makes a new array of two others and a number, and may read on the way: small whole numbers, nothing rounds.
KINDS: dict[str, Callable[[Any, Any, Any, int], Any]] = {
    'unary': lambda cp, a, b, t: a * 2 - t,
    'binary': lambda cp, a, b, t: a + b if a.shape == b.shape else a + b.sum(),
    'branch': lambda cp, a, b, t: b + 1 if float(a.sum()) > t else a - b.sum(),
    'mask': lambda cp, a, b, t: a[a > t],
    'size': lambda cp, a, b, t: a[: int(abs(a).sum()) % (a.size + 1)],
    'any': lambda cp, a, b, t: a * 3 if (a > t).any() else b,
    'host': lambda cp, a, b, t: b + cp.asarray(cp.asnumpy(a)).sum(),
    'nonzero': lambda cp, a, b, t: cp.nonzero(a > t)[0] * 1.0,
    'draw': lambda cp, a, b, t: a + cp.floor(cp.random.random_sample(a.shape) * 4),
    'scalar': lambda cp, a, b, t: a * int(b.max()) if b.size else a,
    'twice': lambda cp, a, b, t: b + int(a.sum()) % 3 * (int(a.sum()) % 2),
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*KINDS, 'write', 'lane', 'loop']), st.integers(0, 7), st.integers(0, 7), st.integers(0, 5)
    ),
    min_size=1,
    max_size=7,
)


def program(cp: Any, steps: Any, x: Any, w: Any, side: Any) -> list[Any]:
    arrays = [x, x + 1]
    for kind, i, j, t in steps:
        a, b = arrays[i % len(arrays)], arrays[j % len(arrays)]
        if kind == 'write':
            w += a if a.shape == w.shape else a.sum()
            new = w * 1
        elif kind == 'lane':
            here = cp.cuda.get_current_stream()
            side.wait_event(here.record())
            with side:
                new = b * 3
            here.wait_event(side.record())
        elif kind == 'loop':
            new, turns = a, 0
            while turns < 3 and float(new.sum()) < t:
                new, turns = new + 1, turns + 1
        else:
            new = KINDS[kind](cp, a, b, t)
        arrays.append(new % 7)
    return [*arrays[2:], w * 1]


@settings(max_examples=examples(20), deadline=None)
@given(steps=STEPS, strict=st.booleans(), seed=st.integers(0, 2**16))
def test_a_launch_gives_the_eager_result_or_names_the_read(steps: Any, strict: bool, seed: int) -> None:
    """Never a wrong number, and never an error without a difference: its number, line and values are the eager ones."""
    choose = random.Random(seed)
    with simulated(seed) as cp:
        x, w, side = cp.zeros(4), cp.zeros(4), cp.cuda.Stream(non_blocking=True)

        def put(given: list[int]) -> None:
            x.set(np.array(given[:4], 'f8'))
            w.set(np.array(given[4:8], 'f8'))
            cp.random.seed(given[8])

        def eager(given: list[int]) -> tuple[list[Read], list[Any]]:
            put(given)
            rehearsal = ck.rehearse(program, cp, steps, x, w, side)
            return [read for read in rehearsal.reads if read.value.size], [a.get() for a in rehearsal.result]

        first = [choose.randrange(4) for _ in range(9)]
        put(first)
        rehearsal = ck.rehearse(program, cp, steps, x, w, side)
        assumed = [read for read in rehearsal.reads if read.value.size]
        put(first)
        with ck.capture(rehearsal=rehearsal, strict=strict) as cap:
            results = program(cp, steps, x, w, side)
        for turn in range(6):
            given = list(first)
            for _ in range(turn % 3):
                given[choose.randrange(9)] = choose.randrange(4)
            reads, wanted = eager(given)
            differing = next((n for n, (a, b) in enumerate(zip(assumed, reads)) if not same(a.value, b.value)), None)
            put(given)
            try:
                cap.graph.launch()
            except ck.AssumptionError as error:
                assert differing is not None, error
                assert error.index == differing and error.location == reads[differing].at
                assert same(error.assumed, assumed[differing].value)
                if error.assumed.nbytes <= 64:
                    assert same(error.actual, reads[differing].value)
            else:
                assert differing is None
                assert all(same(result.get(), value) for result, value in zip(results, wanted))


# -- rehearsals that don't fit ------------------------------------------------------------------------------------


def way(x: Any, out: Any) -> None:
    if float(x.sum()) > 10:
        out[...] = x[:2] * 2
    else:
        out[...] = out - x[0]


def test_other_arguments_of_the_same_shape_are_checked(sim: Any) -> None:
    """The way is the rehearsal's; a launch finds out that it is not theirs."""
    x, other, out = sim.arange(4.0), sim.arange(4.0) + 9, sim.zeros(2)
    with ck.capture(rehearsal=ck.rehearse(way, x, out)) as cap:
        way(other, out)
    out[...] = 7
    error = failed(cap)
    assert (error.assumed.item(), error.actual.item()) == (6, 42)
    assert out.get().tolist() == [7, 7]
    other[...] = x
    assert launched(cap, out) == [[7, 7]]


@pytest.mark.parametrize('other', ['float64[3]', 'float32[4]', 'another line'])
def test_other_reads_are_refused(sim: Any, other: str) -> None:
    x, out = sim.arange(4.0), sim.zeros(2)
    arrays = {'float64[3]': x[:3], 'float32[4]': x.astype('f4')}

    def fn(array: Any, first: bool) -> Any:
        if first:
            return array.get()
        return array.get()  # otherwise

    rehearsal = ck.rehearse(fn, x, True)
    with unchanged(sim):
        with pytest.raises(ck.HostReadError) as info, ck.capture(rehearsal=rehearsal) as cap:
            out[...] = 5
            fn(arrays.get(other, x), other in arrays)
        assert cap.recording.outcome == 'failed'
        assert out.get().tolist() == [0, 0]
    read = other if other in arrays else 'float64[4]'
    assert f'The rehearsal has no read of {read} here' in str(info.value) and 'it took another way' in str(info.value)
    line = line_of(__file__, 'return array.get()') if other in arrays else line_of(__file__, '# otherwise')
    assert info.value.location is not None and info.value.location.line == line


def test_more_reads_than_rehearsed(sim: Any) -> None:
    """The one too many is refused; the capture is as it was before that line."""
    x, out = sim.arange(4.0), sim.zeros(4)

    def fn(times: int) -> list[float]:
        return [float(x[i]) for i in range(times)]

    rehearsal = ck.rehearse(fn, 2)
    with unchanged(sim):
        with ck.capture(rehearsal=rehearsal) as cap:
            out[...] = x * 2
            with pytest.raises(ck.HostReadError, match=r'no read of float64\[\] here'):
                fn(3)
            out[...] = out + 1
    assert launched(cap, out) == [[1, 3, 5, 7]]
    x[1] = 9
    assert failed(cap).index == 1


def test_fewer_reads_than_rehearsed(sim: Any) -> None:
    """What CuPy has cached by now is not read again: such reads are passed over, and not checked."""
    x = sim.arange(4.0)
    cache: list[float] = []

    def fn() -> Any:
        if not cache:
            cache.append(float(x[3]))  # read once
        return x * cache[0] if float(x[1]) < 2 else x

    rehearsal, cap, y = rehearsed(fn)
    assert len(rehearsal.reads) == 2
    (step,) = [step for step in cap.recording.steps if step.kind == 'assumed']
    assert (step.nbytes, step.at) == (8, [__file__, line_of(__file__, '< 2 else x'), 'fn'])
    assert 'float64[] at test_rehearsal.py' in step.text
    assert ck.Recording.from_json(cap.recording.to_json()).steps == cap.recording.steps
    for last, wanted in ((3, [0, 3, 6, 9]), (50, [0, 3, 6, 150])):
        x[3] = last
        assert launched(cap, y) == [wanted]
    x[1] = 2
    assert failed(cap).index == 0


def test_a_rehearsal_serves_many_captures(sim: Any) -> None:
    x, out, caps = sim.arange(4.0), sim.zeros(2), []
    rehearsal = ck.rehearse(way, x, out)
    reads = list(rehearsal.reads)
    for _ in range(2):
        with ck.capture(rehearsal=rehearsal) as cap:
            way(x, out)
        caps.append(cap)
    assert rehearsal.reads == reads
    for cap in caps:
        x[...] = sim.arange(4.0) + 1
        failed(cap)
        x[...] = sim.arange(4.0)
        cap.graph.launch()
    assert out.get().tolist() == [0, 0]
    caps[0].graph.close()
    caps[1].graph.launch()
    with pytest.raises(ck.ClosedError):
        caps[0].graph.launch()


def test_a_capture_inside_reads_nothing(sim: Any) -> None:
    """A rehearsal is one capture's, not that of captures inside it."""
    x = sim.arange(4.0)

    def fn() -> float:
        return float(x[1])

    rehearsal = ck.rehearse(fn)
    with ck.capture(rehearsal=rehearsal) as outer:
        with ck.capture() as inner:
            y = x + 1
            with pytest.raises(ck.HostReadError, match='not computed yet'):
                fn()
        assert fn() == 1
    for cap in (outer, inner):
        cap.graph.launch()
    assert y.get().tolist() == [1, 2, 3, 4]
    x[1] = 3
    failed(outer)


def test_more_checks_than_can_be_numbered(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_kernels, '_MOST', 3)
    x = sim.arange(4.0)

    def fn(times: int) -> None:
        for i in range(times):
            float(x[i])

    rehearsed(fn, 3)
    rehearsal = ck.rehearse(fn, 4)
    with unchanged(sim):
        with pytest.raises(ck.HostReadError, match='up to 3 host reads'), ck.capture(rehearsal=rehearsal):
            fn(4)


# -- lanes, streams, draws, seams ---------------------------------------------------------------------------------


@pytest.mark.parametrize('sim', range(2), indirect=True)
def test_open_lanes_at_a_read(sim: Any) -> None:
    """Strict: refused, and said so. Adapting: joined."""
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)

    def fn() -> Any:
        here = sim.cuda.get_current_stream()
        stream.wait_event(here.record())
        with stream:
            y = x * 2
        n = float(x.sum())
        here.wait_event(stream.record())
        return y + n

    with unchanged(sim), pytest.raises(ck.HostReadError, match='while lanes are open'):
        rehearsed(fn)
    _rehearsal, cap, y = rehearsed(fn, strict=False)
    for _ in range(2):
        y[...] = 0
        assert launched(cap, y) == [[6, 8, 10, 12]]
    x[...] = x + 1
    failed(cap)


@pytest.mark.parametrize('sim', range(2), indirect=True)
@pytest.mark.parametrize('worked', [True, False])
def test_a_read_on_a_lane(sim: Any, worked: bool) -> None:
    """The lane is current before the read, and after it."""
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)

    def fn() -> Any:
        here = sim.cuda.get_current_stream()
        stream.wait_event(here.record())
        with stream:
            y = x * 2 if worked else x
            n = float(y.sum()) if worked else float(y[3])
            assert sim.cuda.get_current_stream() == stream
            y = y + n
        here.wait_event(stream.record())
        return y * 1

    rehearsal, cap, y = rehearsed(fn, strict=not worked)
    for _ in range(2):
        y[...] = 0
        cap.graph.launch()
        assert same(y.get(), rehearsal.result.get())
    x[...] = x + 1
    failed(cap)


def test_a_capture_in_a_rehearsal_is_a_capture(sim: Any) -> None:
    x = sim.arange(4.0)

    def fn() -> float:
        with ck.capture() as cap:
            y = x * 2
            with pytest.raises(ck.HostReadError):
                float(y[1])
        cap.graph.launch()
        return float(y[1])

    rehearsal = ck.rehearse(fn)
    assert rehearsal.result == 2
    assert [read.value.item() for read in rehearsal.reads] == [2]


def test_launches_on_other_streams_and_threads(sim: Any) -> None:
    x, out = sim.arange(4.0), sim.zeros(2)
    _rehearsal, cap, _result = rehearsed(way, x, out)
    stream = sim.cuda.Stream(non_blocking=True)
    x[0] = 1
    sim.cuda.Stream.null.synchronize()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ck.AssumptionError) as info:
        pool.submit(cap.graph.launch, stream).result()
    assert info.value.actual.item() == 7
    x[0] = 0
    out[...] = 0
    sim.cuda.Stream.null.synchronize()
    cap.graph.upload(stream)
    cap.graph.launch(stream)
    stream.synchronize()
    assert out.get().tolist() == [0, 0]


def test_seams_are_named_and_not_recorded(sim: Any) -> None:
    x = sim.eye(3)

    def fn() -> Any:
        return sim.linalg.svd(x)[1], sim.linalg.eigh(x)[0]

    rehearsal = ck.rehearse(fn)
    assert rehearsal.seams == ['cupy.linalg.svd', 'cupy.linalg.eigh']
    with unchanged(sim), pytest.raises(ck.UnsupportedCallError, match=r'cupy\.linalg\.svd\(\)'):
        with ck.capture(rehearsal=rehearsal):
            fn()


# -- the story and the graph --------------------------------------------------------------------------------------


def test_checks_asked_for_too_late_are_taken_for_wrong(sim: Any) -> None:
    """What the device has written over can not be vouched for."""
    x, out = sim.arange(4.0), sim.zeros(2)
    _rehearsal, cap, _result = rehearsed(way, x, out)
    plan = cap.graph._state.plan
    assert plan is not None and plan.checks is not None
    for _ in range(own_kernels.RING):
        cap.graph.launch()
    assert plan.checks.wait(1, 1, lambda: None) is None
    cap.graph.launch()
    error = plan.checks.wait(1, 1, lambda: None)
    assert isinstance(error, ck.AssumptionError) and 'asked for too late' in str(error)
    assert plan.checks.wait(2, 1, lambda: None) is None
    assert plan.checks.wait(1, 0, lambda: None) is None, 'nothing was asked'

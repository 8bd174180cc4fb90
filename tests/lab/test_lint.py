"""``ck.lint``: each kind of trouble is found by its rule at its line, all at once, and the eager run is unharmed."""

from __future__ import annotations

import inspect
import io
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from tests.guard.test_exchange import Other

Call = Callable[[SimpleNamespace], Any]


def scene(cp: Any) -> SimpleNamespace:
    """What the calls below work with: ``side`` is a lane with work on it, to be joined; ``outside`` is none."""
    s = SimpleNamespace(cp=cp, x=cp.arange(8, dtype='f8'), w=cp.ones(8), here=cp.cuda.get_current_stream)
    s.side, s.outside = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    s.old = s.outside.record()
    s.null = cp.cuda.Stream.null
    s.eye, s.rt = cp.eye(3), cp.cuda.runtime
    with ck.capture() as cap:
        s.inner = s.x * 2
    s.graph = cap.graph
    with s.outside:
        s.outside.begin_capture()
        s.cupy_graph = s.outside.end_capture()
    return s


def around(s: SimpleNamespace, call: Call) -> Any:
    """Forked and joined work, with a call in its middle."""
    s.a = s.x + 1
    s.e = s.here().record()
    s.side.wait_event(s.e)
    with s.side:
        s.b = s.a * 2
    call(s)
    s.here().wait_event(s.side.record())
    s.c = s.a + s.b
    return s.c


def escaping(s: SimpleNamespace) -> None:
    with s.outside:
        s.x * 2


def null_block(s: SimpleNamespace) -> None:
    with s.null:
        s.w += 1


TROUBLES: dict[str, tuple[str, Call]] = {
    'lane.synchronize': ('sync-captured', lambda s: s.side.synchronize()),
    'current.synchronize': ('sync-captured', lambda s: s.here().synchronize()),
    'runtime.streamSynchronize': ('sync-captured', lambda s: s.rt.streamSynchronize(s.here().ptr)),
    'lane.done': ('query-captured', lambda s: s.side.done),
    'runtime.streamQuery': ('query-captured', lambda s: s.rt.streamQuery(s.side.ptr)),
    'event.done': ('query-captured-event', lambda s: s.e.done),
    'event.synchronize': ('sync-captured-event', lambda s: s.e.synchronize()),
    'elapsed': ('time-captured-event', lambda s: s.cp.cuda.get_elapsed_time(s.e, s.e)),
    'Device.synchronize': ('device-sync', lambda s: s.cp.cuda.Device().synchronize()),
    'runtime.deviceSynchronize': ('device-sync', lambda s: s.rt.deviceSynchronize()),
    'null.synchronize': ('legacy-stream', lambda s: s.null.synchronize()),
    'null.use': ('legacy-stream', lambda s: (s.null.use(), s.before.use())),
    'with null': ('legacy-stream', lambda s: null_block(s)),
    'null.wait_event': ('legacy-stream', lambda s: s.null.wait_event(s.e)),
    'memset, synchronous': ('legacy-stream', lambda s: s.w.data.memset(0, 8)),
    'runtime.memset': ('legacy-stream', lambda s: s.rt.memset(s.w.data.ptr, 0, 8)),
    'memset on null': ('legacy-stream', lambda s: s.w.data.memset_async(0, 8, s.null)),
    'dlpack': ('LegacyStreamError', lambda s: s.a.__dlpack__()),
    'float': ('host-read', lambda s: float(s.a.sum())),
    'if': ('host-read', lambda s: 1 if s.w[0] > 0 else 2),
    'str': ('host-read', lambda s: str(s.w)),
    'boolean mask': ('host-read', lambda s: s.x[s.x > 3]),
    'nonzero': ('host-read', lambda s: s.cp.nonzero(s.x)),
    'get of new work, aside': ('host-read', lambda s: s.a.get(stream=s.outside)),
    'get of what is written, aside': ('host-read', lambda s: (s.w.fill(2), s.w.get(stream=s.outside))),
    'get of what a library may write, aside': ('host-read', lambda s: (s.eye @ s.eye, s.eye.get(stream=s.outside))),
    'get of a part that is written, aside': ('host-read', lambda s: (s.w[::2].fill(2), s.w[2:].get(stream=s.outside))),
    'set': ('host-write', lambda s: s.w.set(np.zeros(8))),
    'outside event': ('isolation', lambda s: s.here().wait_event(s.old)),
    'outside event on a lane': ('isolation', lambda s: s.side.wait_event(s.old)),
    'add_callback': ('callback', lambda s: s.side.add_callback(lambda *_: None, 1)),
    'work outside': ('escaped-work', lambda s: escaping(s)),
    'memset outside': ('escaped-work', lambda s: s.w.data.memset_async(0, 8, s.outside)),
    'host function outside': ('escaped-work', lambda s: s.outside.launch_host_func(lambda _: None, 1)),
    'graph.launch': ('graph-launch', lambda s: s.graph.launch()),
    'graph.launch on a lane': ('graph-launch', lambda s: s.graph.launch(s.side)),
    'graph.upload': ('graph-upload', lambda s: s.graph.upload()),
    'cupy graph.launch': ('graph-launch', lambda s: s.cupy_graph.launch()),
    'svd': ('seam', lambda s: s.cp.linalg.svd(s.eye)),
    'eigh': ('seam', lambda s: s.cp.linalg.eigh(s.eye)),
    "another lane's array": ('sync-captured', lambda s: s.cp.asarray(Other(s.b, s.side.ptr))),
    'a generator without a seed': ('UnsupportedCallError', lambda s: s.cp.random.default_rng()),
}  # fmt: skip

#: What is recorded, but not as it reads.
NOTES: dict[str, tuple[str, Call]] = {
    'cupy.array': ('constant', lambda s: s.cp.array([1, 2])),
    'list index': ('constant', lambda s: s.x[[0, 2]]),
    'list index, written': ('constant', lambda s: s.w.__setitem__([0, 2], 5)),
    'random': ('drawn', lambda s: s.cp.random.rand(3)),
    'choice': ('drawn', lambda s: s.cp.random.choice(8, 2, replace=False)),
    'seed': ('drawn', lambda s: s.cp.random.seed(3)),
    'handle of a stream outside': ('outside-handle', lambda s: s.outside.ptr),
}

CLEAN: dict[str, Call] = {
    'nothing': lambda s: None,
    'fork': lambda s: forked(s),
    'scalars': lambda s: s.cp.array(3) + s.x * 2.5,
    'mask with one value': lambda s: s.w.__setitem__(s.w > 0, 3),
    'where': lambda s: s.cp.where(s.x > 3, s.x, s.w),
    'host function': lambda s: s.here().launch_host_func(lambda _: None, 1),
    'outside.synchronize': lambda s: s.outside.synchronize(),
    'outside event.done': lambda s: s.old.done,
    'a stream outside, made current and left': lambda s: touched(s),
    'is_capturing': lambda s: s.side.is_capturing(),
    'flags': lambda s: (s.side.is_non_blocking, s.rt.streamGetFlags(s.side.ptr)),
    'own exchange': lambda s: s.cp.asarray(Other(s.a, 1 if s.here().ptr in (0, 1) else s.here().ptr)),
    'pool freed': lambda s: s.cp.get_default_memory_pool().free_all_blocks(),
    'allocation': lambda s: s.cp.empty(3),
    'a capture inside': lambda s: captured_inside(s),
    'get of what is only read, aside': lambda s: s.x.get(stream=s.outside),
    'get of a part that is not written, aside': lambda s: (s.w[::2].fill(2), s.w[1::2].get(stream=s.outside)),
}


def forked(s: SimpleNamespace) -> None:
    with ck.fork(2) as (left, right):
        with left:
            s.x * 2
        with right:
            s.w += 1


def touched(s: SimpleNamespace) -> None:
    with s.outside:
        s.cp.empty(3)


def captured_inside(s: SimpleNamespace) -> None:
    with ck.capture():
        s.x * 2


def values(s: SimpleNamespace) -> dict[str, Any]:
    return {name: str(getattr(s, name).get()) for name in ('x', 'w', 'a', 'b', 'c', 'inner')}


def first(report: ck.Report) -> ck.Finding:
    return next(finding for finding in report.findings if finding.refused)


@pytest.mark.parametrize('stream', ['legacy', 'own'])
@pytest.mark.parametrize('name', [*TROUBLES, *NOTES, *CLEAN])
def test_found_and_unharmed(sim: Any, name: str, stream: str) -> None:
    rule, call = {**TROUBLES, **NOTES}.get(name) or (None, CLEAN[name])
    plain, linted = scene(sim), scene(sim)
    own = sim.cuda.Stream() if stream == 'own' else sim.cuda.Stream.null
    with own:
        plain.before = linted.before = own
        around(plain, call)
        report = ck.lint(around, linted, call)
        assert sim.cuda.get_current_stream() is own
    assert report.result is linted.c
    assert values(linted) == values(plain)
    if rule is None:
        assert report.findings == []
        assert str(report) == 'nothing was found that a capture would refuse, leave out or make a constant'
        return
    found = first(report) if name in TROUBLES else report.findings[0]
    assert (found.rule, found.refused, report.ok) == (rule, name in TROUBLES, name in NOTES)
    assert found.at is not None
    if found.at.function == '<lambda>':
        assert (found.at.file, found.at.line) == (__file__, call.__code__.co_firstlineno)
    else:
        assert found.at.function in ('escaping', 'null_block')
    assert found.says and found.remedy and found.call and found.adapting
    for part in (found.rule, found.remedy, found.strict, found.source):
        assert part in str(report)


@pytest.mark.parametrize('name', TROUBLES)
def test_strict_captures_raise_the_same(sim: Any, name: str) -> None:
    """The table itself is held against captures."""
    s = scene(sim)
    found = first(ck.lint(around, scene(sim), TROUBLES[name][1])) if name != 'null.use' else None
    with pytest.raises(ck.CaptureError) as info, ck.capture() as cap:
        s.before = cap.stream
        around(s, TROUBLES[name][1])
    if found is not None:
        assert found.strict == f'raises {type(info.value).__name__}'
        assert found.at == info.value.location
        assert found.remedy == info.value.remedy


def test_a_gpu_does_not_show_what_work_writes(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, side = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)
    monkeypatch.setattr('capturekit.guard.lint_guard._Device.listen', lambda _device: lambda: None)
    report = ck.lint(lambda: x.get(stream=side))
    (found,) = report.findings
    assert (found.rule, found.refused_adapting) == ('host-read', True)
    assert 'it can not be seen which memory it writes' in found.says
    assert report.result.tolist() == [0, 1, 2, 3]


# -- all at once ----------------------------------------------------------------------------------------------


def several(s: SimpleNamespace) -> Any:
    y = s.x * 2
    if float(y.sum()) > 1:  # 1 host-read
        y += 1
    with s.side:  # 2 escaped-work (in place: known where the stream became current)
        y *= 2
    s.side.synchronize()  # 3 sync-captured: the stream counts as forked by now
    for _ in range(3):
        print(y, file=s.sink)  # 4 host-read, three times
    with s.null:  # 5 legacy-stream
        y += 1
    s.cp.cuda.Device().synchronize()  # 6 device-sync
    k = s.cp.array([1.0, 2.0])  # 7 constant
    s.cp.linalg.svd(s.eye)  # 8 seam
    with s.side:  # 9 unjoined
        s.z = y + 1
    return y, k


def test_all_are_found_at_once(sim: Any) -> None:
    s = scene(sim)
    s.sink = io.StringIO()
    report = ck.lint(several, s)
    lines = {line.split('# ')[1].split()[0]: n for n, line in enumerate(source(several), 1) if '# ' in line}
    before = several.__code__.co_firstlineno - 1
    expected = [
        (1, 'host-read', 1, 'the same'),
        (2, 'escaped-work', 1, 'was forked from lane 0'),
        (3, 'sync-captured', 1, 'Stream.synchronize() of lane 1 became a join'),
        (4, 'host-read', 3, 'the same'),
        (5, 'legacy-stream', 1, 'with stream: of the legacy stream was moved to lane 0'),
        (6, 'device-sync', 1, 'Device.synchronize() became a join of all lanes'),
        (7, 'constant', 1, 'the same'),
        (8, 'seam', 1, 'the same'),
        (9, 'unjoined', 1, 'lane 1, left unjoined, is joined to the origin at the end'),
    ]
    assert len(report.findings) == len(expected)
    for found, (number, rule, count, adapting) in zip(report.findings, expected):
        assert found.at is not None
        assert (found.at.line - before, found.rule, found.count) == (lines[str(number)], rule, count)
        assert found.adapting.endswith(adapting)
    assert not report.ok and not report.ok_adapting
    assert [f.rule for f in report.findings if f.refused_adapting] == ['host-read', 'host-read', 'seam']
    assert report.result[0].get().tolist() == (np.arange(8) * 4 + 3).tolist()
    assert 'x: ' not in str(report) and '(3 times)' in str(report)
    assert str(report).startswith('9 found: a strict capture refuses 8, one with strict=False 3\n')


def source(fn: Callable[..., Any]) -> list[str]:
    return inspect.getsource(fn).splitlines()


def test_each_lane_left_unjoined_is_named(sim: Any) -> None:
    s = scene(sim)

    def forgetful() -> None:
        event = s.here().record()
        for stream in (s.side, s.outside):
            stream.wait_event(event)
        with s.side:
            s.w += 1
        with s.outside:
            s.x += 1

    report = ck.lint(forgetful)
    assert [f.rule for f in report.findings] == ['unjoined', 'unjoined']
    assert len({f.at for f in report.findings}) == 2
    assert report.ok_adapting and not report.ok


def test_report_as_json(sim: Any) -> None:
    report = ck.lint(around, scene(sim), lambda s: float(s.a[0]))
    data = json.loads(json.dumps(report.to_json()))
    (found,) = data['findings']
    assert (data['ok'], data['ok_adapting'], found['rule'], found['count']) == (False, False, 'host-read', 1)
    assert found['at'][0] == __file__ and 'float' in found['source'] and found['refused']


# -- nothing is changed ---------------------------------------------------------------------------------------


def test_streams_and_allocators_are_as_before(sim: Any) -> None:
    other = sim.cuda.Stream(non_blocking=True)
    pool = sim.cuda.MemoryPool()

    def leaves_things() -> Any:
        other.use()
        return sim.cuda.get_current_stream()

    assert ck.lint(leaves_things).result is other
    assert sim.cuda.get_current_stream() is sim.cuda.Stream.null
    with sim.cuda.using_allocator(pool.malloc):
        report = ck.lint(sim.ones, 100)
        assert sim.cuda.memory._get_thread_local_allocator() == pool.malloc
    assert report.ok and pool.used_bytes() > 0
    kept = ck.lint(sim.cuda.get_current_stream).result
    assert kept.ptr == 0 and type(kept.ptr) is int and kept == sim.cuda.Stream.null
    assert not GUARD.installation.installed and GUARD.ledger.captures == []


def test_the_runs_exception_comes_through_with_the_report(sim: Any) -> None:
    s = scene(sim)

    def fails() -> None:
        s.side.wait_event(s.here().record())
        with s.side:
            s.w += float(s.x[1])
        raise LookupError('mine')

    with pytest.raises(LookupError, match='mine') as info:
        ck.lint(fails)
    report = info.value.__dict__['capturekit_report']
    assert [f.rule for f in report.findings] == ['host-read']  # not the lane: an aborted capture says nothing of it
    assert any(note.startswith('capturekit lint, up to here: 1 found') for note in info.value.__notes__)
    assert sim.cuda.get_current_stream() is sim.cuda.Stream.null


def test_lints_nest_and_captures_inside_are_real(sim: Any) -> None:
    x = sim.arange(4.0)

    def outer() -> Any:
        inner = ck.lint(lambda: float(x[1]))
        with ck.capture() as cap:
            y = x * 2
            with pytest.raises(ck.HostReadError):
                float(y[0])
        cap.graph.launch()
        return inner, y

    with ck.capture(), pytest.raises(ck.UnmatchedError):
        ck.lint(print)
    with pytest.raises(TypeError):
        ck.lint(3)  # type: ignore[arg-type]
    report = ck.lint(outer)
    inner, y = report.result
    assert [f.rule for f in inner.findings] == ['host-read']
    assert [f.rule for f in report.findings] == ['graph-launch']
    assert y.get().tolist() == [0, 2, 4, 6]


def test_a_capture_inside_ends_the_run_at_what_it_refuses(sim: Any) -> None:
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)

    def block() -> Any:
        first = float(x[1])  # nothing is recorded here: the run goes on
        with ck.capture():
            return first + float(x[2])

    def by_hand() -> Any:
        with stream:
            stream.begin_capture()
            try:
                return float(x[1])
            finally:
                stream.end_capture()

    for fn, found in (block, 2), (by_hand, 1):
        with pytest.raises(ck.HostReadError) as raised:
            ck.lint(fn)
        assert [f.rule for f in raised.value.capturekit_report.findings] == ['host-read'] * found


def test_the_current_stream_is_not_the_legacy_one_by_name(sim: Any) -> None:
    """In a capture it wouldn't be; the work still goes where it always went."""

    def compare() -> tuple[bool, bool]:
        here = sim.cuda.get_current_stream()
        return here == sim.cuda.Stream.null, here == sim.cuda.get_current_stream()

    report = ck.lint(compare)
    assert report.result == (False, True) and report.findings == []


def test_the_legacy_stream_stays_out_of_captures_inside(sim: Any) -> None:
    x, stream = sim.arange(4.0), sim.cuda.Stream(non_blocking=True)

    def by_hand() -> Any:
        stream.begin_capture()
        with stream:
            y = x * 2
        return stream.end_capture(), y

    assert ck.lint(by_hand).ok


def test_graphed_functions_are_linted_as_they_stand(sim: Any) -> None:
    @ck.graphed
    def step(x: Any) -> Any:
        return x / x.max() if float(x.max()) > 1 else x

    for _ in range(3):
        report = ck.lint(step, sim.arange(4.0))
        assert [f.rule for f in report.findings] == ['host-read']
    assert step.variants == []


def test_other_threads_are_left_alone(sim: Any) -> None:
    x = sim.arange(4.0)
    ready, go = threading.Event(), threading.Event()
    box: list[Any] = []

    def elsewhere() -> None:
        ready.wait(10)
        with ck.capture() as cap:
            y = x * 3
        sim.cuda.Device().synchronize()
        cap.graph.launch()
        box.append((float(y[1]), cap.recording.outcome))
        go.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    def mine() -> bool:
        ready.set()
        return go.wait(10)

    report = ck.lint(mine)
    thread.join()
    assert report.result and report.findings == []
    assert box == [(3.0, 'good')]

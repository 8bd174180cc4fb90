"""``ck.reads`` and ``ck.writes``: nodes that capturekit does not know are ordered by what the user says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.simulated import body, memory_at
from tests.analysis.test_races import HALF, WRITES_FIRST
from tests.captured import flag, values
from tests.examples import examples
from tests.lanes.test_relane import SAME, quiet

COUNT = 8
#: Adds to ``x`` through an address that no argument shows.
BLIND = """
extern "C" __global__ void blind(const unsigned long long* table) { ((double*)table[0])[threadIdx.x] += 1; }
"""


@body('blind')
def _blind(grid: Any, block: Any, args: Any) -> None:
    memory_at(int(args[0][0]), 8 * COUNT).view('f8')[...] += 1


def kernels(cp: Any) -> tuple[Any, Any]:
    return cp.RawKernel(WRITES_FIRST, 'writes_first'), cp.RawKernel(HALF, 'from_the')


def plus_one(cp: Any, out: Any, x: Any) -> None:
    kernel, _half = kernels(cp)
    with ck.reads(x), ck.writes(out):
        kernel((1,), (COUNT,), (out, x))


def test_kernels_are_ordered_by_what_is_said_of_them(cp: Any) -> None:
    x, outs = cp.arange(8.0), [cp.zeros(8) for _ in range(3)]
    with ck.capture() as cap:
        for out in outs:
            plus_one(cp, out, x)
            cp.multiply(out, 2, out=out)
    report = cap.graph.relane()
    assert report and cap.graph.edges == [(0, 1), (2, 3), (4, 5)]
    assert not report.fixed and [node.number for node in report.declared] == [0, 2, 4]
    assert 'taken to touch what ck.reads and ck.writes say, 3 nodes: 0: kernel writes_first' in str(report)
    cap.graph.launch()
    assert report.compared == SAME
    assert [values(out) for out in outs] == [((np.arange(8.0) + 1) * 2).tolist()] * 3


def test_one_half_says_nothing(cp: Any) -> None:
    kernel, half = kernels(cp)
    x, y, z = (cp.arange(8.0) for _ in range(3))
    with ck.capture() as cap:
        with ck.writes(y):
            kernel((1,), (8,), (y, x))
        with ck.reads(), ck.writes(z):
            half((1,), (4,), (z, 0))
    report = cap.graph.relane()
    assert not report and [node.number for node in report.half_declared] == [0] == [
        node.number for node in report.fixed
    ]
    assert 'of which only one half is said: write ck.reads and ck.writes, 1 node: 0: kernel' in str(report)


def test_what_capturekit_knows_it_keeps_to(cp: Any) -> None:
    """The block says that nothing is touched; copies and CuPy's kernels are known all the same."""
    x, y = cp.arange(8.0), cp.zeros(8)
    with ck.capture() as cap:
        with ck.reads(), ck.writes():
            cp.add(x, 1, out=y)
            cp.add(y, 1, out=x)
    assert not cap.graph.relane() and cap.graph.edges == [(0, 1)]


@pytest.mark.parametrize(
    ('options', 'edges'),
    [({}, [(0, 1), (1, 2), (2, 3)]), ({'lanes': 'auto', 'memory_limit': 1 << 20}, [(0, 1), (2, 3)])],
)
def test_temporaries_that_nobody_names_keep_their_order(cp: Any, options: dict[str, Any], edges: Any) -> None:
    """Both calls use the same memory for a temporary: the second has to come after the first, unless it is packed."""
    kernel, _half = kernels(cp)
    x, outs = cp.arange(8.0), [cp.zeros(8) for _ in range(2)]
    with ck.capture(**options) as cap:
        for out in outs:
            with ck.reads(x), ck.writes(out):
                temporary = cp.empty(8)
                kernel((1,), (8,), (temporary, x))
                kernel((1,), (8,), (out, temporary))
            del temporary
    assert bool(cap.relaned if options else cap.graph.relane()) == bool(options)
    assert cap.graph.edges == edges
    cap.graph.launch()
    assert [values(out) for out in outs] == [(np.arange(8.0) + 2).tolist()] * 2


def test_host_functions_come_after_what_they_read(cp: Any) -> None:
    x, y, told = cp.arange(8.0), cp.zeros(8), []
    hosts = [np.frombuffer(cp.cuda.alloc_pinned_memory(64), 'f8', 8) for _ in range(2)]
    with ck.capture() as cap:
        cp.add(x, 1, out=y)
        for number, host in enumerate(hosts):
            cp.cuda.runtime.memcpyAsync(host.ctypes.data, x.data.ptr, 64, 2, cap.stream.ptr)
            with ck.reads(host), ck.writes():
                cap.stream.launch_host_func(lambda one: told.append((one, hosts[one].tolist())), number)
        cp.add(x, 2, out=x)
    report = cap.graph.relane()
    assert report and set(cap.graph.edges) == {(1, 2), (3, 4), (2, 4), (0, 5), (1, 5), (3, 5)}
    cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert told == [(0, np.arange(8.0).tolist()), (1, np.arange(8.0).tolist())]
    assert report.compared.startswith('not compared: a node of it')


def test_races_are_searched_by_what_is_said(cp: Any) -> None:
    kernel, _half = kernels(cp)
    x, y, z = (cp.arange(8.0) for _ in range(3))

    def two(said: bool) -> ck.Graph:
        with ck.capture(check_races=False) as cap, cap.fork(2) as lanes:
            for lane, out in zip(lanes, (y, z)):
                with lane, ck.reads(x), ck.writes(*([out] if said else [])):
                    kernel((1,), (8,), (out, x))
            with lanes[0]:
                cp.add(z, 1, out=y)
        return cap.graph

    (race,) = two(True).races()
    assert race.missing == (1, 2) and not race.certain and race.memory == 'z'
    assert not two(False).races(), 'it is said that nothing is written'


def test_a_promise_that_does_not_hold_is_seen_when_launched(sim: Any) -> None:
    """The kernel's argument is seen to be memory of ``x``, so that the launch compares it."""
    kernel, half = kernels(sim)
    x = sim.arange(8.0)
    with ck.capture() as cap:
        for step in range(12):
            with ck.reads(), ck.writes():
                kernel((1,), (8,), (x, x)) if step % 2 else half((1,), (4,), (x, 2))
            sim.multiply(x, 2, out=x)
    edges = cap.graph.edges
    report = cap.graph.relane()
    assert report
    with pytest.warns(RuntimeWarning, match='is undone'):
        cap.graph.launch()
    assert cap.graph.edges == edges and not report


def test_hidden_memory_that_is_named_is_compared(sim: Any) -> None:
    x, y = sim.zeros(8), sim.zeros(8)
    table = sim.array([x.data.ptr], 'u8')
    blind = sim.RawKernel(BLIND, 'blind')
    with ck.capture() as cap:
        with ck.reads(table), ck.writes(x):
            blind((1,), (8,), (table,))
        sim.add(y, 1, out=y)
        sim.multiply(x, 2, out=x)
    report = cap.graph.relane()
    assert report and cap.graph.edges == [(0, 2)]
    cap.graph.launch()
    assert (values(x), values(y)) == ([2.0] * 8, [1.0] * 8), 'both runs of the first launch began with the same values'
    assert report.compared == SAME


def test_what_is_said_goes_with_rebinding_copies_and_updates(cp: Any) -> None:
    x, y, z = (cp.arange(8.0) for _ in range(3))

    def made() -> ck.Graph:
        with ck.capture() as cap:
            plus_one(cp, y, x)
            plus_one(cp, z, x)
            cp.add(y, 1, out=y)
        return cap.graph

    graph = made()
    copy = graph.clone()
    for one in (graph, copy):
        assert one.relane() and one.edges == [(0, 2)]
    other = cp.zeros(8)
    graph.rebind((y, z), (z, other))
    assert graph.edges == [(0, 2)] and not graph.relane().fixed
    graph.launch()
    assert values(z) == (np.arange(8.0) + 2).tolist() and values(other) == (np.arange(8.0) + 1).tolist()
    assert graph.update(made()).how == 'updated'
    assert graph.edges == [(0, 2)]
    graph.set_kernel(0, grid=1)
    assert sorted(graph.edges) == [(0, 1), (0, 2)], 'nobody knows the changed node'


def test_fusing_keeps_what_is_said(cp: Any) -> None:
    x, y, z = (cp.arange(8.0) for _ in range(3))
    with ck.capture(lanes='auto', fuse=True) as cap:
        doubled = x * 2
        cp.add(doubled, 1, out=y)
        plus_one(cp, z, y)
        plus_one(cp, x, cp.zeros(8))
    assert cap.fused and not cap.relaned.fixed and len(cap.relaned.declared) == 2
    cap.graph.launch()
    assert values(z) == (np.arange(8.0) * 2 + 2).tolist()


def test_blocks_in_bodies_of_decisions(cp: Any) -> None:
    going, x, outs = flag(cp), cp.arange(8.0), [cp.zeros(8) for _ in range(3)]
    with ck.capture() as cap:
        with cap.if_(going):
            for out in outs[:2]:
                plus_one(cp, out, x)
        with ck.reads(), ck.writes(), cap.if_(going):
            kernels(cp)[0]((1,), (8,), (outs[2], x))
    report = cap.graph.relane()
    assert [len(one.loosened) for one in report.graphs] == [0, 1, 0]
    assert [node.name for node in report.fixed].count('writes_first') == 1
    cap.graph.launch()
    assert [values(out) for out in outs] == [(np.arange(8.0) + 1).tolist()] * 3


def test_a_block_across_a_checked_read_is_not_used(cp: Any) -> None:
    kernel, _half = kernels(cp)
    x, y = cp.arange(8.0), cp.zeros(8)

    def work() -> None:
        with ck.reads(x), ck.writes(y):
            kernel((1,), (8,), (y, x))
            if float(y.sum()) > 1:
                kernel((1,), (8,), (y, x))

    rehearsal = ck.rehearse(work)
    with ck.capture(rehearsal=rehearsal) as cap:
        work()
    assert any('begins in one part of the graph and ends in another' in note.text for note in cap.recording.notes)
    assert not cap.graph.relane().declared


def test_outside_of_a_capture_nothing_happens(cp: Any) -> None:
    x, y = cp.arange(8.0), cp.zeros(8)
    plus_one(cp, y, x)
    assert values(y) == (np.arange(8.0) + 1).tolist()
    block = ck.reads(x, np.zeros(3), y[:0])
    with block, block:
        pass


@pytest.mark.parametrize('wrong', [1, None, [1.0], 'x'])
@pytest.mark.parametrize('call', [ck.reads, ck.writes])
def test_what_is_not_an_array_is_refused_at_the_call(cp: Any, call: Any, wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf'ck.{call.__name__}\(\) takes CuPy arrays and NumPy arrays, got'):
        call(cp.zeros(3), wrong)


def test_a_script_that_is_linted_and_a_graph_of_yours(cp: Any) -> None:
    x, y = cp.arange(8.0), cp.zeros(8)
    assert not ck.lint(plus_one, cp, y, x).findings
    with ck.capture() as inner:
        plus_one(cp, y, x)
    with ck.capture() as cap:
        cap.embed(inner.graph)
        cp.add(x, 1, out=x)
    assert not cap.graph.relane().declared, 'a child graph is not known'


operations = st.tuples(st.sampled_from(('known', 'said', 'half', 'temporary')), st.integers(0, 3), st.integers(0, 3))


def run(cp: Any, program: list[tuple[str, int, int]], arrays: list[Any]) -> None:
    kernel, half = kernels(cp)
    for name, out, source in program:
        if name == 'known':
            cp.add(arrays[source], arrays[out], out=arrays[out])
        elif name == 'said':
            plus_one(cp, arrays[out], arrays[source])
        elif name == 'half':
            with ck.reads(), ck.writes(arrays[out][source : source + 3]):
                half((1,), (3,), (arrays[out], source))
        else:
            with ck.reads(arrays[source]), ck.writes(arrays[out]):
                between = cp.empty(8)
                kernel((1,), (8,), (between, arrays[source]))
                kernel((1,), (8,), (arrays[out], between))


@settings(quiet, max_examples=examples(120))
@given(program=st.lists(operations, min_size=1, max_size=12), late=st.booleans())
def test_programs_of_said_kernels_give_the_same_bits(cp: Any, program: list[tuple[str, int, int]], late: bool) -> None:
    arrays = [cp.arange(8.0) for _ in range(4)]
    found = []
    for said in (False, True):
        with ck.capture(lanes='auto' if late and said else None) as cap:
            run(cp, program, arrays)
        report = cap.graph.relane() if said else None
        for _ in range(2):
            for number, array in enumerate(arrays):
                array[...] = cp.arange(8.0) * (number + 1)
            cap.graph.launch()
            found.append([values(array) for array in arrays])
        assert report is None or (not report.fixed and report.compared in ('', 'not yet', SAME))
        assert not said or not cap.graph.races()
        cap.graph.close()
    assert all(one == found[0] for one in found)

"""Races: programs with and without a missing edge, against sets of bytes and a search along the edges."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.analysis.node_view import Node
from capturekit.analysis.races import Observed, Search
from capturekit.driver.cuda import current
from capturekit.driver.node_accesses import Access, Touched
from capturekit.launch.plan import Part
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from capturekit.simulated import body
from tests.examples import examples

N = 48


#: Views of one array: whole, disjoint halves, overlapping, every second element, columns of a matrix.
VIEWS: dict[str, Any] = {
    'whole': np.s_[:],
    'low': np.s_[: N // 2],
    'high': np.s_[N // 2 :],
    'middle': np.s_[N // 4 : 3 * N // 4],
    'even': np.s_[::2],
    'odd': np.s_[1::2],
    'thirds': np.s_[2::3],
    'back': np.s_[::-1],
}
BYTES = {name: {4 * int(n) + k for n in np.arange(N)[view] for k in range(4)} for name, view in VIEWS.items()}


@dataclass(frozen=True)
class Op:
    """Adds one to a view, if ``src`` is None, else something made of all of another view; on a lane."""

    lane: int
    dst: tuple[int, str]
    src: tuple[int, str] | None

    def touches(self) -> list[tuple[int, set[int], bool]]:
        """(array, bytes, whether it writes)."""
        found = [(self.dst[0], BYTES[self.dst[1]], True)]
        return found + ([] if self.src is None else [(self.src[0], BYTES[self.src[1]], False)])


@dataclass(frozen=True)
class Wait:
    """A lane waits for all that another one has done so far."""

    lane: int
    other: int


@dataclass
class Told:
    """What a program means: the nodes, with those that come before each."""

    ops: list[Op] = field(default_factory=list)
    before: list[frozenset[int]] = field(default_factory=list)

    def races(self) -> set[tuple[int, int]]:
        return {
            (a, b)
            for a, b in itertools.combinations(range(len(self.ops)), 2)
            if a not in self.before[b] and conflict(self.ops[a], self.ops[b])
        }


def conflict(one: Op, other: Op) -> bool:
    return any(
        a == b and near & far and (writes or also)
        for a, near, writes in one.touches()
        for b, far, also in other.touches()
    )


LANES, ARRAYS = 3, 2
lanes = st.integers(0, LANES - 1)
views = st.tuples(st.integers(0, ARRAYS - 1), st.sampled_from(sorted(VIEWS)))
ops = st.builds(Op, lanes, views, st.none() | views)
waits = st.tuples(lanes, lanes).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: Wait(*pair))
programs = st.lists(st.one_of(ops, ops, waits), min_size=2, max_size=14)


def told(program: list[Op | Wait]) -> Told:
    found, done = Told(), [frozenset[int]() for _ in range(LANES)]
    for step in program:
        if isinstance(step, Wait):
            done[step.lane] |= done[step.other]
        else:
            found.before.append(done[step.lane])
            done[step.lane] |= {len(found.ops)}
            found.ops.append(step)
    return found


def do(cp: Any, arrays: list[Any], op: Op) -> None:
    """One kernel."""
    view = arrays[op.dst[0]][VIEWS[op.dst[1]]]
    if op.src is None:
        cp.add(view, 1, out=view)
    else:
        source = arrays[op.src[0]][VIEWS[op.src[1]]]
        cp.ElementwiseKernel('raw T x', 'T y', 'y += x[0]', 'takes_all_of')(source, view)


@body('takes_all_of')
def _takes(x: Any, y: Any) -> None:
    y += x.sum()


def record(cp: Any, arrays: list[Any], program: list[Op | Wait]) -> ck.Graph:
    with ck.capture(check_races=False) as cap:
        streams = [cap.stream, *(cp.cuda.Stream(non_blocking=True) for _ in range(LANES - 1))]
        for side in streams[1:]:
            side.wait_event(cap.stream.record())
        for step in program:
            if isinstance(step, Wait):
                streams[step.lane].wait_event(streams[step.other].record())
            else:
                with streams[step.lane]:
                    do(cp, arrays, step)
        for side in streams[1:]:
            cap.join(side)
    return cap.graph


def plain(node: Node) -> str:
    """A kernel's name without the dtypes that CuPy puts behind it."""
    return node.name.partition('__')[0]


def pairs(races: Any) -> set[tuple[int, int]]:
    return {race.missing for race in races}


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs)
def test_what_is_found_is_a_race_and_none_is_missed(cp: Any, program: list[Op | Wait]) -> None:
    arrays = [cp.zeros(N, cp.float32) for _ in range(ARRAYS)]
    wanted = told(program)
    graph = record(cp, arrays, program)
    found = graph.races()
    assert pairs(found) <= wanted.races()
    # of a raw argument CuPy's kernels may use any part
    assert all(race.certain or 'takes_all_of' in (race.first.name, race.second.name) for race in found)
    assert bool(found) is bool(wanted.races())
    graph.close()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs)
def test_with_the_edges_that_are_named_nothing_is_left(cp: Any, program: list[Op | Wait]) -> None:
    arrays = [cp.zeros(N, cp.float32) for _ in range(ARRAYS)]
    for _ in range(len(program) ** 2):
        graph = record(cp, arrays, program)
        found = graph.races()
        graph.close()
        if not found:
            break
        first, second = found[0].missing
        places = [n for n, step in enumerate(program) if isinstance(step, Op)]
        wait = Wait(program[places[second]].lane, program[places[first]].lane)
        # directly behind the first node it would order more than is asked; directly before the second is what is said
        program = [*program[: places[second]], wait, *program[places[second] :]]
    assert not told(program).races()


# -- what a finding says --------------------------------------------------------------------------------------


def two_lanes(cp: Any, left: Any, right: Any, check_races: bool | None = False, **options: Any) -> ck.Graph:
    with ck.capture(check_races=check_races, **options) as cap, cap.fork(2) as (a, b):
        with a:
            left()
        with b:
            right()
    return cap.graph


def test_a_finding_names_both_lines_the_array_and_the_edge(cp: Any) -> None:
    x = cp.arange(8, dtype=cp.float32)
    y = cp.zeros(8, cp.float32)
    graph = two_lanes(cp, lambda: cp.multiply(x, 2, out=x), lambda: cp.add(x, 1, out=y))
    (race,) = graph.races()
    assert (plain(race.first), plain(race.second)) == ('cupy_multiply', 'cupy_add')
    assert (race.first.lane, race.second.lane, race.missing) == (1, 2, (0, 1))
    assert (race.memory, race.address, race.nbytes) == ('x', x.data.ptr, 32)
    assert race.writes == (True, False)
    text = str(race)
    assert text.count('test_races.py:') == 4
    assert '`lane2.wait_event(lane1.record())`' in text


def test_disjoint_views_are_no_race_and_overlapping_ones_are(cp: Any) -> None:
    x = cp.zeros(64)
    even, odd, low, high = x[::2], x[1::2], x[:40], x[24:]
    assert not two_lanes(cp, lambda: cp.add(even, 1, out=even), lambda: cp.add(odd, 1, out=odd)).races()
    assert not two_lanes(cp, lambda: x + 1, lambda: x * 2, strict=False).races()
    (race,) = two_lanes(cp, lambda: cp.add(low, 1, out=low), lambda: cp.add(high, 1, out=high), strict=False).races()
    assert (race.address - x.data.ptr, race.nbytes) == (24 * 8, 16 * 8)


def test_copies_and_memsets_take_part(cp: Any) -> None:
    x, y = cp.zeros(64), cp.zeros(64)
    graph = two_lanes(cp, lambda: x.data.memset_async(0, 512), lambda: y.data.copy_from_device_async(x.data, 512))
    (race,) = graph.races()
    assert {race.first.kind, race.second.kind} == {'memset', 'memcpy'}


def test_without_lines_a_finding_says_how_to_see_them(cp: Any) -> None:
    x = cp.zeros(64)
    (race,) = two_lanes(cp, lambda: cp.add(x, 1, out=x), lambda: cp.add(x, 2, out=x), lines=False).races()
    assert race.remedy == 'Put an edge from node 0 to node 1. Record with `lines=True` to see their lanes and lines.'


def test_many_pairs_of_two_lines_are_one_finding(cp: Any) -> None:
    x = cp.zeros(64)

    def work() -> None:
        for _ in range(5):
            cp.add(x, 1, out=x)

    (race,) = two_lanes(cp, work, work).races()
    assert race.count > 1
    assert f'({race.count} pairs)' in str(race)


WRITES_FIRST = """
extern "C" __global__ void writes_first(double* x, const double* y) { x[threadIdx.x] = y[threadIdx.x] + 1; }
"""


@body('writes_first')
def _writes_first(grid: Any, block: Any, args: Any) -> None:
    args[0][...] = args[1] + 1


def test_a_user_kernel_is_a_possible_race_until_observed(cp: Any) -> None:
    kernel = cp.RawKernel(WRITES_FIRST, 'writes_first')
    x, y, z = cp.arange(8.0), cp.arange(8.0), cp.arange(8.0)
    graph = two_lanes(cp, lambda: kernel((1,), (8,), (x, y)), lambda: cp.multiply(y, x, out=z))
    found = graph.races()
    assert len(found) == 1 and not found.certain
    before = [cp.asnumpy(one) for one in (x, y, z)]
    (race,) = graph.races(observe=True)
    assert race.certain and race.memory == 'x' and race.writes == (True, False)
    np.testing.assert_array_equal([cp.asnumpy(one) for one in (x, y, z)], before)
    assert graph.launches == 0


HALF = """
extern "C" __global__ void from_the(double* x, int first) { x[first + threadIdx.x] += 1; }
"""


@body('from_the')
def _from_the(grid: Any, block: Any, args: Any) -> None:
    x, first = args
    x[int(first) : int(first) + block[0]] += 1


def test_two_kernels_on_halves_of_an_array_do_not_surely_race(cp: Any) -> None:
    kernel, x = cp.RawKernel(HALF, 'from_the'), cp.arange(8.0)
    graph = two_lanes(cp, lambda: kernel((1,), (4,), (x, 0)), lambda: kernel((1,), (4,), (x, 4)))
    assert not graph.races().certain
    (race,) = graph.races(observe=True)
    assert race.writes == (True, True) and not race.certain
    same = two_lanes(cp, lambda: kernel((1,), (4,), (x, 4)), lambda: kernel((1,), (4,), (x, 4)))
    assert not same.races().certain
    assert len(same.races(observe=True).certain) == 1
    np.testing.assert_array_equal(cp.asnumpy(x), np.arange(8.0))


def test_what_stayed_the_same_is_said_to_be_taken_for_an_input(cp: Any) -> None:
    kernel = cp.RawKernel(WRITES_FIRST, 'writes_first')
    x, y, z = cp.arange(8.0), cp.arange(8.0), cp.arange(8.0)
    graph = two_lanes(cp, lambda: kernel((1,), (8,), (x, y)), lambda: kernel((1,), (8,), (z, y)))
    assert len(graph.races()) == 1
    found = graph.races(observe=True)
    assert not found
    assert any('taken as only read' in note and 'writes_first' in note for note in found.notes)
    assert 'argument 1' in str(found)


def test_what_is_put_back_lies_in_one_allocation_each(cp: Any) -> None:
    """Blocks of one size lie behind each other: CUDA copies from and to one allocation alone."""
    kernel = cp.RawKernel(WRITES_FIRST, 'writes_first')
    x, y, z = cp.arange(64.0), cp.arange(64.0), cp.arange(64.0)
    graph = two_lanes(cp, lambda: kernel((1,), (64,), (x, y)), lambda: kernel((1,), (64,), (y, z)))
    (race,) = graph.races(observe=True)
    assert race.memory == 'y' and race.writes == (False, True)
    for one in (x, y, z):
        np.testing.assert_array_equal(cp.asnumpy(one), np.arange(64.0))


def test_a_node_that_is_disabled_touches_nothing_and_stays_so(cp: Any) -> None:
    kernel = cp.RawKernel(WRITES_FIRST, 'writes_first')
    x, y, z = cp.arange(8.0), cp.arange(8.0), cp.zeros(8)
    graph = two_lanes(cp, lambda: kernel((1,), (8,), (x, y)), lambda: cp.multiply(x, 2, out=z))
    assert graph.races()
    graph.disable(0)
    assert not graph.races() and not graph.races(observe=True)
    assert not graph.enabled(0)
    graph.launch()
    np.testing.assert_array_equal(cp.asnumpy(x), np.arange(8.0))
    graph.enable(0)
    assert graph.races(observe=True).certain


def test_the_order_that_gives_a_different_result_is_told(cp: Any) -> None:
    x, y = cp.arange(8.0), cp.zeros(8)
    with ck.capture(check_races=False) as cap:
        cp.add(x, 1, out=x)
        with cap.fork(2) as (a, b):
            with a:
                cp.multiply(x, 2, out=x)
            with b:
                cp.add(x, 1, out=y)
    (race,) = cap.graph.races(observe=True)
    assert race.missing == (1, 2)
    assert cp.asnumpy(x).tolist() == list(range(8))
    if not hasattr(cp, '__capturekit_simulated__'):  # orders are only run there
        assert race.order == () and race.outcome == ''
        return
    assert race.order == (0, 2, 1)
    assert race.outcome == 'y differs'
    assert 'in the order 0, 2, 1: y differs' in str(race)


def test_a_race_without_a_difference_has_no_order(cp: Any) -> None:
    x = cp.zeros(8)
    graph = two_lanes(cp, lambda: cp.add(x, 1, out=x), lambda: cp.add(x, 2, out=x))
    (race,) = graph.races(observe=True)
    assert race.certain and race.order == () and race.outcome == ''


def test_conditional_bodies_are_searched_and_ordered(cp: Any) -> None:
    x, y, going = cp.zeros(8), cp.zeros(8), cp.ones((), bool)
    with pytest.raises(ck.RaceError) as info, ck.capture(check_races=True) as cap:
        cp.add(x, 1, out=x)
        with cap.if_(going), cap.fork(2) as (a, b):
            with a:
                cp.add(x, 1, out=x)
            with b:
                cp.add(x, 1, out=y)
        cp.add(x, 1, out=x)
    (race,) = info.value.races
    assert (plain(race.first), plain(race.second)) == ('cupy_add', 'cupy_add')
    assert race.first.number == 1 or race.missing[1] - race.missing[0] == 1


def test_a_child_graph_touches_what_its_nodes_do(cp: Any) -> None:
    x, y = cp.zeros(8), cp.zeros(8)
    with ck.capture() as inner:
        cp.add(x, 1, out=x)
    with ck.capture(check_races=False) as cap, cap.fork(2) as (a, b):
        with a:
            cap.embed(inner.graph)
        with b:
            cp.add(x, 1, out=y)
    (race,) = cap.graph.races()
    assert {race.first.kind, race.second.kind} == {'graph', 'kernel'}
    assert race.memory == 'x'


def test_host_functions_are_said_not_to_be_looked_into(cp: Any) -> None:
    x = cp.zeros(8)
    with ck.capture() as cap:
        cap.stream.launch_host_func(lambda _arg: None, None)
        cp.add(x, 1, out=x)
    found = cap.graph.races(observe=True)
    assert [node.kind for node in found.unknown] == ['host']
    assert 'not examined, 1 node:' in str(found)
    assert any('nothing was run' in note for note in found.notes)


# -- at the end of a block ------------------------------------------------------------------------------------


@pytest.mark.parametrize('options', [{}, {'strict': False}, {'check_races': True}])
def test_a_race_is_an_error_at_the_end(cp: Any, options: dict[str, Any]) -> None:
    x, y = cp.arange(8.0), cp.zeros(8)
    with pytest.raises(ck.RaceError) as info:
        two_lanes(cp, lambda: cp.multiply(x, 2, out=x), lambda: cp.add(x, 1, out=y), **{'check_races': None, **options})
    error = info.value
    assert len(error.races.certain) == 1
    assert error.location is not None and error.location.line
    assert str(error).startswith('x is accessed in no fixed order')
    assert error.recording.outcome == 'failed'
    # everything is as before, and the repaired program is recorded
    with ck.capture(**options) as cap:
        cp.multiply(x, 2, out=x)
        cp.add(x, 1, out=y)
    cap.graph.launch()
    assert cp.asnumpy(y).tolist() == [2 * n + 1 for n in range(8)]


def test_unreadable_nodes_are_an_error_only_for_those_who_ask(cp: Any, monkeypatch: Any) -> None:
    x = cp.zeros(8)

    def refuse(*_args: Any) -> Any:
        raise CudaCallError(Code.cudaErrorNotSupported, 'reading a graph')

    monkeypatch.setattr(type(current().device), 'graph_accesses', refuse)
    with pytest.raises(CudaCallError):
        two_lanes(cp, lambda: cp.add(x, 1, out=x), lambda: cp.add(x, 1, out=x), True)
    graph = two_lanes(cp, lambda: cp.add(x, 1, out=x), lambda: cp.add(x, 1, out=x), None)
    assert any('races were not looked for' in step.text for step in graph.recording.notes)
    graph.launch()


def test_what_is_only_possible_is_noted(cp: Any) -> None:
    kernel, x, y, z = cp.RawKernel(WRITES_FIRST, 'writes_first'), cp.zeros(8), cp.zeros(8), cp.zeros(8)
    graph = two_lanes(cp, lambda: kernel((1,), (8,), (x, z)), lambda: cp.add(x, 1, out=y), check_races=True)
    assert any('possible race' in step.text for step in graph.recording.notes)


def test_the_own_exception_of_the_block_comes_first(cp: Any) -> None:
    x = cp.zeros(8)
    with pytest.raises(KeyError), ck.capture(check_races=True) as cap, cap.fork(2) as (a, b):
        with a:
            cp.add(x, 1, out=x)
        with b:
            cp.add(x, 1, out=x)
        raise KeyError


def test_bad_arguments_are_told_at_the_call(cp: Any) -> None:
    with pytest.raises(TypeError, match='check_races'):
        ck.capture(check_races='yes')
    graph = two_lanes(cp, lambda: cp.zeros(8) + 1, lambda: None)
    with pytest.raises(TypeError, match='observe'):
        graph.races(observe=1)
    with pytest.raises(ck.UnmatchedError, match='observe'), ck.capture() as cap:
        cp.add(graph is None, cp.zeros(3))
        graph.races(observe=True)
    assert cap is not None
    graph.close()
    with pytest.raises(ck.ClosedError):
        graph.races()


def test_memory_that_was_handed_out_again_on_another_lane_counts(cp: Any) -> None:
    """Begun by hand, CuPy's pool knows of streams only: a block that another lane still reads is given away."""
    pool = cp.cuda.MemoryPool()
    with ck.capture(pool=pool, check_races=False) as cap:
        side = cp.cuda.Stream(non_blocking=True)
        block = pool.malloc(512)
        first = cp.ndarray((64,), cp.float64, block)
        cp.add(first, 1, out=first)
        side.wait_event(cap.stream.record())
        with side:
            kept = first * 2
        second = cp.ndarray((64,), cp.float64, block)  # as a pool does when Python has dropped `first`
        cp.multiply(second, 3, out=second)
        cap.join(side)
    assert [race.certain for race in cap.graph.races()] == [True]
    assert kept is not None


def test_addresses_in_one_structure_are_told_apart() -> None:
    """A library's kernel has all its matrices in one argument: A, which both read, and C, which each writes."""
    base = 0x7F0000000000
    touched = {
        handle: Touched((
            Access(base, (), (), 0, None, False, 0, 0),
            Access(base + (handle << 12), (), (), 0, None, False, 0, 16),
        ))
        for handle in (1, 2)
    }  # fmt: skip
    device = SimpleNamespace(
        graph_nodes=lambda _g: [1, 2], graph_accesses=lambda *_: touched, graph_edges=lambda _g: []
    )
    look: Any = SimpleNamespace(nodes=[Node(n, 'kernel', 'gemm') for n in (0, 1)], numbers={1: 0, 2: 1}, bodies={})
    blocks: Any = SimpleNamespace(end=lambda at: (at | 4095) + 1, words=lambda at, _n: hex(at))
    (race,) = Search(device, [Part(7)], look, blocks).report
    assert not race.certain
    seen = Observed({('gemm', 0, 0): False, ('gemm', 0, 16): True}, {(0, 0, 16): base + 4096})
    assert not Search(device, [Part(7)], look, blocks, seen).report

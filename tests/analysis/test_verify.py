"""``graph.verify()``: what was baked in shows, with its line; a good graph passes; everything is as before."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.analysis import verify
from capturekit.model.source_line import Place

N = 64


@pytest.fixture
def x(sim: Any) -> Any:
    return sim.linspace(1.0, 3.0, N)


def lines(mismatch: verify.Mismatch) -> list[str]:
    """The source lines of the suspects, in order."""
    return [str(suspect).partition(': `')[2].rstrip('`') for suspect in mismatch.suspects]


# -- good graphs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize('sim', range(5), indirect=True)
def test_a_good_graph_passes_and_nothing_has_changed(sim: Any, x: Any) -> None:
    w = sim.arange(N)

    def fn(x: Any, w: Any) -> Any:
        return x * 2 + w, sim.sin(x)

    with ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                a = x * 2 + w
            with right:
                b = sim.sin(x)
    before = [x.get(), w.get(), a.get(), b.get()]
    bytes_before = cap.graph.memory_bytes
    report = cap.graph.verify(fn, x, w, outputs=(a, b))
    assert report.ok and str(report) == '4 rounds compared, of output[0], output[1], x, w: as the eager runs'
    assert (report.rounds, report.mismatches, report.stopped, report.unchanged) == (4, [], [], [])
    assert all(np.array_equal(one.get(), was, equal_nan=True) for one, was in zip((x, w, a, b), before))
    assert cap.graph.memory_bytes == bytes_before
    assert cap.graph.launches == 8
    cap.graph.launch()
    assert sim.allclose(a, x * 2 + w)
    twice = cap.graph.verify(lambda x, w: (fn(x, w)[0], *fn(x, w)), x, w, outputs=(a, a, b))
    assert twice.ok and len(twice.outputs) == 5


def test_arguments_changed_in_place(sim: Any, x: Any) -> None:
    """A result that is an argument needs no output."""
    total = sim.zeros(())

    def fn(x: Any, state: dict[str, Any]) -> Any:
        state['total'] += x.sum()
        return sim.multiply(x, 2, x)

    with ck.capture() as cap:
        fn(x, {'total': total})
    before = x.get()
    report = cap.graph.verify(fn, x, {'total': total})
    assert report.ok and report.outputs == ['x', "state['total']"]
    assert np.array_equal(x.get(), before) and float(total) == 0


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64', 'complex64', 'int8', 'uint16', 'int64', 'bool'])
@pytest.mark.parametrize('order', ['C', 'F'])
def test_every_dtype_and_layout(sim: Any, dtype: str, order: str) -> None:
    x = sim.array(np.asarray(np.arange(24).reshape(4, 6) % 5, dtype, order=order))  # type: ignore[call-overload]
    view = x[1:, ::2]
    with ck.capture() as cap:
        y = view + view
    before = x.get()
    report = cap.graph.verify(lambda a: a + a, view, outputs=y)
    assert report.ok and not report.unchanged, str(report)
    assert np.array_equal(x.get(), before)


def test_random_numbers_of_the_host_are_the_same_for_both(sim: Any, x: Any) -> None:
    def fn(x: Any) -> Any:
        return x + sim.random.rand(N)

    fn(x)
    with ck.capture() as cap:
        y = fn(x)
    report = cap.graph.verify(fn, x, outputs=y)
    assert report.ok, str(report)


# -- what is baked in -----------------------------------------------------------------------------------------


def test_a_scalar_computed_from_data_before_the_capture(x: Any) -> None:
    scale = float(x.max())
    with ck.capture() as cap:
        y = x * 0 + scale

    report = cap.graph.verify(lambda x: x * 0 + float(x.max()), x, outputs=y)
    (found,) = report.mismatches
    assert not report.ok
    assert (found.kind, found.output) == ('constant', 'output')
    assert found.rounds and 0 not in found.rounds and 0 < found.largest < 2
    (suspect,) = found.suspects
    assert suspect.text == 'scale was 3.0 on the host' and lines(found) == ['y = x * 0 + scale']
    assert 'output stays the same although the inputs changed (round 1, 2, 3), by up to 0.' in str(report)
    assert 'test_verify.py:' in str(report)


def test_a_value_uploaded_while_recording(sim: Any, x: Any) -> None:
    mean = float(x.mean())

    def fn(x: Any) -> Any:
        return x - sim.array([mean])

    with ck.capture() as cap:
        y = fn(x)
    report = cap.graph.verify(lambda x: x - x.mean(), x, outputs=y)
    (found,) = report.mismatches
    assert found.kind == 'differs' and found.rounds == [1, 2, 3]
    assert found.suspects[0].kind == 'upload' and lines(found)[0] == 'return x - sim.array([mean])'
    assert cap.graph.verify(fn, x, outputs=y).ok, 'by itself the function uploads the same'


def test_an_accumulator_that_is_no_argument(sim: Any, x: Any) -> None:
    total = sim.zeros(N)

    def fn(x: Any) -> Any:
        sim.add(total, x, total)
        return total

    with ck.capture() as cap:
        fn(x)
    report = cap.graph.verify(fn, x, outputs=total)
    assert 'changes' in [found.kind for found in report.mismatches]
    assert 'output changes on the second launch, with the same inputs' in str(report)
    assert lines(report.mismatches[-1])[0] == 'sim.add(total, x, total)'
    assert float(total.sum()) == 0, 'put back, although it is no argument'


def test_a_graph_of_another_function_differs_at_once(x: Any) -> None:
    with ck.capture() as cap:
        outputs = {'good': x * 2, 'bad': x + 1}
    report = cap.graph.verify(lambda x: {'good': x * 2, 'bad': x + 2}, x, outputs=outputs)
    (found,) = report.mismatches
    assert (found.output, found.kind, found.rounds) == ("output['bad']", 'differs', [0, 1, 2, 3])
    assert found.largest == pytest.approx(1)


def test_memory_of_the_graph_that_is_read_before_it_is_written(sim: Any, x: Any) -> None:
    def fn(x: Any) -> Any:
        return sim.zeros(N) + x

    with ck.capture() as cap:
        rest = sim.ndarray((N,), 'd')
        y = rest * 0 + x
        del rest
    report = cap.graph.verify(fn, x, outputs=y)
    assert [(found.kind, found.largest) for found in report.mismatches] == [('differs', np.inf)]


def test_a_whole_number_that_was_read(sim: Any) -> None:
    x, n = sim.arange(float(N)), sim.array(3)
    count = int(n)
    with ck.capture() as cap:
        y = x[:count].sum()

    def fn(x: Any, n: Any) -> Any:
        return x[: int(n)].sum()

    report = cap.graph.verify(fn, x, n, outputs=y)
    assert report.ok and report.unchanged == ['n'], 'random values have no range here, and that is said'
    assert 'never changed: n' in str(report)
    report = cap.graph.verify(fn, x, n, outputs=y, values=[(np.arange(N), 5), (sim.arange(N) * 2, 7)])
    assert [found.kind for found in report.mismatches] == ['differs'] and report.mismatches[0].rounds == [1, 2]
    assert lines(report.mismatches[0]) == ['y = x[:count].sum()'] and not report.unchanged


# -- what is not compared -------------------------------------------------------------------------------------


def test_launches_that_checks_stop_are_told(x: Any) -> None:
    def fn(x: Any) -> Any:
        return x / x.max() if float(x.max()) > 1 else x

    rehearsal = ck.rehearse(fn, x)
    with ck.capture(rehearsal=rehearsal) as cap:
        y = fn(x)
    before = x.get()
    report = cap.graph.verify(fn, x, outputs=y)
    assert report.ok and report.rounds == 1 and len(report.stopped) == 3
    assert 'not compared: round 1: the check of the host read at test_verify.py:' in str(report)
    assert np.array_equal(x.get(), before)


def test_a_function_that_raises_on_other_inputs_is_told(x: Any) -> None:
    def fn(x: Any) -> Any:
        if float(x[0]) != 1:
            raise ValueError('not this one')
        return x + 1

    with ck.capture() as cap:
        y = x + 1
    report = cap.graph.verify(fn, x, outputs=y)
    assert report.ok and report.rounds == 1
    assert report.stopped[0] == "round 1: the eager run raised ValueError('not this one')"
    x += 1
    before = x.get()
    with pytest.raises(ValueError, match='not this one'):
        cap.graph.verify(fn, x, outputs=y)
    assert np.array_equal(x.get(), before)


def test_nothing_compared_is_not_good(x: Any) -> None:
    def fn(x: Any) -> Any:
        return x + 1 if float(x.max()) > 1 else x

    rehearsal = ck.rehearse(fn, x)
    with ck.capture(rehearsal=rehearsal) as cap:
        y = fn(x)
    x += 1
    report = cap.graph.verify(lambda x: x + 1, x, outputs=y)
    assert not report.ok and str(report).startswith('nothing was compared\nnot compared: round 0: the check')


# -- arguments ------------------------------------------------------------------------------------------------


def test_arguments_that_are_none(x: Any) -> None:
    with ck.capture() as cap:
        y = x + 1
    verify = cap.graph.verify
    fn = lambda x: x + 1  # noqa: E731
    with pytest.raises(ValueError, match='rounds must be 1 or more'):
        verify(fn, x, outputs=y, rounds=0)
    with pytest.raises(ValueError, match='returns 1 array: give outputs='):
        verify(fn, x)
    with pytest.raises(ValueError, match='returns 1 array: outputs has 2'):
        verify(fn, x, outputs=[y, y])
    with pytest.raises(ValueError, match=r'output is float64\(64,\), and the function returns float32\(64,\)'):
        verify(lambda x: (x + 1).astype('f'), x, outputs=y)
    with pytest.raises(ValueError, match='values must hold 1 array for each round, got 2'):
        verify(fn, x, outputs=y, values=[(1, 2)])
    with pytest.raises(ValueError, match=r'values for x must have shape \(64,\), got \(2,\)'):
        verify(fn, x, outputs=y, values=[([1, 2],)])
    with ck.capture(), pytest.raises(ck.UnmatchedError, match=r'Graph.verify\(\), at test_verify.py'):
        verify(fn, x, outputs=y)
    cap.graph.close()
    with pytest.raises(ck.ClosedError):
        verify(fn, x, outputs=y)


def test_a_graphed_functions_graph_is_launched_by_calls_alone(x: Any) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        return x + 1

    for _ in range(3):
        y = fn(x)
    graph = fn.variants[0].graph
    assert graph is not None
    with pytest.raises(ck.UnsupportedCallError):
        graph.verify(fn, x, outputs=y)
    fn.clear()


def test_reports_are_plain_data(x: Any) -> None:
    top = float(x.max())
    with ck.capture() as cap:
        y = x / top
    report = cap.graph.verify(lambda x: x / x.max(), x, outputs=y)
    data = json.loads(json.dumps(report.to_json()))
    assert (data['ok'], data['rounds'], data['outputs']) == (False, 4, ['output', 'x'])
    (found,) = data['mismatches']
    assert (found['kind'], found['output'], found['rounds']) == ('differs', 'output', [1, 2, 3])
    place = Place.from_json(found['suspects'][0]['at'])
    assert place is not None and place.file == __file__


# -- parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('values', 'low', 'high'),
    [([1.0, 4.0, 2.0], 1, 4), ([2.0, 2.0], 1, 3), ([-2.0, -2.0], -3, -1), ([0.0, 0.0], 0, 1), ([5, 9, 9], 5, 9)],
)
def test_other_values_lie_in_the_range(values: list[float], low: float, high: float) -> None:
    rng = np.random.default_rng(1)
    before = np.array(values * 100)
    after = verify.changed(before, rng)
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
    assert low <= after.min() and after.max() <= high and len(set(after.tolist())) > 1
    assert not np.array_equal(after, before)


def test_other_values_of_other_kinds() -> None:
    rng = np.random.default_rng(1)
    assert verify.changed(np.array([True, False]), rng).tolist() == [False, True]
    odd = verify.changed(np.array([np.nan, np.inf, 1.0, 2.0], 'f'), rng)
    assert np.isnan(odd[0]) and np.isinf(odd[1]) and np.all((odd[2:] >= 1) & (odd[2:] <= 2)) and odd.dtype == 'f'
    turned = verify.changed(np.array([1 + 5j, 2 + 9j]), rng)
    assert np.all((turned.real >= 1) & (turned.real <= 2) & (turned.imag >= 5) & (turned.imag <= 9))
    assert verify.changed(np.empty((0, 2), 'i'), rng).shape == (0, 2)
    top = np.array([0, 2**64 - 1], 'u8')
    assert verify.changed(top, rng).dtype == np.uint64


@pytest.mark.parametrize(
    ('got', 'want', 'said'),
    [
        ([1.0, 2.0], [1.0, 2.0], None),
        ([1.0, np.nan], [1.0, np.nan], None),
        ([1.0, np.inf], [1.0, np.inf], None),
        ([1.0, 2.0 + 1e-12], [1.0, 2.0], None),
        ([1.0, 2.5], [1.0, 2.0], 0.5),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([np.inf, 2.5], [np.inf, 2.0], 0.5),
        ([3, 4], [3, 7], 3.0),
        ([True, False], [True, True], 1.0),
        ([], [], None),
    ],
)
def test_differences(got: list[Any], want: list[Any], said: float | None) -> None:
    assert verify.difference(np.array(got), np.array(want), None, None) == said


def test_tolerances_are_the_callers() -> None:
    one, other = np.array([1.0]), np.array([1.1])
    assert verify.difference(one, other, 0.2, 0.0) is None
    assert verify.difference(one, other, 0.0, 0.2) is None
    assert verify.difference(one, other, 0.0, 0.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ('value', 'source', 'spelled'),
    [
        (2.0, 'y = x * 2', True),
        (-2.0, 'y = x * -2', True),
        (1e-3, 'y = x + 1e-3', True),
        (0.5, 'y = x * .5', True),
        (3.7, 'y = x * scale', False),
        (2.0, 'y = x2 * scale', False),
        (1j, 'y = x * 1j', False),
    ],
)
def test_numbers_that_a_line_spells_out(value: Any, source: str, spelled: bool) -> None:
    assert verify.spelled_out(value, source) is spelled


def test_names_that_a_line_reads() -> None:
    assert verify.names_in('    y = x.max() * scale + scale') == ['x', 'scale']
    assert verify.names_in('    with cap.fork(2) as (a, b):') == ['with', 'cap', 'as', 'a', 'b']


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    import cupy as cp

    x = cp.linspace(1, 3, 1 << 16)
    top = float(x.max())
    gone = [cp.ones(x.shape)]
    with ck.capture() as cap:
        good = cp.sin(x) * 2
        with cap.fork(2) as (left, right):
            with left:
                a = good + 1
            with right:
                b = good - 1
        product = a * b
    bytes_before, before = cap.graph.memory_bytes, x.get()

    def fn(x: Any) -> Any:
        good = cp.sin(x) * 2
        return (good + 1) * (good - 1)

    report = cap.graph.verify(fn, x, outputs=product)
    assert report.ok, str(report)
    assert cap.graph.memory_bytes == bytes_before and np.array_equal(x.get(), before)

    with ck.capture() as cap:
        bad = x / top
    report = cap.graph.verify(lambda x: x / x.max(), x, outputs=bad)
    (found,) = report.mismatches
    assert found.kind == 'differs' and found.rounds == [1, 2, 3]
    assert {'scalar', 'value'} <= {suspect.kind for suspect in found.suspects}, str(report)
    assert lines(found)[0] == 'bad = x / top'

    with ck.capture(strict=False) as cap:
        y = x + gone.pop()  # nobody but the graph has it any more
    assert cap.graph.verify(lambda x: x + 1, x, outputs=y).ok

    total = cp.zeros(())
    with ck.capture() as cap:
        cp.add(total, x.sum(), total)
    report = cap.graph.verify(lambda x: total + x.sum(), x, outputs=total)
    assert 'changes' in [found.kind for found in report.mismatches], str(report)
    assert float(total) == 0

"""Integers that ``choice`` draws without replacement, whose order CuPy's host makes of a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


def eager(cp: Any, size: Any, times: int) -> list[Any]:
    """What so many calls give after a seed, and two numbers that are drawn then."""
    cp.random.seed(3)
    return [cp.random.choice(50, size, replace=False).get() for _ in range(times)] + [cp.random.rand(2).get()]


def same(found: list[Any], wanted: list[Any]) -> bool:
    return all(
        np.array_equal(one, other) and one.dtype == other.dtype for one, other in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize('size', [6, (2, 3), [3], 0, (), 50])
def test_each_launch_draws_as_eager_code_does(cp: Any, size: Any) -> None:
    """Here twice."""
    wanted = eager(cp, size, 6)
    cp.random.seed(3)
    with ck.capture() as cap:
        drawn = [cp.random.choice(50, size, replace=False) for _ in range(2)]
    found = []
    for _ in range(3):
        cap.graph.launch()
        found += [y.get() for y in drawn]
    assert same([*found, cp.random.rand(2).get()], wanted)
    assert any('integers are drawn by the host at every launch' in step.text for step in cap.recording.steps)


def test_a_graphed_function_draws_as_eager_code_does(cp: Any) -> None:
    wanted = eager(cp, 6, 4)
    cp.random.seed(3)
    fn = ck.graphed(lambda x: cp.random.choice(50, 6, replace=False) * x)
    found = [fn(cp.ones(1, int)).get() for _ in range(4)]
    assert same([*found, cp.random.rand(2).get()], wanted)
    assert fn.variants[0].launches == 3


def test_a_launch_that_fails_a_check_draws_once(cp: Any) -> None:
    wanted = eager(cp, 6, 4)
    cp.random.seed(3)

    @ck.graphed
    def step(x: Any) -> Any:
        order = cp.random.choice(50, 6, replace=False)
        return order + (1 if float(x[0]) > 2 else 0)

    given = [cp.full(1, 1.0), cp.full(1, 1.0), cp.full(1, 3.0), cp.full(1, 1.0)]
    found = [step(x).get() for x in given]
    found[2] -= 1
    assert same([*found, cp.random.rand(2).get()], wanted)


@pytest.mark.parametrize(
    'bad, error',
    [((-1, 2), ValueError), ((3, 4), ValueError), ((5, None), NotImplementedError), ((5, 2.5), TypeError)],
)
def test_bad_arguments_raise_and_the_capture_goes_on(cp: Any, bad: tuple[Any, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        cp.random.choice(*bad, replace=False)
    x = cp.arange(4.0)
    with ck.capture() as cap:
        with pytest.raises(error):
            cp.random.choice(*bad, replace=False)
        y = x * 2
    cap.graph.launch()
    assert y.get().tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_draw_in_a_branch_is_refused_and_the_capture_goes_on(cp: Any) -> None:
    x, going = cp.zeros(4), cp.ones((), bool)
    with ck.capture() as cap, cap.if_(going):
        with pytest.raises(ck.UnsupportedCallError, match='before the decision'):
            cp.random.choice(4, 4, replace=False)
        x += 1
    cap.graph.launch()
    assert x.get().tolist() == [1.0] * 4


def test_the_generator_that_cupy_makes_in_a_block_is_seeded_once(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp.random._generator, '_random_states', {})
    with ck.capture() as cap:
        y = cp.random.rand(2) + 0
    cp.random.seed(3)
    cap.graph.launch()
    found = [y.get()]
    cap.graph.launch()
    found.append(y.get())
    cp.random.seed(3)
    assert np.array_equal(found, [cp.random.rand(2).get() for _ in range(2)])

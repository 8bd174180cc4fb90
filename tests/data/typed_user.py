"""A user's code, for a type checker: what an editor knows of it. It is never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import capturekit as ck
from capturekit.model.recording import Recording
from capturekit.recorder.conditional import Branch, Loop
from capturekit.recorder.forks import LaneScope


class Array:
    """Stands for CuPy's."""


@ck.graphed
def step(x: Array, rate: float = 0.1) -> Array:
    return x


@ck.graphed(checks='later', limit=4)
def later(x: Array) -> tuple[Array, Array]:
    return x, x


class Model:
    @ck.graphed
    def forward(self, x: Array, *, deep: bool = False) -> Array:
        return x


def functions(x: Array, model: Model) -> None:
    assert_type(step(x), Array)
    assert_type(step(x, rate=0.5), Array)
    assert_type(later(x), tuple[Array, Array])
    assert_type(model.forward(x, deep=True), Array)
    assert_type(Model.forward(model, x), Array)
    model.forward.clear()
    step.clear()
    plain: Callable[[Array], Array] = step
    plain(x)
    step('x')  # error: [arg-type]
    step(x, speed=1)  # error: [call-arg]
    model.forward(x, True)  # error: [call-arg]
    later(x).clear()  # error: [attr-defined]
    ck.graphed(checks='never')  # error: [call-overload]


def captures(going: Any, index: Any) -> None:
    with ck.capture(mode='thread_local') as cap:
        assert_type(cap, ck.Capture)
        with cap.while_(going, limit=10) as loop:
            assert_type(loop, Loop)
        with cap.if_(going) as body:
            assert_type(body, Branch)
        with cap.switch(index, 3) as cases, cases[0]:
            pass
        with cap.fork(2) as (left, right):
            assert_type(left, LaneScope)
        with right:
            pass
        assert_type(loop.passes, Any)
    assert_type(cap.graph, ck.Graph)
    assert_type(cap.recording, Recording)
    assert_type(cap.recording.node_count, int)
    assert_type(cap.graph.races()[0].missing, tuple[int, int])
    ck.capture(mode='lazy')  # error: [arg-type]
    cap.graph.measure(by='eye')  # error: [arg-type]


def lanes(f: Callable[[], Array]) -> None:
    ck.parallel(f, f, lanes=2, assign='blocks')
    ck.parallel(f, f, lanes=[2], assign=[0, 1])
    ck.parallel(f, f, assign='in turn')  # error: [arg-type]
    assert_type(ck.experiment([f, f], lanes=2), ck.Experiment)
    assert_type(ck.experiment([f, f], lanes=[1, 2]).ok, bool)

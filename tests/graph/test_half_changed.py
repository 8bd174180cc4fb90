"""CUDA refuses a call in the middle of a change: afterwards the graph is old or new as a whole, or it is closed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from tests.captured import flag, launched, recorded

N = 600
#: What CUDA may refuse, for want of memory say.
CALLS = (
    'graph_instantiate',
    'graph_rewire',
    'set_kernel',
    'node_take',
    'node_enable',
    'set_child',
)
#: At which of its calls in a change each is refused.
PLACES = (1, 2, 3, 4, 6, 8, 12, 16, 24)


class Subject:
    """A graph of four branches with temporaries, and what its launches have to give: as recorded, or as changed."""

    def __init__(self, cp: Any, **options: Any) -> None:
        self.cp, self.options, self.factor = cp, options, 2
        self.x = cp.arange(N, dtype='f8')
        self.graph, self.outs = self.record(self.x, 2)
        self.crowd: list[Any] = []
        self.other: Any = None

    def record(self, x: Any, factor: int) -> tuple[ck.Graph, list[Any]]:
        return recorded(lambda: [self.cp.sqrt(x * (n + 1)) * factor + n for n in range(4)], **self.options)

    def rebind(self) -> None:
        other = self.cp.empty_like(self.x)
        self.graph.rebind((self.x, other))
        self.x = other

    def update(self) -> None:
        graph, outs = self.other
        self.graph.update(graph, instantiate=True)
        self.outs, self.factor = outs, 3

    def switch(self) -> None:
        self.graph.disable(0)
        with contextlib.suppress(ck.UpdateError, KeyboardInterrupt):
            self.graph.enable(0)
        self.graph.enable(0)

    def right(self, start: int) -> bool:
        """Whether a launch gives what it has to, where memory that nobody holds is filled by others."""
        self.crowd.append([self.cp.full(n, np.nan) for n in (10, N, N, N, 4 * N)])
        self.x[...] = self.cp.arange(N) + start
        self.graph.launch()
        host = np.arange(N) + float(start)
        expected = [np.sqrt(host * (n + 1)) * self.factor + n for n in range(4)]
        return all(np.array_equal(self.cp.asnumpy(out), one) for out, one in zip(self.outs, expected))


CHANGES: dict[str, Callable[[Subject], Any]] = {
    'rebind': Subject.rebind,
    'update': Subject.update,
    'switch': Subject.switch,
    'relane': lambda one: one.graph.relane(),
    'relane timed': lambda one: one.graph.relane(rounds=1),
    'fuse': lambda one: one.graph.fuse(),
    'clone': lambda one: one.graph.clone().close(),
    'set': lambda one: one.graph.set_kernel(0, args={}),
    'races': lambda one: one.graph.races(),
}


@contextlib.contextmanager
def refused_at(name: str, number: int, error: Callable[[], BaseException]) -> Any:
    """Let a call of the device fail once; the list that is given says whether it was reached."""
    device, reached, count = current().device, [], [0]
    method = getattr(device, name)

    def fails(*args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == number:
            reached.append(name)
            raise error()
        return method(*args, **options)

    setattr(device, name, fails)
    try:
        yield reached
    finally:
        delattr(device, name)


def no_memory() -> CudaCallError:
    return CudaCallError(Code.cudaErrorMemoryAllocation, 'a call')


def tried(cp: Any, change: str, call: str, number: int, before: int, error: Callable[[], BaseException]) -> str:
    """What became of a graph whose change was refused at the n-th call: '' where there is no such call."""
    subject = Subject(cp, lanes='auto')
    if change == 'update':
        subject.other = subject.record(subject.x, 3)
    for n in range(before):
        assert subject.right(n)
    with (
        refused_at(call, number, error) as reached,
        contextlib.suppress(ck.UpdateError, CudaCallError, KeyboardInterrupt),
    ):
        CHANGES[change](subject)
    if not reached:
        return ''
    assert current().device.deaths == []
    try:
        if not (subject.right(5) and subject.right(6)):
            return 'wrong'
        CHANGES['rebind'](subject)
        CHANGES['relane'](subject)
        return 'whole' if subject.right(7) and subject.right(8) else 'wrong later'
    except ck.ClosedError as closed:
        assert 'a change that ended halfway' in str(closed)
        return 'closed'


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize(('before', 'error'), [(0, no_memory), (1, KeyboardInterrupt)])
def test_a_change_that_ends_halfway(sim: Any, change: str, before: int, error: Callable[[], BaseException]) -> None:
    """``before``: how many launches the graph has behind it."""
    found: dict[tuple[str, int], str] = {}
    for call in CALLS:
        for number in PLACES:
            became = tried(sim, change, call, number, before, error)
            if not became:
                break
            found[call, number] = became
    assert not {at: became for at, became in found.items() if became.startswith('wrong')}


def test_the_error_says_that_the_graph_is_closed(sim: Any) -> None:
    subject = Subject(sim, lanes='auto')
    with refused_at('graph_instantiate', 1, no_memory), pytest.raises(ck.UpdateError) as info:
        subject.rebind()
    assert 'CUDA refuses halfway (cudaErrorMemoryAllocation from a call). The graph is closed' in str(info.value)
    with pytest.raises(ck.ClosedError, match='a change that ended halfway'):
        subject.graph.launch()
    assert subject.graph.close() is None


def test_an_exception_that_ends_a_change_is_the_one_that_arrives(sim: Any) -> None:
    subject = Subject(sim, lanes='auto')
    with refused_at('graph_instantiate', 1, KeyboardInterrupt), pytest.raises(KeyboardInterrupt) as info:
        subject.rebind()
    assert 'the graph is closed' in info.value.__notes__[0]
    with pytest.raises(ck.ClosedError):
        subject.graph.launch()


def test_a_first_launch_that_fails_is_compared_the_next_time(sim: Any) -> None:
    """Nothing was shown by it, and the packed memory is still to be shown to be right."""
    subject = Subject(sim, lanes='auto')
    report = subject.graph.relane()
    with refused_at('graph_launch', 2, no_memory), pytest.raises(CudaCallError):
        subject.graph.launch()
    assert report.compared == 'not yet'
    assert subject.right(1) and subject.graph.relane().compared.startswith('the same')


def test_a_graph_with_decisions_whose_nodes_have_no_names(sim: Any) -> None:
    """CUDA makes one executable graph at a time of it, and its nodes are named by another one."""
    on, w, out = flag(sim), sim.ones(4), sim.zeros(4)

    def record() -> Any:
        with ck.capture() as cap, cap.if_(on):
            out[...] = w * 2
        return cap

    cap = record()
    cap.graph.update(record().graph)
    with pytest.raises(ck.UpdateError, match='needs another executable graph beside the present one'):
        cap.graph.rebind((on, flag(sim, False)))
    assert launched(cap, out) == [[2.0] * 4]

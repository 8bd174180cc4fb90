"""Long work shows where it is: on a terminal and in a notebook, with tqdm installed; in a pipe nothing."""

from __future__ import annotations

import io
import sys
import threading
import types
from typing import Any, ClassVar

import pytest

import capturekit as ck
from capturekit.model import progress
from capturekit.simulated import body


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Bar:
    """Stands for tqdm's class, and keeps what it was told."""

    made: ClassVar[list[Bar]] = []

    def __init__(self, **given: Any) -> None:
        self.given, self.done, self.closed = given, 0, False
        Bar.made.append(self)

    def update(self) -> None:
        self.done += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    module: Any = types.ModuleType('tqdm')
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, 'tqdm', module)
    monkeypatch.setattr(Bar, 'made', [])
    return Bar.made


@body('shown_writing')
def _shown_writing(grid: Any, block: Any, args: Any) -> None:
    args[0][...] = args[0] + 1


def long_work(cp: Any) -> dict[str, Any]:
    """Everything that takes long, by the words of its bar."""
    x = cp.arange(8.0)
    with ck.capture() as cap:
        y = cp.where(x > 2, x, 0)
    graph = cap.graph
    kernel = cp.RawKernel(
        'extern "C" __global__ void shown_writing(double* y) { y[threadIdx.x] += 1; }', 'shown_writing'
    )
    z = cp.ones(8)
    with ck.capture() as written, written.fork(2) as (left, right):
        with left:
            kernel((1,), (8,), (z,))
        with right:
            x * z
    return {
        'preparing ways, comparing rounds': lambda: ck.experiment([lambda: x + 1, lambda: x * 2], lanes=2, rounds=2),
        'measuring launches': lambda: graph.measure(launches=4),
        'verifying': lambda: graph.verify(lambda x: cp.where(x > 2, x, 0), x, outputs=y),
        'observing kernels': lambda: written.graph.races(observe=True),
    }


@pytest.mark.parametrize(
    'what', ['preparing ways, comparing rounds', 'measuring launches', 'verifying', 'observing kernels']
)
def test_shown_on_a_terminal_and_not_in_a_pipe(
    sim: Any, bars: list[Bar], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    work = long_work(sim)[what]
    work()
    assert bars == []
    made = Terminal()
    monkeypatch.setattr(progress, 'sys', types.SimpleNamespace(stderr=made, modules=sys.modules))
    work()
    shown = list(bars)
    assert {bar.given['desc'] for bar in shown} >= {f'capturekit: {words}' for words in what.split(', ')}
    assert all(bar.closed and bar.done == bar.given['total'] for bar in shown)
    assert all(bar.monitor_interval == 0 for bar in shown)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, 'tqdm', None)
    work()
    assert made.getvalue() == '', 'without tqdm nothing is shown'
    monkeypatch.setitem(sys.modules, 'tqdm', types.SimpleNamespace(tqdm=Bar))
    with pytest.raises(LookupError), progress.progress('words', 3) as step:
        step()
        raise LookupError
    assert bars[-1].closed and bars[-1].done == 1


def test_a_notebook_shows_it(bars: list[Bar], monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(kernel=object())
    notebook: Any = types.ModuleType('IPython')
    notebook.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, 'IPython', notebook)
    monkeypatch.setitem(sys.modules, 'ipywidgets', None)
    assert list(progress.each('words', [1, 2])) == [1, 2]
    assert [bar.done for bar in bars] == [2]  # as text
    monkeypatch.setitem(sys.modules, 'ipywidgets', types.ModuleType('ipywidgets'))
    widgets: Any = types.ModuleType('tqdm.notebook')
    widgets.tqdm = type('Widget', (Bar,), {})
    monkeypatch.setitem(sys.modules, 'tqdm.notebook', widgets)
    assert list(progress.each('words', [1, 2])) == [1, 2]
    assert isinstance(bars[1], widgets.tqdm)


def test_tqdm_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('tqdm')
    terminal = Terminal()
    monkeypatch.setattr(sys, 'stderr', terminal)
    monkeypatch.setattr(progress, 'DELAY', 0)
    threads = threading.active_count()
    with progress.progress('words', 3) as step:
        step()
        progress.say('above')
        assert threading.active_count() == threads
    assert 'capturekit: words:' in terminal.getvalue() and 'above\n' in terminal.getvalue()

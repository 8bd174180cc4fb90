"""Graphed functions that handle what a factorization raises, under each setting of ``cupyx.errstate(linalg=...)``."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import capturekit as ck


def setting(how: str) -> Any:
    import cupyx

    return cupyx.errstate(linalg=how)


@pytest.mark.parametrize('how', ['ignore', 'raise'])
def test_state_is_changed_once_if_a_call_raises(cp: Any, how: str) -> None:
    class Count:
        calls = 0
        total = cp.zeros(3)

    def counting(a: Any) -> Any:
        Count.calls += 1
        Count.total += 1
        return cp.linalg.solve(a, cp.ones(3))

    step = ck.graphed(counting)
    for number, factor in enumerate((4, 4, 4, 0, 4, 0, 0, 4), 1):
        with setting(how):
            if how == 'raise' and not factor:
                with pytest.raises(np.linalg.LinAlgError, match='devInfo'):
                    step(cp.eye(3) * factor)
            else:
                assert np.isfinite(step(cp.eye(3) * factor).get()).all() == bool(factor)
        assert Count.calls == number and Count.total.get().tolist() == [number] * 3


def test_each_thread_has_its_own_setting(sim: Any) -> None:
    import cupyx

    found = []
    with cupyx.errstate(linalg='raise'):
        thread = threading.Thread(target=lambda: found.append(cupyx.geterr()['linalg']))
        thread.start()
        thread.join()
        assert cupyx.geterr() == {**dict.fromkeys(('divide', 'over', 'under', 'invalid')), 'linalg': 'raise'}
    assert found == ['ignore'] and cupyx.geterr()['linalg'] == 'ignore'
    for given in ({'linalg': 'warn'}, {'divide': 'raise'}):
        with pytest.raises(NotImplementedError):
            cupyx.seterr(**given)
    assert cupyx.seterr(linalg='raise')['linalg'] == 'ignore' and cupyx.seterr(linalg='ignore')['linalg'] == 'raise'


def test_memory_that_another_thread_may_fill_is_left_with_a_word(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the function changes and puts back, and what the thread put there, can't be told apart."""
    held, host, ends = np.ones(2), np.ones(4), threading.Event()

    def counting(v: Any) -> Any:
        held[0] += 1
        then = float(held[0])
        v.set(host)
        held[0] -= 1
        return v * then

    step = ck.graphed(counting)
    other = threading.Thread(target=ends.wait)
    other.start()
    with pytest.warns(RuntimeWarning, match='holds other numbers than before. Another thread runs') as told:
        assert step(sim.ones(4)).tolist() == [2.0] * 4
        step(sim.ones(4))
    assert [(one.filename, one.lineno) for one in told] == [(__file__, sys._getframe().f_lineno - 1)]
    assert held[0] == 2.0  # the thread's, as far as anyone knows
    ends.set()
    other.join()
    held[0] = 1.0
    monkeypatch.setattr(sys, '_current_frames', lambda: {1: None})  # some runners of tests have a thread of their own
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert [step(sim.ones(4)).tolist() for _ in range(6)] == [[2.0] * 4] * 6

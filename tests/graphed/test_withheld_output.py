"""What a recording writes to files shows values of an earlier call, so nobody sees it; the eager run writes its own."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD

ONES = np.ones(2)
LOGGER = logging.getLogger('tests.withheld_output')


SAYS: dict[str, Callable[[Any], object]] = {
    'prints': lambda y: print('sum is', y),
    'writes': lambda y: sys.stdout.write(f'sum is {y}\n'),
    'by a bound method': lambda y: (lambda write: write(f'sum is {float(y)}\n'))(sys.stdout.write),
    'logs': lambda y: LOGGER.warning('sum is %s', float(y)),
    'in two texts': lambda y: (print('sum', end=' ', flush=True), print('is', float(y), sep=' ')),
}


@pytest.fixture
def out(tmp_path: Path) -> Any:
    return standing_in(tmp_path)


@contextlib.contextmanager
def standing_in(path: Path) -> Iterator[Any]:
    """A file that is the standard output, the standard file for errors, and where the logger writes to."""
    before, handler = (sys.stdout, sys.stderr, LOGGER.propagate), logging.StreamHandler()
    with open(path / 'out.txt', 'w', encoding='utf-8') as file:
        sys.stdout = sys.stderr = handler.stream = file
        LOGGER.addHandler(handler)
        LOGGER.propagate = False
        try:
            yield file
        finally:
            LOGGER.removeHandler(handler)
            sys.stdout, sys.stderr, LOGGER.propagate = before


def said(file: Any) -> list[str]:
    file.flush()
    return Path(file.name).read_text('utf-8').splitlines()


@pytest.mark.parametrize('how', SAYS)
def test_each_call_says_its_own_or_nothing(cp: Any, out: Any, how: str) -> None:
    says = SAYS[how]

    @ck.graphed
    def step(x: Any) -> Any:
        y = x.sum()
        says(y)
        return x * 2

    lines: list[str] = []
    with out as file:
        for number in (1.0, 2.0, 3.0, 3.0, 4.0):
            before = sum(one.launches for one in step.variants)
            assert step(cp.full(3, number)).tolist() == [2.0 * number] * 3
            launched = sum(one.launches for one in step.variants) > before
            lines += [] if launched else [f'sum is {3.0 * number}']
        assert said(file) == lines
    assert len(lines) == 4


def test_a_call_that_is_launched_says_nothing(cp: Any, out: Any) -> None:
    @ck.graphed
    def step(x: Any) -> Any:
        print('here')
        print('there', file=sys.stderr)
        return x * 2

    with out as file:
        for _ in range(4):
            step(cp.ones(2))
        assert said(file) == ['here', 'there']
    assert [one.launches for one in step.variants] == [3]


def test_a_recording_that_fails_half_way_has_said_nothing(cp: Any, out: Any) -> None:
    @ck.graphed
    def step(x: Any) -> Any:
        print('begins')
        y = x * 2
        y.set(ONES)  # no capture can hold it
        print('ends')
        return y

    with out as file:
        for _ in range(3):
            assert step(cp.ones(2)).tolist() == [1.0, 1.0]
        assert said(file) == ['begins', 'ends'] * 3
    assert 'set' in step.variants[0].reason


def test_another_thread_is_not_withheld(cp: Any, out: Any) -> None:
    with out as file, ck.capture() as cap, GUARD.output.withheld():
        print('mine', file=file)
        other = threading.Thread(target=print, args=('theirs',), kwargs={'file': file})
        other.start()
        other.join()
        y = cp.ones(2) * 2
        assert said(file) == ['theirs']
    cap.graph.launch()
    assert y.tolist() == [2.0, 2.0]


def test_a_text_that_the_file_would_not_take_raises_as_always(cp: Any, tmp_path: Path) -> None:
    out = open(tmp_path / 'ascii.txt', 'w', encoding='ascii')  # noqa: SIM115
    with ck.capture(), GUARD.output.withheld():
        assert out.write('four') == 4
        with pytest.raises(UnicodeEncodeError):
            out.write('\xe9')
        with pytest.raises(TypeError):
            out.write(3)  # type: ignore[arg-type]
        out.close()
        with pytest.raises(ValueError, match='closed'):
            out.write('late')
    assert (tmp_path / 'ascii.txt').read_text() == ''
    assert 'write' not in vars(type(out)) or vars(io.TextIOWrapper)['write'] is io.TextIOWrapper.write

"""The exception that ends a block is told with what went wrong before it, the first one first."""

from __future__ import annotations

import contextlib
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import GUARD
from capturekit.model.causes import PROGRAM


@pytest.fixture(autouse=True)
def no_causes() -> Iterator[None]:
    """Each test begins with a program in which nothing went wrong so far."""
    PROGRAM.clear()
    yield
    PROGRAM.clear()


def line(mark: str) -> int:
    """The number of the line of this file that ends with a comment."""
    with open(__file__, encoding='utf-8') as f:
        (found,) = (number for number, text in enumerate(f, 1) if text.rstrip().endswith(f'# {mark}'))
    return found


def message(error: BaseException) -> str:
    """All that is said, in one message."""
    return '\n'.join([str(error), *getattr(error, '__notes__', ())])


def named(error: BaseException) -> list[int]:
    """The lines of this file that the message names, in its order."""
    return [int(number) for number in re.findall(r'at test_causes\.py:(\d+)', message(error))]


def of_block(cp: Any, body: Callable[[Any, Any], None]) -> BaseException:
    """The exception that ends a capture of a body."""
    x = cp.arange(4.0)
    with pytest.raises(Exception) as caught, ck.capture() as cap:
        body(cap, x * 2)
    return caught.value


def undefined(cap: Any, y: Any) -> None:
    try:  # noqa: SIM105 (as people write it)
        norm = float(y.sum())  # read by undefined
    except Exception:
        pass
    y /= norm


def closed_generator(cap: Any, y: Any) -> None:
    def steps() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            with contextlib.suppress(Exception):
                float(y.sum())  # read by closed_generator

    running = steps()
    next(running)
    running.close()
    raise LookupError('no norm')


def joined(cap: Any, y: Any) -> None:
    with contextlib.suppress(Exception):
        cap.join(sys.modules['cupy'].cuda.Stream(non_blocking=True))  # read by joined
    raise LookupError('no norm')


def of_helper_thread(cap: Any, y: Any) -> None:
    def work() -> None:
        with cap.stream, contextlib.suppress(Exception):
            float(y.sum())  # read by of_helper_thread

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()
    raise LookupError('no norm')


@pytest.mark.parametrize('body', [undefined, closed_generator, joined, of_helper_thread])
def test_a_later_exception_is_told_with_the_caught_refusal(cp: Any, body: Any) -> None:
    error = of_block(cp, body)
    assert not isinstance(error, ck.CaptureError)
    assert named(error) == [line(f'read by {body.__name__}')]
    remedy = 'stream.wait_event' if body is joined else 'read it after `cap.graph.launch()`'
    assert message(error).count(remedy) == 1


def test_a_later_refusal_is_told_with_the_first(cp: Any) -> None:
    def body(cap: Any, y: Any) -> None:
        with contextlib.suppress(Exception):
            float(y.sum())  # first
        cap.stream.synchronize()  # second

    error = of_block(cp, body)
    assert isinstance(error, ck.SynchronizationError)
    assert named(error) == [line('first'), line('second')]
    assert error.location is not None and error.location.line == line('second')
    assert str(error).startswith('First, the code caught HostReadError: ndarray.get() on lane 0')
    assert 'or read it after `cap.graph.launch()`.\n  Then: Stream.synchronize()' in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_open_lane_is_told_with_the_refusal_that_left_it_open(cp: Any) -> None:
    side = cp.cuda.Stream(non_blocking=True)

    def body(cap: Any, y: Any) -> None:
        side.wait_event(cap.stream.record())
        with side:
            y += 1
        with contextlib.suppress(Exception):
            cap.stream.synchronize()  # kept
            cap.join(side)

    error = of_block(cp, body)
    assert isinstance(error, ck.UnjoinedError)
    assert named(error)[0] == line('kept')


def test_a_line_is_told_once_and_many_lines_in_short(cp: Any) -> None:
    def body(cap: Any, y: Any) -> None:
        for _ in range(10):
            with contextlib.suppress(Exception):
                cap.stream.synchronize()
        for call in ('cap.stream.done', 'cap.join(None)', 'float(y[0])', 'int(y[0])', 'bool(y[0])'):
            with contextlib.suppress(ck.CaptureError, TypeError):
                exec(compile(call, f'{call}.py', 'exec'), {'cap': cap, 'y': y})
        raise LookupError('no norm')

    notes = getattr(of_block(cp, body), '__notes__', [])
    begin = ['First', 'Then', 'Then', '2 more exceptions came after that']
    assert [note.split(': ')[1].split(', ')[0] for note in notes] == begin
    assert notes[3].endswith('HostReadError at int(y[0]).py:1, HostReadError at bool(y[0]).py:1.')


# -- exceptions that a cleanup hides ----------------------------------------------------------------------------------


def in_finally(cap: Any, y: Any) -> None:
    try:
        y *= 1 / zero()  # raised by in_finally
    finally:
        cap.stream.synchronize()  # cleanup of in_finally


@contextlib.contextmanager
def timed(stream: Any) -> Iterator[None]:
    try:
        yield
    finally:
        stream.synchronize()  # cleanup of in_manager


def in_manager(cap: Any, y: Any) -> None:
    with timed(cap.stream):
        y *= 1 / zero()  # raised by in_manager


def before_raise(cap: Any, y: Any) -> None:
    try:
        y *= 1 / zero()  # raised by before_raise
    except ZeroDivisionError:
        cap.stream.synchronize()  # cleanup of before_raise
        raise


def zero() -> int:
    return 0


@pytest.mark.parametrize('body', [in_finally, in_manager, before_raise])
def test_a_refused_cleanup_names_what_led_to_it(cp: Any, body: Any) -> None:
    error = of_block(cp, body)
    assert isinstance(error, ck.SynchronizationError)
    assert str(error).startswith('First, ZeroDivisionError was raised at test_causes.py')
    assert named(error) == [line(f'raised by {body.__name__}'), line(f'cleanup of {body.__name__}')]
    assert isinstance(error.__context__, ZeroDivisionError)


def test_an_exception_that_was_dealt_with_is_no_cause(cp: Any) -> None:
    x, cache = cp.arange(4.0), {}
    with pytest.raises(ck.SynchronizationError) as around:
        try:
            cache['graph']
        except KeyError:
            with ck.capture() as cap:
                cap.stream.synchronize()
    assert around.value.earlier == ()

    def body(cap: Any, y: Any) -> None:
        try:
            cache['weights']
        except KeyError:
            cap.stream.synchronize()

    assert of_block(cp, body).earlier == ()  # type: ignore[attr-defined]
    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    assert y.get().tolist() == [0, 2, 4, 6]


def test_what_a_capture_caught_is_not_told_of_the_next(cp: Any) -> None:
    with ck.capture() as cap, contextlib.suppress(Exception):
        cap.stream.synchronize()
    error = of_block(cp, lambda cap, y: bool(y[0]))
    assert isinstance(error, ck.HostReadError) and error.earlier == ()
    error = of_block(cp, lambda cap, y: y.__itruediv__(1 / zero()))
    assert isinstance(error, ZeroDivisionError) and not hasattr(error, '__notes__')


def test_recordings_of_graphed_functions_leave_no_causes(cp: Any) -> None:
    """What cannot be recorded runs eagerly: nobody caught anything."""

    @ck.graphed
    def f(x: Any) -> Any:
        y = x * 2
        x.device.synchronize()
        return y if float(y.sum()) > 100 else -y

    x = cp.arange(4.0)
    for _ in range(4):
        f(x)
        x += 1
    assert PROGRAM.found == []
    assert not GUARD.lives


def test_a_cause_holds_nothing_of_its_frames(cp: Any) -> None:
    class Held:
        pass

    def refused_with(held: Any) -> None:
        with ck.capture() as cap, contextlib.suppress(Exception):
            cap.stream.synchronize()

    held = Held()
    before = sys.getrefcount(held)
    refused_with(held)
    assert len(PROGRAM.found) == 1
    assert sys.getrefcount(held) == before

"""``capturekit run`` does not end with 0 where a refusal was lost with its thread, or work was held back for good."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from capturekit.cli.traceback_text import LostRefusals
from capturekit.model.errors import HostReadError
from tests.command import run, started

#: A script whose function `work` is refused in its capture, and leaves a good graph behind; its end is below.
SCRIPT = """\
import asyncio, contextlib, gc, logging, sys, threading
from concurrent.futures import ThreadPoolExecutor
import capturekit as ck
import cupy as cp
x, graphs = cp.arange(4.0), []
def work():
    with ck.capture() as cap:
        y = x * 2
        try:
            float(y.sum())  # refused
        finally:
            graphs.append(cap)
def swallowing():
    with contextlib.suppress(ck.HostReadError):
        work()
async def task():
    work()
async def forgetting():
    asyncio.create_task(task())
    await asyncio.sleep(0)
    gc.collect()
async def awaiting():
    with contextlib.suppress(ck.HostReadError):
        await asyncio.create_task(task())
"""

#: How the refusal is lost, and what `run` says of it.
LOST = (
    ('t = threading.Thread(target=work, name="T"); t.start(); t.join()', 'in thread T, which ended'),
    ('asyncio.run(forgetting())', 'in a task of asyncio, and nobody has awaited it'),
    (
        'class Held:\n    def __del__(self): work()\nheld = Held()\ndel held',
        'where Python ignores exceptions',
    ),
    ('runs_on = threading.Thread(target=work, name="on"); runs_on.start()', 'in thread on, which ended'),
    ('with ThreadPoolExecutor(1) as pool: pool.submit(work)', 'in a worker, and nobody has asked its future'),
)
FROM_IT = """\
def other():
    try:
        work()
    except Exception as error:
        raise LookupError("x") from error
t = threading.Thread(target=other, name="T"); t.start(); t.join()
"""
#: A thread that has the capture ends it with the refusal: tests/guard/test_warned.py.
LOGGED = """\
def log(y): logging.warning('%s', y)  # refused there
with ck.capture():
    y = x * 2
    t = threading.Thread(target=log, args=(y,)); t.start(); t.join()
"""

#: The code has decided what becomes of the refusal: in the thread, by the result, by the exception, by map, awaited,
#: and by an excepthook of its own.
CAUGHT = (
    't = threading.Thread(target=swallowing); t.start(); t.join()',
    'with ThreadPoolExecutor(1) as pool: one = pool.submit(work)\n'
    'with contextlib.suppress(ck.HostReadError): one.result()',
    'with ThreadPoolExecutor(1) as pool: one = pool.submit(work)\nassert isinstance(one.exception(), ck.HostReadError)',
    'with ThreadPoolExecutor(1) as pool, contextlib.suppress(ck.HostReadError):\n'
    '    list(pool.map(lambda _: work(), [0]))',
    'asyncio.run(awaiting())',
    'seen = []\nthreading.excepthook = seen.append\n'
    't = threading.Thread(target=work); t.start(); t.join()\nassert len(seen) == 1',
)

#: A test runner tells itself what ends it.
TESTS = """
import cupy as cp, capturekit as ck, pytest
def test_refused():
    with pytest.raises(ck.HostReadError), ck.capture():
        float(cp.ones(3).sum())
def test_fails():
    assert 0
"""
HELD = """
import cupy as cp
w, s = cp.ones(4), cp.cuda.Stream(non_blocking=True)
s.begin_capture()
w *= 2
"""


def ended(tmp_path: Path, end: str, *options: str) -> tuple[int, list[str], str]:
    ran = run(tmp_path, f'{SCRIPT}{end}\n', *options, way=started)
    return ran.returncode, [one for one in ran.stderr.splitlines() if one.startswith('capturekit: the')], ran.stderr


def line(end: str, marked: str) -> int:
    """The number of the script's line that ends so."""
    return next(n for n, text in enumerate((SCRIPT + end).splitlines(), 1) if text.endswith(marked))


def test_each_that_was_lost_is_told_and_then_what_is_open(tmp_path: Path) -> None:
    ends = [*(end for end, _how in LOST), 'runs_on.join()']
    end = '\n'.join([*ends, f'{LOGGED}s = cp.cuda.Stream(non_blocking=True); s.begin_capture()', 'sys.exit(0)'])
    status, said, err = ended(tmp_path, end)
    assert status == 1 and 'HostReadError: ndarray.get()' in err and 'cap.graph.launch()' in err
    swallowed = 'while a handler of logging formatted a record, and logging has swallowed that'
    there, at = line(end, '# refused there'), line(end, '# refused')
    lost = [f'capturekit: the call at script.py:{at} in work was refused {how}' for _end, how in LOST]
    assert sorted(said[:-1]) == sorted(
        [*lost, f'capturekit: the call at script.py:{there} in log was refused {swallowed}']
    ), err
    assert said[-1].endswith('was never ended and made no graph: call `end_capture()`')


def test_lost_in_the_cause_of_another_exception(tmp_path: Path) -> None:
    status, said, err = ended(tmp_path, FROM_IT, '--traceback', 'full')
    at = line(FROM_IT, '# refused')
    told = f'capturekit: the call at script.py:{at} in work was refused in thread T, which ended'
    assert (status, said) == (1, [told]), err


def test_caught_on_purpose_and_other_exceptions(tmp_path: Path) -> None:
    other = 't = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()'  # as Python has it
    status, said, err = ended(tmp_path, '\n'.join([other, *CAUGHT]))
    assert (status, said) == (0, []) and err.count('Error') == err.count('ZeroDivisionError') == 1, err


def test_everything_is_put_back() -> None:
    before = threading.excepthook, sys.unraisablehook, Future.result, Future.exception, Future.set_exception
    lost = LostRefusals(False)
    with lost.heard():
        future: Future[None] = Future()
        future.set_exception(HostReadError('a call'))
        assert future.exception() is not None
    after = threading.excepthook, sys.unraisablehook, Future.result, Future.exception, Future.set_exception
    assert after == before and lost.told() == []


def test_refusals_that_tests_expect_are_no_causes(tmp_path: Path) -> None:
    (tmp_path / 'test_it.py').write_text(TESTS)
    ran = started('run', '--simulate', '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'test_it.py', cwd=tmp_path)
    assert ran.returncode == 1 and '1 failed, 1 passed' in ran.stdout
    assert 'ended the program' not in ran.stderr


def test_work_that_was_held_back_is_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / 'held.py').write_text(HELD)
    ran = started('run', '--simulate', 'held.py', cwd=tmp_path)
    assert ran.returncode == 1
    assert '1 piece of work' in ran.stderr and 'at held.py:5, was held back and never ran' in ran.stderr

"""``capturekit run`` shows what went wrong first, and then what came of it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.command import Ran, called, run, started

#: A script that records by hand; its body is indented below ``begin_capture()``.
BY_HAND = """\
import contextlib, sys, threading
import cupy as cp
stream = cp.cuda.Stream(non_blocking=True)
x, zero, graph = cp.arange(4.0), 0, None
class Timed:
    def __enter__(self): return self
    def __exit__(self, *exc): stream.synchronize()  # Timed
def record():
    with stream:
        stream.begin_capture()
        y = x * 2
{body}
        return stream.end_capture()
"""

SWALLOWED = """
try:
    norm = float(y.sum())  # first
except Exception:
    pass
"""

#: Bodies, and what comes after: the lines marked `first` and `then` are named in that order.
PROGRAMS = {
    'name error in the capture': (SWALLOWED + 'y /= norm  # then', 'graph = record()'),
    'name error after it': (SWALLOWED, 'graph = record()\nnorm  # then'),
    'no graph': ('stream.synchronize()  # first', 'with contextlib.suppress(RuntimeError): graph = record()\n'
                 'graph.launch()  # then'),
    'finally': ('try:\n    y *= 1 / zero  # first\nfinally:\n    stream.synchronize()  # then', 'record()'),
    'a user\'s context manager': ('with Timed():\n    y *= 1 / zero  # first', 'record()'),
    'end in finally': ('side = cp.cuda.Stream(non_blocking=True)\nside.wait_event(stream.record())\n'
                       'with side: y += 1\n'
                       'try:\n    stream.synchronize()  # first\nfinally:\n    stream.end_capture()  # then',
                       'record()'),
    'from None': ('try:\n    float(y[0])  # first\nexcept Exception:\n    raise LookupError("x") from None  # then',
                  'record()'),
    'two refusals': ('with contextlib.suppress(Exception):\n    float(y[0])  # first\n'
                     'cp.cuda.Device().synchronize()  # then', 'record()'),
    'another thread': ('stream.synchronize()  # first',
                       'def work():\n    with contextlib.suppress(Exception): record()\n'
                       'thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n'
                       'graph.launch()  # then'),
    'a thread that ends': ('stream.synchronize()  # first',
                           'thread = threading.Thread(target=record)\nthread.start()\nthread.join()\n'
                           'graph.launch()  # then'),
    'an exception of its own from it': ('try:\n    float(y[0])  # first\nexcept Exception as error:\n'
                                        '    raise LookupError("x") from error  # then', 'record()'),
}  # fmt: skip


def by_hand(body: str, after: str) -> str:
    return BY_HAND.format(body=textwrap.indent(body.strip(), ' ' * 8)) + after + '\n'


def line(script: str, mark: str) -> int:
    """The number of the script's line with a comment."""
    (found,) = (number for number, text in enumerate(script.splitlines(), 1) if text.endswith(f'# {mark}'))
    return found


def shown(ran: Ran) -> list[int]:
    """The innermost line of each traceback that is shown, in the order of the text."""
    blocks = ran.stderr.split('Traceback (most recent call last):\n')[1:]
    return [int(re.findall(r'File ".*script\.py", line (\d+)', block)[-1]) for block in blocks]


@pytest.mark.parametrize('name', PROGRAMS)
@pytest.mark.parametrize('options', [(), ('--traceback', 'full')], ids=['short', 'full'])
def test_the_first_cause_is_shown_first(tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    script = by_hand(*PROGRAMS[name])
    way = started if name == 'a thread that ends' else called  # else pytest hears of the thread
    ran = run(tmp_path, script, *options, way=way)
    assert ran.returncode == 1
    then = line(script, 'Timed' if 'context manager' in name else 'then')
    found = list(dict.fromkeys(shown(ran)))
    assert found == [line(script, 'first'), then], ran.stderr
    refused = re.findall(r'^(?:capturekit\S*\.)?(\w+Error): \S+.* at script\.py:(\d+)', ran.stderr, re.M)
    assert refused, ran.stderr  # the refusal is told with its call, and whole
    assert ran.stderr.count('graph.launch') + ran.stderr.count('end_capture()') >= 1


def test_a_block_s_first_cause_is_shown_once(tmp_path: Path) -> None:
    script = textwrap.dedent("""\
        import contextlib
        import capturekit as ck
        import cupy as cp
        x = cp.arange(4.0)
        with ck.capture() as cap:
            y = x * 2
            with contextlib.suppress(Exception):
                norm = float(y.sum())  # first
            y /= norm  # then
    """)
    ran = run(tmp_path, script)
    assert shown(ran) == [line(script, 'first'), line(script, 'then')]
    assert ran.stderr.count('HostReadError') == 1 and '\ncapturekit: First' not in ran.stderr


@pytest.mark.parametrize('leave', ['sys.exit("no graph")', 'sys.exit(3)'])
def test_a_program_that_gives_up_shows_why(tmp_path: Path, leave: str) -> None:
    script = by_hand(f'try:\n    float(y[0])  # first\nexcept Exception:\n    {leave}', 'record()')
    ran = run(tmp_path, script)
    assert ran.returncode == (3 if '3' in leave else 1)
    assert shown(ran) == [line(script, 'first')] and 'and ended the program.' in ran.stderr
    fine = run(tmp_path, by_hand('try:\n    float(y[0])\nexcept Exception:\n    sys.exit()', 'record()'))
    assert (fine.returncode, shown(fine)) == (0, [])


def test_a_refusal_that_did_no_harm_is_not_shown(tmp_path: Path) -> None:
    script = by_hand(SWALLOWED, 'record().launch()')
    ran = run(tmp_path, script)
    assert (ran.returncode, ran.stderr.count('\n')) == (0, 1)


def test_a_refusal_of_a_destructor_is_shown_in_short(tmp_path: Path) -> None:
    body = 'class Held:\n    def __del__(self): stream.synchronize()  # first\nheld = Held()\ndel held'
    ran = run(tmp_path, by_hand(body, 'record()'))
    assert 'Exception ignored' in ran.stderr and 'patching.py' not in ran.stderr
    assert 'SynchronizationError: Stream.synchronize()' in ran.stderr
    assert ran.returncode == 1 and 'was refused where Python ignores exceptions' in ran.stderr


#: Uses of an event after the capture in which it was recorded; ``ready`` and ``side`` are an event and a stream.
AFTERWARDS = (
    'ready.synchronize()',
    'while not ready.done: pass',
    'side.wait_event(ready)',
    'cp.cuda.get_elapsed_time(ready, ready)',
    'cp.cuda.get_elapsed_time(fresh, ready)',
    'cp.cuda.runtime.eventSynchronize(ready.ptr)',
)


@pytest.mark.parametrize('use', AFTERWARDS)
@pytest.mark.parametrize('options', [(), ('--observe',)], ids=['refused', 'observed'])
def test_an_event_used_after_its_capture_is_named(tmp_path: Path, use: str, options: tuple[str, ...]) -> None:
    """CUDA says 'invalid argument' to most, and CuPy says for ever that the event is not done."""
    use = use.replace('while', 'if') if options else use
    script = by_hand(
        'global ready\nready = stream.record()',
        'side, fresh = cp.cuda.Stream(non_blocking=True), cp.cuda.Event()\nfresh.record()\nrecord().launch(stream)\n'
        f'{use}  # first',
    )
    ran = run(tmp_path, script, *options)
    assert f'at script.py:{line(script, "first")}\n' in ran.stderr and 'IsolationError: ' in ran.stderr, ran.stderr
    assert 'Record it again around the launch' in ran.stderr and 'cap.' not in ran.stderr
    assert ran.returncode == 1 or (options and 'if not' in use)


def test_an_event_recorded_again_after_its_capture_is_good(tmp_path: Path) -> None:
    after = (
        'graph = record()\nready.record(stream)\ngraph.launch(stream)\nend = stream.record()\nend.synchronize()\n'
        'assert ready.done and cp.cuda.get_elapsed_time(ready, end) >= 0\n'
        'try:\n    cp.cuda.runtime.eventSynchronize(late.ptr)\n'
        'except cp.cuda.runtime.CUDARuntimeError as error:\n    assert error.status == 1'
    )
    ran = run(tmp_path, by_hand('global ready, late\nready, late = stream.record(), stream.record()', after))
    assert ran.returncode == 0, ran.stderr

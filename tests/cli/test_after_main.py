"""What a script still does after its last line: in callbacks of atexit, and in threads that outlive it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import called, python

SCRIPT = """\
import atexit, sys, threading, time
import capturekit as ck
import cupy as cp
x = cp.arange(4.0)
def last(text):
    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    print(text, bool((y == x * 2).all()), flush=True)
def refused():
    with ck.capture():
        float(x.sum())
def never():
    print('never')
def later():
    time.sleep(0.2)
    last('right')
"""

#: What is left to do when the script's last line is over.
LEFT = {
    'a callback': "atexit.register(last, 'right')",
    'a callback that others follow': "atexit.register(last, 'right'); atexit.register(print, 'first')",
    'one that was taken back': "atexit.register(never); atexit.register(last, text='right'); atexit.unregister(never)",
    'a thread': 'threading.Thread(target=later).start()',
    "a thread's callback": "threading.Thread(target=lambda: (time.sleep(0.2), atexit.register(last, 'right'))).start()",
}
#: How it ends, and with which status.
ENDS = {'': 0, 'sys.exit(0)': 0, 'sys.exit(3)': 3, 'raise LookupError': 1}


@pytest.mark.parametrize('end', ENDS)
@pytest.mark.parametrize('left', LEFT)
def test_run_guards_what_is_left(tmp_path: Path, left: str, end: str) -> None:
    (tmp_path / 'script.py').write_text(f'{SCRIPT}{LEFT[left]}\n{end}\n')
    done = called('run', '--simulate', 'script.py', cwd=tmp_path)
    assert done.returncode == ENDS[end], done.stderr
    assert done.stdout.split('\n') == [*['first'] * ('others' in left), 'right True', '']


@pytest.mark.parametrize('end', ENDS)
def test_a_refusal_of_a_callback_is_told(tmp_path: Path, end: str) -> None:
    (tmp_path / 'script.py').write_text(f"{SCRIPT}atexit.register(last, 'right')\natexit.register(refused)\n{end}\n")
    done = called('run', '--simulate', 'script.py', cwd=tmp_path)
    assert done.returncode == (ENDS[end] or 1) and done.stdout == 'right True\n'
    assert 'ignored in a callback of atexit' in done.stderr and 'HostReadError: ndarray.get()' in done.stderr
    told = 'the call at script.py:12 in refused was refused in a callback of atexit'
    assert (told in done.stderr) == (ENDS[end] == 0)


@pytest.mark.parametrize('left', ['a callback that others follow', 'a thread'])
def test_the_first_capture_may_come_last(tmp_path: Path, left: str) -> None:
    (tmp_path / 'script.py').write_text(f'{SCRIPT}{LEFT[left]}\n')
    done = python('script.py', cwd=tmp_path, CAPTUREKIT_SIMULATE='1')
    assert done.stdout.split('\n') == [*['first'] * ('others' in left), 'right True', ''], done.stderr

"""``python -m capturekit run --watch``: every capture of the process is followed, whoever began it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capturekit.driver.cupti import Untraceable
from capturekit.simulated import SimulatedDevice
from tests.cli.test_main import errors
from tests.command import run

LIBRARY = """
from capturekit.driver.cuda import current
import cupy as cp
device = current().device
def tried(call, *args):
    try:
        return call(*args)
    except RuntimeError as error:
        print(error)
"""
WAITS = (
    LIBRARY
    + """
s = device.stream_create(True)
for _ in range(3):
    device.begin_capture(s)
    tried(device.stream_synchronize, s)  # 14
    tried(device.end_capture, s)
"""
)


def test_the_first_call_that_lost_a_capture_is_named(tmp_path: Path) -> None:
    ran = run(tmp_path, WAITS, '--watch')
    assert ran.returncode == 0 and 'cudaErrorStreamCaptureUnsupported' in ran.stdout
    lines = errors(ran)
    assert lines[0] == 'capturekit: 3 captures were followed; 3 were lost:'
    assert lines[1].startswith('SynchronizationError: cudaStreamSynchronize() on lane 0, the origin (stream 0x')
    assert lines[1].endswith('at script.py:7 in tried')
    assert lines[2].endswith('and the capture begun at script.py:13 was lost).')
    assert lines[3].startswith('  Order streams by events') and 'cap.' not in lines[3]
    assert lines[4] == '  The call was made 3 times, in 3 captures.'
    assert len(lines) == 5


def test_escaped_work_and_open_lanes_are_told(tmp_path: Path) -> None:
    script = LIBRARY + (
        's, side, out, e = (device.stream_create(True) for _ in range(3)), None, None, device.event_create()\n'
        's, side, out = s\n'
        'device.begin_capture(s)\n'
        'device.submit(out, lambda: None, "kernel")\n'
        'device.event_record(e, s)\n'
        'device.stream_wait_event(side, e)\n'
        'device.submit(side, lambda: None, "kernel")\n'
        'tried(device.end_capture, s)\n'
    )
    lines = errors(run(tmp_path, script, '--watch'))
    assert lines[0] == 'capturekit: 1 capture was followed; 1 was lost, and work went past 1:'
    assert lines[1].startswith('UnjoinedError: 1 lane left unjoined: lane 1 (stream 0x')
    assert 'forked from lane 0 at script.py:15, last used at script.py:16' in lines[1]
    assert lines[4].startswith('EscapedWorkError: cuLaunchKernel() on stream 0x')
    assert lines[4].endswith('which is not in the capture, at script.py:13')
    assert lines[5] == '  This stream is not in the capture: its work ran at once and is missing from the graph.'
    assert len(lines) == 7


def test_a_script_that_fails_is_shown_and_then_explained(tmp_path: Path) -> None:
    script = LIBRARY + 's = device.stream_create(True)\ndevice.begin_capture(s)\ndevice.device_synchronize()\n'
    ran = run(tmp_path, script, '--watch')
    assert ran.returncode == 1
    text = '\n'.join(errors(ran))
    assert text.index('Traceback') < text.index('1 capture was followed; 1 was lost')
    assert 'SynchronizationError: cudaDeviceSynchronize(), at script.py:12' in text


def test_a_good_script_has_nothing_to_list(tmp_path: Path) -> None:
    script = (
        'import cupy as cp\ns = cp.cuda.Stream(non_blocking=True)\nx = cp.arange(3)\n'
        'with s:\n    s.begin_capture()\n    y = x + 1\n    g = s.end_capture()\ng.launch()\nprint(y)\n'
    )
    ran = run(tmp_path, script, '--watch')
    assert (ran.returncode, ran.stdout) == (0, '[1 2 3]\n')
    assert errors(ran) == ['capturekit: 1 capture was followed, and nothing has harmed it']


def test_what_the_guard_refuses_comes_before_the_driver(tmp_path: Path) -> None:
    script = 'import cupy as cp\ns = cp.cuda.Stream(non_blocking=True)\ns.begin_capture()\ns.synchronize()\n'
    ran = run(tmp_path, script, '--watch')
    assert ran.returncode == 1 and 'SynchronizationError: Stream.synchronize()' in ran.stderr
    assert errors(ran)[-1] == 'capturekit: 1 capture was followed, and nothing has harmed it'


def test_with_observe_both_reports_come(tmp_path: Path) -> None:
    script = (
        'import cupy as cp\ns = cp.cuda.Stream(non_blocking=True)\ns.begin_capture()\n'
        'try:\n    s.synchronize()\nexcept cp.cuda.runtime.CUDARuntimeError as error:\n    print(error.status)\n'
        'try:\n    s.end_capture()\nexcept cp.cuda.runtime.CUDARuntimeError as error:\n    print(error.status)\n'
    )
    ran = run(tmp_path, script, '--watch', '--observe')
    assert ran.stdout.split() == ['900', '901']
    text = '\n'.join(errors(ran))
    assert '1 call would have been refused, and what has lost a capture comes first' in text
    assert 'SynchronizationError: cudaStreamSynchronize(), called by cupy, on lane 0' in text
    assert 'then `s.synchronize()`' in text


def test_a_refused_block_of_capturekit_names_the_call_too(tmp_path: Path) -> None:
    script = LIBRARY + (
        'import capturekit as ck\nwith ck.capture() as cap:\n    tried(device.stream_synchronize, cap.stream.ptr)\n'
    )
    ran = run(tmp_path, script, '--watch')
    assert ran.returncode == 1
    assert 'InvalidatedError: The capture was lost by cudaStreamSynchronize() on lane 0' in ran.stderr


def test_where_nothing_can_be_watched_nothing_is_run(tmp_path: Path, monkeypatch: Any) -> None:
    def missing(_device: Any) -> Any:
        raise Untraceable('CUPTI is not installed (pip install nvidia-cuda-cupti)')

    monkeypatch.setattr(SimulatedDevice, 'call_source', missing)
    ran = run(tmp_path, 'print(1)\n', '--watch')
    assert (ran.returncode, ran.stdout) == (2, '')
    assert errors(ran) == [
        'capturekit: --watch is not possible here: CUPTI is not installed (pip install nvidia-cuda-cupti). '
        'Nothing was run.'
    ]

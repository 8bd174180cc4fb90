"""Every sample runs on the simulated device, and notices when what it shows is not so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

import capturekit as ck
from tests.cli.test_main import errors
from tests.command import ROOT, Way, called

SAMPLES = ROOT / 'samples'

#: The end of each table of an experiment on the simulated device, and the picture of it.
_TRIED = [r'best: graph, .*', r'results compared with one lane, eager: .*: all the same', r'picture: .*svg']
_MODELLED = 'on the simulated device; modelled .*'


#: What each sample prints, as patterns of lines in their order.
PRINTS = {
    'copy_compute_pipeline.py': [
        r'12 chunks on the simulated device: \d+ nodes, 4 lanes',
        r'max error against one piece: 0',
        rf'12 branches, {_MODELLED}',
        *_TRIED,
    ],
    'inference_branches.py': [
        r'2 blocks on the simulated device: \d+ nodes, 5 lanes',
        r'max error against eager: 0',
        rf'4 branches in 2 calls, {_MODELLED}',
        *_TRIED,
    ],
    'many_small_solves.py': [
        r'8 systems of 8 on the simulated device: \d+ nodes',
        r'largest residual after 4 steps: 0\.0\d+',
        rf'8 branches, {_MODELLED}',
        *_TRIED[:2],
        r'note: 16, 32, 64 lanes are left out: .*',
        *_TRIED[2:],
    ],
    'race_and_repair.py': [
        r'-- without the wait',
        r'5 nodes, 1 pair on the same memory: 1 race, 0 possible',
        r'  writes: node 3: kernel cupy_copy on lane 1, at .*race_and_repair.py:22 in step',
        r'  reads: node 4: kernel cupy_multiply on lane 2, at .*race_and_repair.py:26 in step',
        r'  in the order 0, 1, 2, 4, 3: power differs',
        r'  Let lane 2 wait for lane 1, after .*: `lane2.wait_event\(lane1.record\(\)\)`; or do both on one lane\.',
        r'at the end of the block: RaceError at .*race_and_repair.py:26 in step',
        r'-- with it',
        r'5 nodes, 0 pairs on the same memory: 0 races, 0 possible',
        r'max error: 0',
        r'  short lane: lane 2 has 2.1 us of work, .*',
        _TRIED[-1],
    ],
    'first_graph.py': [r'4 nodes recorded on the simulated device'] + [r'shifted by .*: max error against eager 0'] * 3,
    'fork_join.py': [r'on the simulated device: \d+ nodes on 3 lanes', r'max error against eager: 0'],
    'on_the_device.py': [
        r'conjugate gradients: (\d+) steps by the host, \1 on the device, largest difference 0',
        r'  .* ms by the host, .* ms in one launch: .* times as fast',
        r'power iteration: (\d+) steps by the host, \1 on the device, largest difference 0',
        r'  .* ms by the host, .* ms in one launch: .* times as fast',
    ],
    'wave_two_lanes.py': [
        r'100 steps of 128x128 on the simulated device, two a launch: \d+ nodes',
        r'the water moved by \d\.\d+; max error against eager 0',
    ],
    'mpi_stencil.py': [
        r'24 x 24 on 1 ranks, the simulated device: \d+ nodes',
        r'after 8 steps: \d+\.\d+ in all, off by 0e\+00',
        r'.* ms a step, eagerly; .* in one launch',
    ],
    'torchrun_training.py': [
        r'1 ranks on the simulated device: 20 nodes',
        r'loss \S+ before, \S+ after 10 steps; weights 0e\+00 from the eager ones',
        r'.* ms a step, eagerly; .* in one launch',
    ],
    'two_devices.py': [
        r'1 device, summed by copies: \d+ nodes, two steps a launch',
        r'after 21 steps: max error against NumPy \d.*, off the truth by \d.*',
        r'picture: .*svg',
    ],
    'signal_pipeline.py': [r'65536 samples on the simulated device: \d+ nodes on 3 lanes']
    + [r'block \d: \d\d% is loud; max error against eager 0'] * 3,
}

#: The fault in each script: the exception, and the code of the line that it names.
WENT_WRONG = {
    'device_synchronize.py': (ck.SynchronizationError, 'cp.cuda.Device().synchronize()'),
    'escaped_stream.py': (ck.EscapedWorkError, 'z = x * 5'),
    'event_from_outside.py': (ck.IsolationError, 'cap.stream.wait_event(loaded)'),
    'host_read.py': (ck.HostReadError, 'if float(x.max()) > 1:'),
    'joined_then_worked.py': (ck.UnjoinedError, 'y '),
    'null_stream.py': (ck.LegacyStreamError, 'with cp.cuda.Stream.null:'),
    'second_capture.py': (ck.UnmatchedError, 'stream.begin_capture()'),
    'stream_done.py': (ck.SynchronizationError, 'while not side.done:'),
    'synchronize_lane.py': (ck.SynchronizationError, 'side.synchronize()'),
    'unjoined_lane.py': (ck.UnjoinedError, 'y = x - 4'),
}


def run_sample(path: Path, *args: str, seed: int = 0, said: Sequence[str] = (), way: Way = called) -> list[str]:
    ran = way('run', '--simulate', '--seed', str(seed), str(path), *args)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert errors(ran) == [*said]
    return ran.stdout.splitlines()


def test_every_sample_is_here() -> None:
    assert {path.name for path in SAMPLES.glob('*.py')} == PRINTS.keys()
    assert {path.name for path in SAMPLES.glob('went_wrong/*.py')} == WENT_WRONG.keys()


@pytest.mark.parametrize('name', PRINTS)
def test_sample(name: str) -> None:
    lines = iter(run_sample(SAMPLES / name))
    for pattern in PRINTS[name]:
        assert any(re.fullmatch(pattern, line) for line in lines), pattern


@pytest.mark.parametrize(
    ('name', 'args', 'first'),
    [
        ('first_graph.py', ['1000'], '4 nodes'),
        ('fork_join.py', ['1000'], 'on the simulated device'),
        ('wave_two_lanes.py', ['33', '7'], '8 steps of 33x33'),
        ('signal_pipeline.py', ['4096'], '4096 samples'),
    ],
)
def test_sample_of_another_size(name: str, args: list[str], first: str) -> None:
    assert run_sample(SAMPLES / name, *args)[0].startswith(first)


@pytest.mark.parametrize('name', ['copy_compute_pipeline.py', 'two_devices.py'])
def test_sample_writes_its_picture(name: str, tmp_path: Path) -> None:
    path = tmp_path / 'picture.svg'
    assert run_sample(SAMPLES / name, '--out', str(path))[-1] == f'picture: {path}'
    assert ElementTree.fromstring(path.read_text()).tag == '{http://www.w3.org/2000/svg}svg'


def test_a_step_on_several_devices(tmp_path: Path) -> None:
    devices = 5
    path = tmp_path / 'picture.svg'
    ran = called('run', '--simulate', '--devices', str(devices), str(SAMPLES / 'two_devices.py'), '--out', str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith(f'{devices} devices, summed by NCCL: ')
    assert f'device {devices - 1}' in path.read_text()


@pytest.mark.parametrize('name', WENT_WRONG)
def test_went_wrong(name: str) -> None:
    kind, code = WENT_WRONG[name]
    path = SAMPLES / 'went_wrong' / name
    what, why, remedy, *rest = run_sample(path)
    assert what.startswith(f'{kind.__name__}: ')
    assert why.startswith('  ')
    assert remedy.startswith('  ')
    assert rest[0].startswith('repaired: ')
    named = int(re.findall(rf'(?:, at|last used at) {name}:(\d+)', what)[-1])
    assert code in path.read_text().splitlines()[named - 1]


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize(
    ('name', 'old', 'new'),
    [
        # chunks on different lanes that share a buffer overwrite each other
        ('copy_compute_pipeline.py', 'x = self.device[n]', 'x = self.device[0]'),
        # a halo is wrong
        ('wave_two_lanes.py', 'step_rows(old, now, half, size - 1)', 'step_rows(old, now, half + 1, size - 1)'),
    ],
)
def test_a_fault_in_a_sample_is_noticed(tmp_path: Path, name: str, old: str, new: str, seed: int) -> None:
    text, path = (SAMPLES / name).read_text(), tmp_path / name
    assert old in text
    path.write_text(text.replace(old, new))
    ran = called('run', '--simulate', '--seed', str(seed), str(path))
    told = errors(ran)
    assert ran.returncode == 1
    assert told == ['the launches differ from the eager run'] or 'RaceError: ' in str(told)

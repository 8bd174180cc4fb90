"""Several processes on the simulated device, each with a graph that has NCCL in it: the samples, and what fails."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import ROOT

pytestmark = pytest.mark.skipif(not hasattr(socket, 'AF_UNIX'), reason='NCCL of processes is simulated by Unix sockets')
Ran = list[tuple[int, str, str]]


def together(size: int, command: list[str], environment: Callable[[int], dict[str, str]]) -> Ran:
    """Start a command as often, each with an environment of its own, and wait for all."""
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment(rank)},
        )
        for rank in range(size)
    ]
    try:
        told = [one.communicate(timeout=240) for one in started]
    finally:
        for one in started:
            one.kill()
    return [(one.returncode, *said) for one, said in zip(started, told)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(('localhost', 0))
        return int(one.getsockname()[1])


def by_torchrun(size: int) -> Callable[[int], dict[str, str]]:
    """What torchrun tells its processes; the sample listens 17 ports above this one."""
    port = str(free_port() - 17)
    return lambda rank: {
        'RANK': str(rank),
        'LOCAL_RANK': str(rank),
        'WORLD_SIZE': str(size),
        'MASTER_ADDR': 'localhost',
        'MASTER_PORT': port,
    }


def test_training_started_as_torchrun_does() -> None:
    command = ['-m', 'capturekit', 'run', '--simulate', 'samples/torchrun_training.py']
    ran = together(3, command, by_torchrun(3))
    assert all(code == 0 for code, _out, _err in ran), ran
    lines = ran[0][1].splitlines()
    assert lines[0] == '3 ranks on the simulated device: 20 nodes'
    found = re.fullmatch(r'loss (\S+) before, (\S+) after 10 steps; weights 0e\+00 from the eager ones', lines[1])
    assert found is not None and float(found[2]) < float(found[1])
    assert not any(out for _code, out, _err in ran[1:]), 'rank 0 alone prints'


def test_stencil_started_as_mpirun_does(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)  # mpi4py of this folder, which needs no MPI
    ran = together(
        3,
        ['-m', 'capturekit', 'run', '--simulate', 'samples/mpi_stencil.py'],
        lambda rank: {
            'TEST_RANK': str(rank),
            'TEST_SIZE': '3',
            'TEST_PLACE': str(tmp_path / 'mpi'),
            'PYTHONPATH': os.pathsep.join((here, str(ROOT))),
        },
    )
    assert all(code == 0 for code, _out, _err in ran), ran
    lines = ran[0][1].splitlines()
    assert re.fullmatch(r'24 x 24 on 3 ranks, the simulated device: \d+ nodes', lines[0])
    assert re.fullmatch(r'after 8 steps: \d+\.\d+ in all, off by (0|\de-1\d)(e\+00)?', lines[1])


APART = """
import os
import capturekit as ck
from capturekit.simulated import SimulatedDevice, install
install(SimulatedDevice(0))
import cupy as cp
from cupy.cuda import nccl
rank, names = int(os.environ['TEST_RANK']), os.environ['TEST_NAMES'].split()
for other, name in zip(('the same', 'another', 'less often'), names):
    comm = nccl.NcclCommunicator(2, bytes.fromhex(name), rank)
    x = cp.full(4, rank + 1.0)
    with ck.capture() as cap:
        at = x.data.ptr
        op = nccl.NCCL_MAX if rank and other == 'another' else nccl.NCCL_SUM
        comm.allReduce(at, at, 4, nccl.NCCL_FLOAT64, op, cap.stream.ptr)
        x += 1
    try:
        for _ in range(1 if rank and other == 'less often' else 3):
            cap.graph.launch()
        print(x.get().tolist(), flush=True)
    except Exception as error:
        print(error, flush=True)
"""


def test_ranks_have_to_ask_for_the_same() -> None:
    """They ask for the same, for another sum, and less often: the second process ends then."""
    names = ' '.join(os.urandom(16).ljust(128, b'\1').hex() for _ in range(3))
    ran = together(2, ['-c', APART], lambda rank: {'TEST_RANK': str(rank), 'TEST_NAMES': names})
    for _code, out, err in ran:
        same, another, *_less = out.splitlines()
        assert same == '[19.0, 19.0, 19.0, 19.0]', (out, err)
        assert 'ranks that ask for different things would wait for ever' in another, (out, err)
    assert 'a process of another rank is gone, or asks for nothing' in ran[0][1].splitlines()[2], ran

"""What is noted in a capture begun by hand is logged when it ends: its script has no recording to read it in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import watch
from capturekit.model import counters
from tests.command import started

HERE = Path(__file__).name


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the logger of capturekit has said in the test."""
    return [record.getMessage() for record in caplog.records if record.name == 'capturekit']


def forked(cp: Any, origin: Any, side: Any, *, work: bool = False, join: bool = False) -> None:
    side.wait_event(origin.record())
    if work:
        with side:
            cp.zeros(4)
    if join:
        origin.wait_event(side.record())


def test_a_fork_that_is_given_nothing(cp: Any, caplog: pytest.LogCaptureFixture) -> None:
    origin, side = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with watch(), origin:
        origin.begin_capture()
        forked(cp, origin, side)
        origin.end_capture()
    line = forked.__code__.co_firstlineno + 1
    text = 'lane 1 was forked and given no work, and it was never joined: it adds nothing'
    assert said(caplog) == [f'{HERE}:{line} in forked: {text}']


def test_the_same_in_a_block(cp: Any, caplog: pytest.LogCaptureFixture) -> None:
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        forked(cp, cap.stream, side)
    assert [note.text for note in cap.recording.notes if 'given no work' in note.text] != []
    assert said(caplog) == []


@pytest.mark.parametrize('work', [False, True])
def test_a_fork_that_is_joined(cp: Any, caplog: pytest.LogCaptureFixture, work: bool) -> None:
    origin, side = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with watch(), origin:
        origin.begin_capture()
        forked(cp, origin, side, work=work, join=True)
        origin.end_capture()
    with ck.capture() as cap:
        forked(cp, cap.stream, side, work=work, join=True)
        with ck.fork(2) as (left, _right), left:
            cp.zeros(4)
    assert [note for note in cap.recording.notes if 'given no work' in note.text] == said(caplog) == []


def test_lanes_that_are_joined_by_way_of_another(cp: Any, caplog: pytest.LogCaptureFixture) -> None:
    origin, side, third = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
    with watch(), origin:
        origin.begin_capture()
        forked(cp, origin, third, work=True)
        forked(cp, origin, side, work=True)
        side.wait_event(third.record())
        origin.wait_event(side.record())
        origin.end_capture()
    assert said(caplog) == []


def test_a_copy_to_the_host(tmp_path: Path) -> None:
    script = tmp_path / 'script.py'
    script.write_text(
        'import cupy as cp, numpy as np\n'
        's, host = cp.cuda.Stream(non_blocking=True), np.zeros(4)\n'
        'with s:\n'
        '    s.begin_capture()\n'
        '    y = cp.arange(4.0)\n'
        '    cp.cuda.runtime.memcpyAsync(host.ctypes.data, y.data.ptr, 32, 2, s.ptr)\n'
        '    graph = s.end_capture()\n'
        'print(host.sum())\n'
    )
    ran = started('run', '--simulate', str(script))
    assert (ran.returncode, ran.stdout) == (0, '0.0\n')
    assert 'script.py:6: cupy.cuda.runtime.memcpyAsync(): each launch copies to its address of the host' in ran.stderr
    assert 'nothing is copied before the first launch' in ran.stderr


def test_a_refusal_that_is_caught_is_told_once(
    cp: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, '_TOLD', set())
    x, origin = cp.ones(4), cp.cuda.Stream(non_blocking=True)

    def reads() -> None:
        with pytest.raises(ck.HostReadError):
            x.get()

    line = f'{HERE}:{reads.__code__.co_firstlineno + 2} in reads: refused, and caught in the block: HostReadError: '
    for _ in range(2):
        with ck.capture():
            reads()
    assert [text.startswith(line) for text in said(caplog)] == [True]
    with watch(), origin:
        origin.begin_capture()
        reads()
        origin.end_capture()
    assert [text.startswith(line) for text in said(caplog)] == [True, True]  # its remedy has other words


@pytest.mark.parametrize('waits', [False, True])
def test_a_task_that_waits_while_its_capture_is_open(cp: Any, caplog: pytest.LogCaptureFixture, waits: bool) -> None:
    origin, x = cp.cuda.Stream(non_blocking=True), cp.ones(4)

    async def records() -> None:
        with origin:
            origin.begin_capture()
            if waits:
                await asyncio.sleep(0)
            origin.end_capture()
        await asyncio.sleep(0)

    async def works() -> None:
        x.__iadd__(1)  # on the stream that is current in this thread

    async def both() -> None:
        await asyncio.gather(records(), works())

    with watch():
        asyncio.run(both())
    text = (
        'the capture was open while its task waited here: what other tasks gave to its stream meanwhile is in the graph'
    )
    line = records.__code__.co_firstlineno + 4
    assert said(caplog) == [f'{HERE}:{line} in records: {text}'] * waits
    assert x.get().tolist() == [1 if waits else 2] * 4

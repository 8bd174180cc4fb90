"""``ck.lint`` against captures: a strict capture of the same code raises just where the first finding is.

Programs are made at random.
"""

from __future__ import annotations

import io
import linecache
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard.lint_guard import LintLanes

#: Lines of programs. Those before ``IDLE`` mean the same to ``lint`` and to a capture with ``strict=False``, too.
LINES = """\
y = x * 2
w += 1
y += 1
y = w + 1
with s1: y = x * 2
with s1: w += 1
with s2: y = x * 3
with s2: w *= 2
with s3: w *= 2
with s3: y = w + 1
with s1: y = x * 2; w += 1; s2.wait_event(s1.record())
with s1: w += 1; y = x * 2
e = here().record()
s1.wait_event(here().record())
s2.wait_event(here().record())
s3.wait_event(here().record())
s1.wait_event(here().record()); f = s1.record()
here().wait_event(f)
s2.wait_event(f)
s1.synchronize()
s2.synchronize()
e.synchronize()
f.synchronize()
f.done
cp.cuda.Device().synchronize()
null.synchronize()
with null: w += 1
null.wait_event(e)
float(w[0])
x[x > 3]
w[w > 3] = 0
cp.array([1, 2])
x[[0, 1]]
print(y, file=sink)
here().wait_event(old)
s1.add_callback(lambda *a: None, 1)
s1.launch_host_func(lambda a: None, 1)
here().launch_host_func(lambda a: None, 1)
x.data.memset(0, 8)
x.data.memset_async(0, 8, s1)
cp.random.rand(2)
cp.linalg.svd(m)
here().synchronize()
here().done
with ck.fork(2) as (a, b): exec('with a: y = x + 1', globals(), locals()); b.ptr
s1.use(); w += 1; origin.use()
w.set(host)
cp.empty(3)
rt.memsetAsync(w.data.ptr, 0, 8, here().ptr)
rt.memsetAsync(w.data.ptr, 0, 8, s2.ptr)
rt.streamSynchronize(here().ptr)
rt.deviceSynchronize()
y.__dlpack__()
cp.random.permutation(4)
null.record()
IDLE
s1.wait_event(e)
s2.wait_event(e)
f = s1.record()
with s1: pass
with s1: cp.empty(3)
s1.done
here().wait_event(s1.record())
here().wait_event(s2.record())
here().wait_event(s3.record())
w.get(stream=s1)
w.get(stream=s2)
x.get(stream=s1)
y.get(stream=s1)
w[:2].get(stream=s2); w[1::2].fill(3)
w[::2].fill(3); w[1::2].get(stream=s1)
cp.asnumpy(x[1:], stream=s2)
m @ m
m.get(stream=s2)
s1.wait_event(old)
cp.cuda.get_elapsed_time(e, e)
""".splitlines()
IDLE = LINES.index('IDLE')


def program(seed: int, lines: list[str]) -> Callable[..., Any]:
    """A random program, whose lines can be looked up."""
    rng = random.Random(seed)
    body = rng.choices([line for line in lines if line != 'IDLE'], k=rng.randint(1, 7))
    head = 'def program(ck, cp, rt, x, w, m, host, s1, s2, s3, old, null, here, sink, origin):'
    start = '    e = cp.cuda.Event(); f = cp.cuda.Event(); y = x'
    text = '\n'.join([head, start, *(f'    {line}' for line in body), '    return y, w', ''])
    name = f'program{seed}.py'
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {}
    exec(compile(text, name, 'exec'), names)
    made: Callable[..., Any] = names['program']
    return made


def world(cp: Any) -> dict[str, Any]:
    s1, s2 = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    arrays = {'x': cp.arange(4.0), 'w': cp.ones(4), 'm': cp.eye(2), 'host': np.ones(4)}
    streams = {'s1': s1, 's2': s2, 's3': cp.cuda.Stream(), 'null': cp.cuda.Stream.null, 'old': s1.record()}
    more = {'ck': ck, 'cp': cp, 'rt': cp.cuda.runtime, 'here': cp.cuda.get_current_stream, 'sink': io.StringIO()}
    return {**arrays, **streams, **more}


def in_capture(cp: Any, fn: Callable[..., Any], strict: bool) -> ck.CaptureError | None:
    given = world(cp)  # streams live on until the end of the capture
    try:
        with ck.capture(strict=strict, check_races=False) as cap:  # an eager run has no edges that could be missing
            fn(**given, origin=cap.stream)
    except ck.CaptureError as error:
        return error
    return None


def agree(cp: Any, seed: int, lines: list[str], modes: tuple[bool, ...]) -> bool | None:
    """Hold a program's report against captures of it. None if the program fails by itself."""
    fn = program(seed, lines)
    try:
        expected = [a.get().tolist() for a in fn(**world(cp), origin=cp.cuda.get_current_stream())]
    except Exception:
        return None
    given = world(cp)
    report = ck.lint(lambda: fn(**given, origin=cp.cuda.get_current_stream()))
    assert [a.get().tolist() for a in report.result] == expected
    text = ''.join(linecache.getlines(f'program{seed}.py'))
    for strict in modes:
        error = in_capture(cp, fn, strict)
        found = [f for f in report.findings if (f.refused if strict else f.refused_adapting)]
        assert bool(found) == (error is not None), f'strict={strict}: {error!r}\n{report}\n{text}'
        if error is not None and error.location is not None and error.location.file == f'program{seed}.py':
            assert found[0].at is not None, text
            assert found[0].at.line == error.location.line, f'{error}\n{report}\n{text}'
            assert found[0].strict == f'raises {type(error).__name__}', f'{error}\n{report}\n{text}'
    return report.ok


@pytest.mark.parametrize('part', range(2))
@pytest.mark.parametrize(('first', 'lines', 'modes'), [(0, LINES, (True,)), (50_000, LINES[:IDLE], (True, False))])
def test_found_just_where_captures_raise(
    sim: Any, first: int, lines: list[str], modes: tuple[bool, ...], part: int
) -> None:
    """Also where adapting ones do, save for streams that are given nothing: adapting forks them all the same."""
    answers = [agree(sim, first + 1000 * part + seed, lines, modes) for seed in range(70)]
    assert answers.count(True) > 3 and answers.count(False) > 30 and answers.count(None) < 20


def test_a_finalizer_in_the_middle_of_a_call_changes_nothing(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is collected anywhere: here while it is found out what adapting would do with a stream from outside."""
    old, side = sim.cuda.get_current_stream().record(), sim.cuda.Stream(non_blocking=True)
    fork = LintLanes.adapt_fork

    def collecting(self: Any, *args: Any) -> Any:
        answer = fork(self, *args)
        assert old.done
        return answer

    monkeypatch.setattr(LintLanes, 'adapt_fork', collecting)
    report = ck.lint(lambda: side.add_callback(lambda *_args: None, 1))
    escaped, callback = report.findings
    assert 'was forked from lane 0' in escaped.adapting
    assert callback.strict == 'raises UnsupportedCallError'

"""Random programs of two to eight threads that call graphed functions: each has to get what it gets alone, eagerly.

The threads share the functions, and each has arguments and an object of its own. Beside the calls they capture, wait
for the device, collect garbage and give memory back.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import capturekit as ck
from tests.agreement.choices import Choices
from tests.agreement.trying import Kind, Outcome

#: Functions of ``o``, the thread's own object, an array and a number.
BODIES = {
    'number': 'return x * k + k',
    'read': 'return x + float(x.sum())',
    'reckoned': 'n = float(x[0])\n    return x * (n * 2 + 1)',
    'branch': 'return x * 2 if float(x.sum()) > 5 else x - 1',
    'in place': 'x += 1\n    return x * 2',
    'state': 'o.w = o.w * 0.5 + x.sum()\n    return o.w * x',
    'counter': 'o.t += 1\n    return x * o.t',
    'items': 'o.d["n"] += 1.0\n    return x * o.d["n"]',
    'svd': 'return cp.linalg.svd(cp.outer(x, x) + 1)[1].round(6)',
    'matmul': 'return cp.tanh(x) @ cp.outer(x, x)',
    'drawn': 'return cp.random.default_rng(3).standard_normal(x.shape) + x',
    'waits': 'y = x * 2\n    cp.cuda.get_current_stream().synchronize()\n    return y + 1',
    'waits for all': 'y = x * 2\n    cp.cuda.Device().synchronize()\n    return y + 1',
    'two streams': 'o.s.wait_event(cp.cuda.get_current_stream().record())\n    with o.s:\n        y = x * 2\n    '
    'cp.cuda.get_current_stream().wait_event(o.s.record())\n    return y + x',
    'on the host': 'return cp.asnumpy(x * 2), float(x.max())',
    'uploads': 'return x + cp.asarray(np.arange(x.size) * 1.0)',
    'raises': 'y = x * 2\n    if x.size == 3:\n        raise ValueError(x.size)\n    return y',
    'long': 'y = x\n    for _ in range(6):\n        y = cp.sin(y) * 2 + x\n    return [y, y - x]',
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {'check': True}, {'check': 3}, {'checks': 'later'}, {'pieces': False}, {'fuse': True},
    {'fuse': 'fast'}, {'lanes': 'auto'}, {'limit': 2}, {'memory': ck.MemoryGroup()},
)  # fmt: skip
#: What a thread does: most often it calls a function.
DEEDS = ('call',) * 10 + ('capture', 'collect', 'wait', 'wait by an object', 'free', 'clear')


@dataclass
class Threads:
    """What each thread does: a deed, the number of a function, the size of its array, and a number."""

    functions: list[tuple[str, dict[str, Any]]]
    plans: list[list[tuple[str, int, int, float]]]
    own_streams: bool


class Own:
    """A thread's own object, with state that functions change."""

    def __init__(self, cp: Any) -> None:
        self.w, self.t, self.d, self.s = cp.zeros(()), 0, {'n': 0.0}, cp.cuda.Stream(non_blocking=True)


def threads(choices: Choices) -> Threads:
    """Draw a program."""
    functions = [(choices.pick(tuple(BODIES)), choices.pick(OPTIONS)) for _ in range(choices.pick((1, 1, 2, 3)))]
    alike, deeds = choices.below(2), [deed for deed in DEEDS if deed == 'call' or choices.below(2)]
    plans = [
        [
            (
                choices.pick(deeds), choices.below(len(functions)),
                2 + (choices.below(3) if alike else thread + 8 * (step // 10)), choices.below(3) + 0.5,
            )
            for step in range(choices.pick((10, 20)))
        ]
        for thread in range(choices.pick((2, 3, 4, 8)))
    ]  # fmt: skip
    return Threads(functions, plans, bool(choices.below(2)))


def shown(value: Any) -> Any:
    """All that a caller sees of a result."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shown(part) for part in value]
    return (
        type(value).__name__,
        getattr(value, 'dtype', ''),
        np.asarray(getattr(value, 'get', lambda: value)()).tolist(),
    )


def one_thread(cp: Any, program: Threads, functions: list[Any], number: int) -> list[Any]:
    """Run the plan of one thread: what each call gave; an exception that is no ValueError ends it."""
    own, found = Own(cp), []
    stream = cp.cuda.Stream(non_blocking=True) if program.own_streams else contextlib.nullcontext()
    try:
        with stream:
            for deed, which, size, k in program.plans[number]:
                if deed == 'call':
                    found.append(called(cp, functions[which], own, cp.arange(size) * 0.5 + number, k))
                elif isinstance(functions[which], ck.Graphed):
                    besides(cp, deed, functions[which])
    except BaseException as error:
        found.append(''.join(traceback.format_exception(error)))
    return found


def called(cp: Any, fn: Any, own: Own, x: Any, k: float) -> Any:
    before = x.copy()
    try:
        result = fn(own, x, k)
        last = getattr(fn, 'last', None)
        if last is not None and not last.holds():  # with checks='later' a result may be wrong, and is asked for
            x, result = before, fn.__wrapped__(own, before, k)
    except ValueError as error:
        result = repr(error)
    return shown(result), shown(x)


def besides(cp: Any, deed: str, fn: Any) -> None:
    if deed == 'capture':
        with ck.capture() as cap:
            y = cp.ones(3) * 2
        cap.graph.launch()
        assert y.tolist() == [2.0] * 3
        cap.graph.close()
    elif deed == 'collect':
        gc.collect()
    elif deed == 'wait':
        cp.cuda.runtime.deviceSynchronize()
    elif deed == 'wait by an object':
        cp.cuda.Device().synchronize()
    elif deed == 'free':
        cp.get_default_memory_pool().free_all_blocks()
    else:
        fn.clear()


def compared(cp: Any, program: Threads) -> tuple[str, int, int]:
    """Run a program plainly, one thread after the other, and graphed, all at once: the first difference or '', how many
    calls were made, and how often a graph was launched."""
    plain, graphed = [], []
    for name, options in program.functions:
        text = f'def work(o, x, k):\n    {BODIES[name]}\n'
        for made, over in ((plain, lambda fn: fn), (graphed, ck.graphed(**options))):
            home = {'cp': cp, 'np': np}
            exec(compile(text, f'<{name}>', 'exec'), home)
            made.append(over(home['work']))
    everyone = range(len(program.plans))
    wanted = [one_thread(cp, program, plain, number) for number in everyone]
    with ThreadPoolExecutor(len(program.plans)) as threads:
        found = list(threads.map(partial(one_thread, cp, program, graphed), everyone))
    launches = sum(variant.launches for fn in graphed for variant in fn.variants)
    for fn in graphed:
        fn.clear()
    calls = sum(map(len, found))
    for number in everyone:
        for call, (want, got) in enumerate(zip(wanted[number], found[number])):
            if want != got:
                return f'thread {number}, call {call}: {want}; graphed: {got}', calls, launches
    return '' if wanted == found else 'a thread has ended early', calls, launches


@contextlib.contextmanager
def hastily(seconds: float = 1e-5) -> Iterator[None]:
    """Let threads change as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def kind(cp: Any) -> Kind:
    """These programs, on this CuPy."""

    def run(_choices: Choices, one: Threads, _number: int) -> Outcome:
        with hastily():
            found, calls, launched = compared(cp, one)
        return Outcome(found, Counter(calls=calls, launched=launched))

    return Kind(threads, run)

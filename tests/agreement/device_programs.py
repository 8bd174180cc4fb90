"""Random programs on two devices, run plainly and graphed: values, devices, current streams and memory have to agree.

Work that changes device or stream is ordered by events or by waiting, so that a program
has no race of its own: streams that are late in any order give what streams in time do.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.agreement.choices import Choices
from tests.agreement.program_runner import settled
from tests.agreement.trying import Kind, Outcome

CALLS = 6
OPTIONS: tuple[dict[str, Any], ...] = ({}, {}, {}, {'check': True}, {'lanes': 'auto'}, {'checks': 'later'})
PRELUDE = Path(__file__).with_name('device_prelude.txt').read_text()
#: What is done with an array {a} of device {d}, and another one {b} there; it gives the array {y}.
MAKING = (
    '{y} = {a} * 0.5 + {b}', '{y} = cp.tanh({a}) + {b}', '{y} = {a} - {b} * 0.25', '{y} = {a} * n + {b}',
    '{y} = {a} + cp.asarray([1.0, 2.0, 3.0, 4.0])', '{y} = {a} * 0.5 + G[{d}].random(4)',
    '{y} = {a}[[0, 2, 1, 3]]', '{y} = cp.concatenate([{a}[:2], {b}[2:]])', '{y} = {a} + K[{d}]', '{y} = cp.sort({a})',
    '{y} = {a} * 0.5 + cp.random.random(4)', '{y} = {a} * 0.5 + R[{d}].standard_normal(4)',
    '{y} = cp.tanh(cp.linalg.eigvalsh(cp.outer({a}, {a}) * 0.01 + cp.eye(4)))', '{y} = abs(cp.fft.fft({a})) * 0.25',
    '{y} = cp.tanh(cp.linalg.solve(cp.eye(4) * 3 + cp.outer({a}, {a}) * 0.01, {b}))',
    '{y} = cp.where({a} > 1, {a}, {b})',
    '{y} = {a} / (float(({a} * {a}).sum()) + 1.5)', '{y} = {a} * (0.5 if float({a}.max()) > 2 else 0.25)',
    '{y} = {a} * (0.5 if cp.cuda.get_current_stream() == cp.cuda.Stream.null else 0.25)', '{y} = cp.asarray({c})',
    '{y} = {a} * (cp.cuda.runtime.getDevice() + 1)', '{y} = {a}[{a} > 1].sum() * 0.1 + {b}',
)  # fmt: skip
CHANGING = (
    'K[{d}][...] = K[{d}] * 0.5 + {a}', 'K[{d}] += cp.tanh({a})', '{a} *= 0.5', 'del {a}', '{a}[1:] += 1',
    'if float({a}.sum()) > 4:\n    K[{d}] *= 0.5', 'K[{d}][:2] = {a}[:2]', 'K[{d}][::2] += {a}[::2]',
    'VALUES.append(float({a}.sum()))',
)  # fmt: skip


@dataclass
class DeviceProgram:
    """A function, and for each call: the current streams of both devices, and what the caller does there before."""

    source: str
    calls: list[str]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        calls = '\n'.join(f'# call {n}\n{call}' for n, call in enumerate(self.calls))
        return f'{self.source.removeprefix(PRELUDE)}\n# options: {self.options}\n{calls}'


def program(choices: Choices) -> DeviceProgram:
    """Draw a program."""
    known: list[list[str]] = [['x'], []]
    lines = _block(choices, known, 0, 0)
    back = [f'{one}' for one in known[0]] + [f'cp.asarray({one})' for one in known[1][:1] * choices.below(2)]
    back += known[1][-1:] * choices.below(2) + ['VALUES']
    body = '\n'.join(f'    {line}' for line in ['VALUES = []', *lines, f'return [{", ".join(back)}]'])
    order = choices.pick(([0] * CALLS, [1] * CALLS, [0, 0, 0, 1, 1, 0], [1, 1, 0, 2, 1, 0]))
    numbers = choices.pick(('1', '1', 'n % 2', 'n'))
    calls = []
    for n in range(CALLS):
        before = choices.pick(('', 'K[{d}] *= 0.5', 'K[{d}][...] = LOG[{d}][{n}] + {n}', 'R[{d}].seed({n})'))
        work = [f'LOG[{d}][{n}] = K[{d}]\n{before.format(d=d, n=n)}' for d in (0, 1)]
        calls.append(_call(order[n], work, numbers.replace('n', str(n)), n))
    return DeviceProgram(f'{PRELUDE}\ndef fn(x, n):\n{body}\n', calls, choices.pick(OPTIONS))


def _call(stream: int, work: list[str], number: str, n: int) -> str:
    """The source of one call: nobody waits, but where other streams become current."""
    lines = ['Device(0).synchronize()', 'with Device(1):', '    Device().synchronize()', f'    S[1][{stream}].use()']
    lines += [*[f'    {line}' for line in work[1].splitlines()], f'with S[0][{stream}]:']
    lines += [f'    {line}' for line in (*work[0].splitlines(), f'x = cp.arange(4.0) + {n % 3}')]
    return '\n'.join([*lines, '    try:', f'        r = over(x, {number})', '    finally:', '        now()'])


def _block(choices: Choices, known: list[list[str]], device: int, depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(choices.below(4) + 1):
        if choices.below(3) == 2 and depth < 2:
            lines += _elsewhere(choices, known, depth)
            continue
        if not known[device]:
            known[device].append(choices.name('y'))
            lines.append(f'{known[device][0]} = cp.asarray({known[1 - device][0]})')
        a, b, c = (
            choices.pick(known[device]),
            choices.pick(known[device]),
            choices.pick(known[1 - device] or known[device]),
        )
        names = {'d': device, 'a': a, 'b': b, 'c': c, 'y': choices.name('y')}
        if choices.below(3):
            lines.append(choices.pick(MAKING).format(**names))
            known[device].append(str(names['y']))
            continue
        change = choices.pick(CHANGING)
        if change == 'del {a}':
            if a == 'x' or len(known[device]) < 2:
                continue
            known[device].remove(a)
        lines += change.format(**names).splitlines()
    return lines or ['pass']


def _elsewhere(choices: Choices, known: list[list[str]], depth: int) -> list[str]:
    device, stream, how = (
        choices.pick((1, 1, 0)),
        choices.pick(('', '', 1, 2)),
        choices.pick(('event', 'event', 'stream', 'device')),
    )
    text = 'None' if stream == '' else f'S[{device}][{stream}]'
    inner = _block(choices, known, device, depth + 1)
    if choices.once_in(6):
        return ['try:', f'    with Over({device}, {text}, {how!r}):', *[f'        {one}' for one in inner],
                '        raise KeyError', 'except KeyError:', '    pass']  # fmt: skip
    return [f'with Over({device}, {text}, {how!r}):', *[f'    {one}' for one in inner]]


# -- running ------------------------------------------------------------------------------------------------------


def ran(one: DeviceProgram, graphed: bool, seed: int, late: bool) -> tuple[list[str], int]:
    """What a caller sees of each call, of the arrays and the memory at the end; and how many calls were launched."""
    install(SimulatedDevice(seed, devices=2), late=late)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return _ran(one, graphed, sys.modules['cupy'])
    finally:
        uninstall()


def _ran(one: DeviceProgram, graphed: bool, cp: Any) -> tuple[list[str], int]:
    names: dict[str, Any] = {}
    exec(compile(one.source, 'device_program.py', 'exec'), names)
    over: Any = ck.graphed(names['fn'], **one.options) if graphed else names['fn']
    seen: list[str] = []
    results: list[Any] = []

    def now() -> None:
        current = [ours.index(cp.cuda.get_current_stream(device)) for device, ours in enumerate(names['S'])]
        seen.append(f'{cp.cuda.runtime.getDevice()} {current}')

    names.update(over=partial(settled, False, over), Device=cp.cuda.Device, LOG=[], now=now)
    for device in (0, 1):
        with cp.cuda.Device(device):
            names['LOG'].append(cp.zeros((CALLS, 4)))
    for call in one.calls:
        cp.cuda.Device(0).use()
        try:
            exec(call, names)
            results.append(names.pop('r'))
        except (KeyError, NameError, UnboundLocalError) as error:
            results.append(type(error).__name__)
    cp.cuda.Device(0).use()
    for device in (0, 1):
        cp.cuda.Device(device).synchronize()
    seen += [_shown(cp, result) for result in (*results, names['K'], names['LOG'], names['R'][0].random_sample(2))]
    launched = sum(variant.launches for variant in getattr(over, 'variants', ()))
    with suppress(AttributeError):
        over.clear()
    del over, results
    names.clear()
    gc.collect()
    return [*seen, *[_used(cp, device) for device in (0, 1)]], launched


def _shown(cp: Any, value: Any) -> str:
    if isinstance(value, cp.ndarray):
        with cp.cuda.Device(value.device.id):
            return f'device {value.device.id}: {value.get().tolist()}'
    return str([_shown(cp, one) for one in value]) if isinstance(value, list) else repr(value)


def _used(cp: Any, device: int) -> str:
    with cp.cuda.Device(device):
        cp.cuda.Stream.null.use()
        return f'device {device} has {cp.get_default_memory_pool().used_bytes()} bytes in use'


def difference(one: DeviceProgram, seeds: tuple[int, ...] = (1, 2)) -> tuple[str, int]:
    """The first difference, in words, or ''; and how many calls were launched."""
    wanted, _ = ran(one, False, 0, False)
    for seed in seeds:
        if ran(one, False, seed, True)[0] != wanted:
            return '', -1  # it has a race of its own
    launched = 0
    for seed, late in ((0, False), *((seed, True) for seed in seeds)):
        found, launched = ran(one, True, seed, late)
        for number, (mine, theirs) in enumerate(zip(wanted, found)):
            if mine != theirs:
                return f'seed {seed}, late {late}, sight {number}: {mine}; graphed: {theirs}', launched
    return '', launched


@contextmanager
def kind(_there: bool = False, seeds: tuple[int, ...] = (1, 2)) -> Iterator[Kind]:
    """These programs, on the simulated device."""

    def run(_choices: Choices, one: DeviceProgram, _number: int) -> Outcome:
        found, launched = difference(one, seeds)
        return Outcome(found, Counter(launched=max(launched, 0), raced=int(launched < 0)))

    yield Kind(program, run, 'devices ', 60)

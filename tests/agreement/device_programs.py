"""Random programs on two devices, run plainly and graphed: values, devices and current streams have to agree.

Work that changes device or stream is ordered by events or by waiting, so that a program
has no race of its own: streams that are late in any order give what streams in time do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.agreement.choices import Choices
from tests.agreement.program_runner import Machine, Program
from tests.agreement.trying import Kind

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


def program(choices: Choices) -> Program:
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
    source = f'{PRELUDE}\ndef fn(x, n):\n{body}\nf = over(fn)\n'
    return Program(source, [*calls, 'NEXT = R[0].random_sample(2)\nat_home()'], True, choices.pick(OPTIONS))


def _call(stream: int, work: list[str], number: str, n: int) -> str:
    """The source of one call: nobody waits, but where other streams become current."""
    lines = ['cp.cuda.Device(0).use()', 'cp.cuda.Device(0).synchronize()', 'with cp.cuda.Device(1):']
    lines += ['    cp.cuda.Device().synchronize()', f'    S[1][{stream}].use()']
    lines += [*[f'    {line}' for line in work[1].splitlines()], f'with S[0][{stream}]:']
    lines += [f'    {line}' for line in (*work[0].splitlines(), f'x = cp.arange(4.0) + {n % 3}')]
    lines += ['    try:', f'        r = settled(False, f, x, {number})', '    finally:', '        now()']
    return '\n'.join([*lines, 'SEEN.append((r, [one.device.id for one in r[:-1]]))'])


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


@contextmanager
def kind(there: bool = False) -> Iterator[Kind]:
    """These programs, on the CuPy that is there or on a simulated one."""
    with Machine(there) as machine:
        yield Kind(program, lambda _choices, one, _number: machine.compared(one), 'devices ', 60)

"""Random Python programs around one function over arrays, run plainly and graphed: they have to agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import indent

from tests.agreement.choices import Choices
from tests.agreement.program_runner import Machine, Program
from tests.agreement.python_roots import Frame, Root, root
from tests.agreement.python_statements import (
    PLAIN,
    USES_OF_ARRAYS,
    USES_OF_NUMBERS,
    USUAL_DEEDS,
    USUAL_SURROUNDINGS,
    WEIGHTED_DEEDS,
    WEIGHTED_SURROUNDINGS,
    Deed,
)
from tests.agreement.python_values import PRELUDE, value
from tests.agreement.trying import Kind

#: How the function is made: most are plain functions.
SHAPES = ('function',) * 6 + ('method',) * 3 + ('static', 'class', 'instance', 'bound', 'partial')
ODD_SHAPES = (*SHAPES, 'async', 'generator')
FORMS = (
    'y', 'y', 'y', 'y', '(y, 1.0)', '[y, y]', "{'y': y, 'n': 2}", '(y, x)', 'x', 'y[1:]', '(y, y[1:])', 'Pair(y, 1.0)',
    'Data(y)', '(y, float(y.sum()))', '(y, [x, y])', 'None', 'y.sum()', '(y, y.T)', 'Plain(y)', '(y, cp.asnumpy(y))',
    '(y, y.shape)', 'float(y.sum())', '[[y], (y,)]', '(y, {1.0, 2.0})', '(y, Colour.RED)',
)  # fmt: skip
ARRAYS = """
BASE = cp.arange(8.0)
X = [cp.array([1.0, 2.0, 3.0]), cp.array([0.5, 2.5, 1.0]), cp.array([1, 2, 3])]
X += [cp.array([[1.0, 2.0, 0.5], [3.0, 1.0, 2.0]])]
X += [BASE[1:4], BASE[2:5], X[0][::-1], cp.array([1.0, 2.0, 3.0], cp.float32), cp.asfortranarray(X[3]), BASE[:1]]
R = []
"""


def program(choices: Choices) -> Program:
    """Draw a program."""
    frame = Frame()
    choices.odd = choices.below(5) == 4
    shape = choices.pick(ODD_SHAPES if choices.odd else SHAPES)
    roots = [root(choices, frame, value(choices), shape == 'method') for _ in range(choices.pick((1, 1, 2, 2, 3, 0)))]
    deed = choices.pick(WEIGHTED_DEEDS if choices.odd else USUAL_DEEDS) if choices.below(5) > 2 else None
    second = choices.once_in(4)
    if deed is not None and deed.before:
        frame.before.append(deed.before)
    body = _body(choices, frame, roots, deed, second, shape)
    later = shape == 'function' and deed is None and choices.once_in(8)
    options: dict[str, object] = {'checks': 'later'} if later else {}
    if choices.once_in(10):
        options['limit'] = choices.pick((1, 2))
    steps = _steps(choices, frame, roots, deed, second, shape, later)
    if choices.once_in(3):
        _surround(choices, frame, body, steps)
    source = PRELUDE + ARRAYS + '\n'.join(frame.before) + '\n' + _function(frame, '\n'.join(body), shape, second)
    return Program(source, steps, deed is not None and deed.late, options)


def _surround(choices: Choices, frame: Frame, body: list[str], steps: list[str]) -> None:
    """Let the function also do something with what is around it, which changes between calls, too."""
    one = choices.pick(WEIGHTED_SURROUNDINGS if choices.odd else USUAL_SURROUNDINGS)
    frame.before.append(one.before)
    first = len(frame.imports) + 1
    body.insert(first + choices.below(len(body) - first), one.body)
    for number, step in reversed(list(enumerate(steps))):
        if 'r = ' not in step and choices.below(4) < 3:
            steps.insert(number + 1, choices.pick(one.changes))


def _body(choices: Choices, frame: Frame, roots: list[Root], deed: Deed | None, second: bool, shape: str) -> list[str]:
    """The statements of the function: imports, what makes ``y``, what is done with it, and its end."""
    begin = (
        ('y = x * 2.0', 'y = x + 1.0', 'y = x.copy()', 'y = x') if not second else ('y = x + z', 'y = x * z', 'y = z')
    )
    lines: list[str] = []
    for one in roots:
        read = one.value.read(choices, one.inside)
        use = choices.pick(USES_OF_ARRAYS if one.value.leaf.sort == 'array' else USES_OF_NUMBERS)
        lines.append(use.format(v=f'({read})' if '\n' not in use and not use.startswith('{v}') else read))
    lines += [choices.pick(PLAIN) for _ in range(choices.pick((0, 0, 1, 2)))]
    at = choices.below(len(lines) + 1)
    if deed is not None and 'return' not in deed.body:
        lines.insert(at, deed.body)
    form = choices.pick(FORMS) if not (deed and deed.after) else 'y'
    if roots and choices.odd and choices.once_in(4):
        form = f'(y, {roots[0].inside})' if not (deed and deed.after) else 'y'
    if choices.once_in(15) and not (deed and deed.after):
        form = 'x' if form == 'y' else form
    end = deed.body if deed is not None and 'return' in deed.body else f'return {form}'
    if shape == 'generator':
        end = end.replace('return', 'yield')
    return [*frame.imports, choices.pick(begin), *lines, end]


def _parameters(frame: Frame, shape: str, second: bool) -> str:
    parts = ['self'] if shape in ('method', 'class', 'instance', 'bound') else []
    parts += ['x'] + (['z'] if second else [])
    parts += [name for name, _ in frame.arguments]
    parts += [f'{name}={source}' for name, source in frame.defaults]
    parts += ['*'] if frame.keywords else []
    parts += [f'{name}={source}' for name, source in frame.keywords]
    return ', '.join(parts)


def _function(frame: Frame, body: str, shape: str, second: bool) -> str:
    head = 'async def' if shape == 'async' else 'def'
    text = f'{head} work({_parameters(frame, shape, second)}):\n{indent(body, "    ")}\n'
    if frame.closed:
        inner = ''.join(f'{name} = {written}\n' for name, written in frame.closed) + text
        for name, _written in frame.closed:
            inner += f'def get_{name}(): return {name}\ndef set_{name}(v):\n    nonlocal {name}\n    {name} = v\n'
        pairs = ', '.join(f'get_{name}, set_{name}' for name, _written in frame.closed)
        text = f'def make():\n{indent(inner, "    ")}    return work, {pairs}\nwork, {pairs} = make()\n'
    return text + _made(frame, shape)


def _made(frame: Frame, shape: str) -> str:
    if shape in ('function', 'async', 'generator'):
        return 'f = over(work)\n'
    if shape == 'partial':
        return 'f = over(functools.partial(work))\n'
    wrap = {'static': 'over(staticmethod(work))', 'class': 'over(classmethod(work))', 'method': 'over(work)'}
    lines = [f'    {name} = {source}' for name, source in frame.class_attributes]
    lines += [f'    f = {wrap.get(shape, "work")}', '    __call__ = work' if shape == 'instance' else '    pass']
    lines += ['    def named(self, name): return getattr(self, name)', '    def __init__(self):', '        pass']
    lines += [f'        self.{name} = {source}' for name, source in frame.attributes]
    made = 'class First: pass\nclass Model(First):\n' + '\n'.join(lines) + '\nMODEL = Model()\n'
    if shape == 'instance':
        return f'{made}f = over(MODEL)\n'
    if shape in ('static', 'class'):
        return f'{made}f = work\n'
    return f'{made}f = over(MODEL.f)\n' if shape == 'bound' else f"{made}f = Model.__dict__['f']\n"


def _call(choices: Choices, frame: Frame, second: bool, shape: str, later: bool, usual: str) -> str:
    name = {'method': 'MODEL.f', 'static': choices.pick(('MODEL.f', 'Model.f')), 'class': 'Model.f'}.get(shape, 'f')
    first = usual if choices.below(8) < 7 else choices.pick((*(f'X[{n}]' for n in range(10)), 'R[-1]', 'R[0]'))
    given = [first]
    if second:
        given.append(
            'X[1]' if choices.below(8) < 7 else choices.pick((first, 'X[0]', 'X[4]', 'X[5]', 'BASE[1:4]', 'X[3]'))
        )
    by_name = choices.once_in(4)
    given += [f'{key}={text}' if by_name else text for key, text in frame.arguments]
    call = f'{name}({", ".join(given)})'
    if later:
        clears = choices.once_in(6)
        call = f'settled({clears}, {", ".join([name, *given])})'
    return {'async': f'awaited({call})', 'generator': f'next({call})'}.get(shape, call)


def _steps(
    choices: Choices, frame: Frame, roots: list[Root], deed: Deed | None, second: bool, shape: str, later: bool
) -> list[str]:
    steps: list[str] = []
    usual = choices.pick(('X[0]', 'X[0]', 'X[0]', 'X[1]', 'X[3]', 'X[4]', 'X[2]'))
    for phase in range(choices.pick((2, 2, 3, 3))):
        if phase:
            steps.append(_change(choices, roots, deed))
        for _ in range(choices.pick((5, 6, 7, 5))):
            call = f'r = {_call(choices, frame, second, shape, later, usual)}\nR.append(r)'
            if deed is not None:
                call = '\n'.join(part for part in (deed.first, call.replace('\nR', f'\n{deed.after}\nR')) if part)
            steps.append(call.replace('\n\n', '\n'))
    return steps


def _change(choices: Choices, roots: list[Root], deed: Deed | None) -> str:
    """Write something that happens between calls."""
    which = choices.below(8)
    if deed is not None and deed.changes and which < 3:
        return choices.pick(deed.changes)
    if roots and which < 7:
        one = choices.pick(roots)
        found = one.value.change(choices, one.outside) if which < 5 else None
        return found or choices.pick(one.binds).format(n=one.value.source())
    return choices.pick(('X[0] += 1.0', 'X[0] = X[0] + 1.0', 'BASE[...] = 2.0', 'X[1] = X[1][::-1].copy()', 'R.clear()',
                         'X[0] = BASE[3:6]', 'R and isinstance(R[-1], cp.ndarray) and R[-1].fill(1.0)'))  # fmt: skip


@contextmanager
def kind(there: bool = False) -> Iterator[Kind]:
    """These programs, on the CuPy that is there or on a simulated one."""
    with Machine(there) as machine:
        yield Kind(program, lambda _choices, one, _number: machine.compared(one), tries=400)

"""Where a value lives that a function reads, how the function names it, and how it is bound anew from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.agreement.choices import Choices
from tests.agreement.python_values import Value


@dataclass
class Frame:
    """The parts of the program around its function, filled in as values find their places."""

    before: list[str] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    defaults: list[tuple[str, str]] = field(default_factory=list)
    keywords: list[tuple[str, str]] = field(default_factory=list)
    arguments: list[tuple[str, str]] = field(default_factory=list)
    attributes: list[tuple[str, str]] = field(default_factory=list)
    class_attributes: list[tuple[str, str]] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Root:
    """A value in its place. ``inside``: how the function names it; ``outside``: how a change does; ``binds``: anew."""

    value: Value
    inside: str
    outside: str
    binds: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A place that values have; ``@`` is the value's name in it, and ``{n}`` a new value.

    ``written``: the name to which the program binds the value beforehand, or ''; ``part``: the list of the frame that
    gets the name, and that one or the value itself; ``inside``, ``outside`` and ``binds``: as of roots.
    """

    letter: str
    inside: tuple[str, ...]
    outside: str
    binds: tuple[str, ...]
    written: str = ''
    part: str = ''
    odd: tuple[str, ...] = ()

    def __call__(self, choices: Choices, frame: Frame, value: Value) -> Root:
        """Put a value there."""
        name, source = choices.name(self.letter), value.source()
        if self.written:
            frame.before.append(f'{self.written} = {source}'.replace('@', name, 1))
        if self.part:
            getattr(frame, self.part).append((name, self.written.replace('@', name) or source))
        ways = self.inside + self.odd if choices.odd else self.inside
        inside = choices.pick(ways) if len(ways) > 1 else ways[0]
        found = (one.replace('@', name) for one in (inside, self.outside, *self.binds))
        return Root(value, next(found), next(found), tuple(found))


_GLOBAL = Place(
    'g', ('@', '@', '(lambda: @)()', '[@ for _ in (1,)][0]'), '@', ('@ = {n}', "globals()['@'] = {n}", 'del @'), '@',
    odd=('(0, @)[1]', 'max([@], key=id)', "globals()['@']", "eval('@')", "globals().get('@', 3.0)"),
)  # fmt: skip
#: In a module of Python, which does not have this name unless the program gives it.
_LIBRARY = Place(
    'n', ('math.@', 'math.@', "getattr(math, '@', 1.5)", "vars(math).get('@', 2.5)"), 'math.@',
    ('math.@ = {n}', 'del math.@'), 'math.@',
)  # fmt: skip
_CLOSURE = Place('c', ('@',), 'get_@()', ('set_@({n})',), '_@', 'closed')
_KEYWORD = Place(
    'k', ('@',), "f.__kwdefaults__['@']",
    ("f.__kwdefaults__['@'] = {n}", "f.__kwdefaults__ = {{**f.__kwdefaults__, '@': {n}}}"), part='keywords',
)  # fmt: skip
_ARGUMENT = Place('a', ('@',), 'A_@', ('A_@ = {n}',), 'A_@', 'arguments')
_ATTRIBUTE = Place(
    's', ('self.@', "getattr(self, '@')", "vars(self)['@']", "self.named('@')"), 'MODEL.@',
    ('MODEL.@ = {n}', "vars(MODEL)['@'] = {n}"), part='attributes',
)  # fmt: skip
_CLASS_ATTRIBUTE = Place(
    't', ('self.@', 'type(self).@', 'Model.@', "getattr(Model, '@')"), 'Model.@',
    ('Model.@ = {n}', 'MODEL.@ = {n}', 'First.@ = {n}', "setattr(Model, '@', {n})"), part='class_attributes',
)  # fmt: skip


def _module(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('m')
    frame.before.append(f'side.{name} = {value.source()}')
    if choices.once_in(3):
        line, inside = choices.pick((
            (f'from settings_of_program import {name}', name),
            ('import settings_of_program as mine', f'mine.{name}'),
        ))  # fmt: skip
        frame.imports.append(line)
    else:
        ways = [f'side.{name}', f"getattr(side, '{name}')", f"vars(side)['{name}']"]
        ways += [f"__import__('settings_of_program').{name}"] if choices.odd else []
        inside = choices.pick(ways)
    return Root(value, inside, f'side.{name}', (f'side.{name} = {{n}}', f"setattr(side, '{name}', {{n}})"))


def _default(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('d')
    number = len(frame.defaults)
    frame.defaults.append((name, value.source()))
    rest = f'*f.__defaults__[:{number}], {{n}}, *f.__defaults__[{number + 1}:]'
    return Root(value, name, f'f.__defaults__[{number}]', (f'f.__defaults__ = ({rest},)',))


def _helper(choices: Choices, frame: Frame, value: Value) -> Root:
    kept, name = choices.name('h'), choices.name('help')
    frame.before.append(f'{kept} = {value.source()}')
    over, body, call = choices.pick((
        ('', f'return {kept}', f'{name}()'),
        ('', f'return (lambda: {kept})()', f'{name}()'),
        ('', f'yield {kept}', f'next({name}())'),
        ('', f'yield {kept}', f'[v for v in {name}()][0]'),
        ('@functools.lru_cache(None)' if choices.odd else '', f'return {kept}', f'{name}()'),
        ('@functools.wraps(same)', f'return {kept}', f'{name}()'),
        ('@logged', f'return {kept}', f'{name}()'),
        ('', f'return {name}.state', f'{name}()'),
        ('', f'return {kept}', f'functools.partial({name})()'),
        ('', f'return {kept}', f'list(map(lambda _: {name}(), (1,)))[0]'),
    ))  # fmt: skip
    if over == '@functools.wraps(same)':
        frame.before.append(
            f'def {name}(): return {kept}\n{name} = functools.wraps({name})(lambda inner={name}: inner())'
        )
    else:
        frame.before.append(f'{over}\ndef {name}():\n    {body}\n'.lstrip())
    if body.endswith('.state'):
        frame.before.append(f'{name}.state = {kept}')
        return Root(value, call, f'{name}.state', (f'{name}.state = {{n}}', f'{name} = lambda: {{n}}'))
    extra = (f'{name}.cache_clear()', f'{kept} = {{n}}; {name}.cache_clear()') if 'lru' in over else ()
    return Root(value, call, kept, (f'{kept} = {{n}}', f'{name} = lambda: iter(({{n}},))' if 'yield' in body
                                    else f'{name} = lambda: {{n}}', *extra))  # fmt: skip


PLACES = (_GLOBAL, _GLOBAL, _module, _LIBRARY, _CLOSURE, _default, _KEYWORD, _ARGUMENT, _ARGUMENT, _helper)
#: Those that a method has besides.
OF_METHODS = (_ATTRIBUTE, _ATTRIBUTE, _CLASS_ATTRIBUTE)


def root(choices: Choices, frame: Frame, value: Value, method: bool) -> Root:
    """Put a value into a place of the program."""
    return choices.pick(PLACES + OF_METHODS if method else PLACES)(choices, frame, value)

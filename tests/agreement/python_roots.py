"""Where a value lives that a function reads, how the function names it, and how it is bound anew from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.agreement.choices import Choices
from tests.agreement.python_values import Value


@dataclass
class Frame:
    """The parts of the program around its function, filled in as values find their places."""

    before: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
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


def _global(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('g')
    frame.before.append(f'{name} = {value.source()}')
    ways = [name, name, f'(lambda: {name})()', f'[{name} for _ in (1,)][0]']
    if choices.odd:
        ways += [f'(0, {name})[1]', f'max([{name}], key=id)']
        ways += [f"globals()['{name}']", f"eval('{name}')", f"globals().get('{name}', 3.0)"]
    inside = choices.pick(ways)
    return Root(value, inside, name, (f'{name} = {{n}}', f"globals()['{name}'] = {{n}}", f'del {name}'))


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


def _library(choices: Choices, frame: Frame, value: Value) -> Root:
    """In a module of Python, which does not have this name unless the program gives it."""
    name = choices.name('n')
    frame.before.append(f'math.{name} = {value.source()}')
    where = f'math.{name}'
    ways = [where, where, f"getattr(math, '{name}', 1.5)", f"vars(math).get('{name}', 2.5)"]
    return Root(value, choices.pick(ways), where, (f'{where} = {{n}}', f'del {where}'))


def _closure(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('c')
    frame.before.append(f'_{name} = {value.source()}')
    frame.closed.append(name)
    return Root(value, name, f'get_{name}()', (f'set_{name}({{n}})',))


def _default(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('d')
    number = len(frame.defaults)
    frame.defaults.append((name, value.source()))
    rest = f'*f.__defaults__[:{number}], {{n}}, *f.__defaults__[{number + 1}:]'
    return Root(value, name, f'f.__defaults__[{number}]', (f'f.__defaults__ = ({rest},)',))


def _keyword(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('k')
    frame.keywords.append((name, value.source()))
    where = f"f.__kwdefaults__['{name}']"
    return Root(
        value, name, where, (f'{where} = {{n}}', f'f.__kwdefaults__ = {{{{**f.__kwdefaults__, {name!r}: {{n}}}}}}')
    )


def _argument(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('a')
    frame.before.append(f'A_{name} = {value.source()}')
    frame.arguments.append((name, f'A_{name}'))
    return Root(value, name, f'A_{name}', (f'A_{name} = {{n}}',))


def _attribute(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('s')
    frame.attributes.append((name, value.source()))
    inside = choices.pick(
        (f'self.{name}', f"getattr(self, '{name}')", f"vars(self)['{name}']", f"self.named('{name}')")
    )
    return Root(value, inside, f'MODEL.{name}', (f'MODEL.{name} = {{n}}', f"vars(MODEL)['{name}'] = {{n}}"))


def _class_attribute(choices: Choices, frame: Frame, value: Value) -> Root:
    name = choices.name('t')
    frame.class_attributes.append((name, value.source()))
    inside = choices.pick((f'self.{name}', f'type(self).{name}', f'Model.{name}', f"getattr(Model, '{name}')"))
    binds = (
        f'Model.{name} = {{n}}',
        f'MODEL.{name} = {{n}}',
        f'First.{name} = {{n}}',
        f"setattr(Model, '{name}', {{n}})",
    )
    return Root(value, inside, f'Model.{name}', binds)


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


PLACES = (_global, _global, _module, _library, _closure, _default, _keyword, _argument, _argument, _helper)
#: Those that a method has besides.
OF_METHODS = (_attribute, _attribute, _class_attribute)


def root(choices: Choices, frame: Frame, value: Value, method: bool) -> Root:
    """Put a value into a place of the program."""
    return choices.pick(PLACES + OF_METHODS if method else PLACES)(choices, frame, value)

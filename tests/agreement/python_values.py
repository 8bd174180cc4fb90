"""Values that a program keeps, nested at random: how they are written, read one step deep, and changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.agreement.choices import Choices

#: What every program begins with: modules, and the classes that values are made of.
PRELUDE = Path(__file__).with_name('prelude.txt').read_text()


@dataclass(frozen=True)
class Kind:
    """A kind of value that holds one other. ``{v}`` stands for what it holds, ``{o}`` for itself.

    ``outside``: how a change reaches what it holds, '' if it can't. ``changes``: statements; ``{n}`` is a new inner
    value. ``odd``: functions that read such a thing run eagerly. A read with ``*`` in it is for numbers, at the end.
    """

    source: str
    reads: tuple[str, ...]
    outside: str
    changes: tuple[str, ...]
    weight: int = 4
    odd: bool = False


_ATTRIBUTE = (
    '{o}.first', "getattr({o}, 'first')", 'getattr({o}, NAME)', "getattr({o}, 'fi' + 'rst')",
    "operator.attrgetter('first')({o})", "[getattr({o}, n) for n in ('first',)][0]", "getattr({o}, 'first', 5.0)",
)  # fmt: skip
_BY_DICT = (*_ATTRIBUTE, "vars({o})['first']", "{o}.__dict__['first']", "vars({o}).get('first', 9.0)")
_ITEM = ("{o}['first']", "{o}.get('first')", "list({o}.values())[0]", "[v for k, v in {o}.items() if k == 'first'][0]",
         "operator.itemgetter('first')({o})", "{o}.get('later', {o}['first'])", "dict({o})['first']")  # fmt: skip
_PLACE = ('{o}[0]', '{o}[-2]', 'next(iter({o}))', '[v for v in {o}][0]', 'operator.itemgetter(0)({o})',
          'list(reversed({o}))[1]', 'sorted({o}, key=lambda v: v is TWO)[0]', 'list({o})[0]')  # fmt: skip
_SET_ATTRIBUTE = ('{o}.first = {n}', "setattr({o}, 'first', {n})")
_SET_ITEM = ("{o}['first'] = {n}", '{o}.update(first={n})', "{o}['later'] = {n}", "del {o}['first']")
_SET_PLACE = ('{o}[0] = {n}', '{o}.insert(0, {n})', '{o}.pop(0); {o}.insert(0, {n})', '{o}.append({n})')

KINDS: tuple[Kind, ...] = (
    Kind('[{v}, TWO]', _PLACE, '{o}[0]', (*_SET_PLACE, '{o}.reverse()', '{o}[:] = [{n}, TWO]'), 8),
    Kind("{{'first': {v}, 'n': 2.0}}", _ITEM, "{o}['first']", (*_SET_ITEM, '{o}.clear()'), 8),
    Kind('({v}, TWO)', _PLACE, '{o}[0]', (), 6),
    Kind('Plain({v})', _BY_DICT, '{o}.first', (*_SET_ATTRIBUTE, "vars({o})['first'] = {n}", 'del {o}.first',
         '{o}.__dict__ = dict(first={n})', '{o}.__class__ = Base', 'Plain.first = {n}',
         'Plain.__getattribute__ = lambda s, n: 5.0'), 10),
    Kind('Slots({v})', _ATTRIBUTE, '{o}.first', (*_SET_ATTRIBUTE, 'del {o}.first')),
    Kind('Asked({v})', (*_ATTRIBUTE, "{o}._values['first']"), "{o}._values['first']",
         ("{o}._values['first'] = {n}", '{o}.first = {n}', 'Asked.first = {n}', '{o}._values = dict(first={n})')),
    Kind('Shown({v})', (*_ATTRIBUTE, '{o}._first'), '{o}._first',
         ('{o}._first = {n}', '{o}.first = {n}', 'Shown.factor = 3.0', '{o}.factor = 0.5',
          'Shown.first = property(lambda s: 7.0)')),
    Kind('Described({v})', _ATTRIBUTE, '{o}.first', ('{o}.first = {n}', "{o}.__dict__['_first'] = {n}",
         'Field.__get__ = lambda s, v, o=None: 3.0')),
    Kind('Data({v})', (*_BY_DICT, 'getattr({o}, dataclasses.fields({o})[0].name)', 'dataclasses.replace({o}).first'),
         '{o}.first', _SET_ATTRIBUTE, 6),
    Kind('Whole({v})', _BY_DICT, '{o}.first', _SET_ATTRIBUTE),
    Kind('Pair({v}, 2.0)', ('{o}.first', '{o}[0]', "{o}._asdict()['first']", 'getattr({o}, {o}._fields[0])'),
         '{o}.first', ()),
    Kind('Child({v})', ('{o}.second', '{o}.other()', '{o}.second * {o}.first', '{o}.second * Child.first',
         '{o}.second * super(Child, {o}).first'), '{o}.second',
         ('{o}.second = {n}', 'Base.first = 6.0', 'Child.first = 0.5', '{o}.first = 8.0',
          "Child.__bases__ = (type('Other', (Base,), {{'first': 2.5}}),)", 'Base.other = lambda s: 2.0',
          'Child.other = lambda s: 3.0', '{o}.other = lambda: 1.5'), 6),
    Kind('Held({v})', ('{o}[7]', '{o}()', 'next(iter({o}))', '[*{o}][0]', '{o}[0] * len({o})'), '{o}.first',
         ('{o}.first = {n}', 'Held.__getitem__ = lambda s, k: 2.5', 'Held.__call__ = lambda s: 1.5',
          'Held.__len__ = lambda s: 3', 'Held.__iter__ = lambda s: iter((0.5,))', 'Held.__bool__ = lambda s: False')),
    Kind("Meta('Made', (), {{'first': {v}}})", ('{o}.answer', '{o}.first', 'getattr({o}, NAME)'), '{o}.first',
         ('{o}.first = {n}', '{o}.answer = {n}', 'Meta.__getattr__ = lambda c, n: 2.0', 'Meta.answer = 1.5'), 2),
    Kind('types.SimpleNamespace(first={v})', _BY_DICT, '{o}.first', (*_SET_ATTRIBUTE, 'del {o}.first')),
    Kind('Row([{v}, TWO])', _PLACE, '{o}[0]', _SET_PLACE),
    Kind('Table(first={v})', _ITEM, "{o}['first']", _SET_ITEM),
    Kind('Grown(first={v})', ("{o}['other']", "{o}['first']"), "{o}['first']",
         ("{o}['first'] = {n}", "{o}['other'] = {n}", 'Grown.__missing__ = lambda s, k: 1.5')),
    Kind('collections.deque([{v}, TWO])', _PLACE[:5], '{o}[0]', ('{o}[0] = {n}', '{o}.appendleft({n})', '{o}.rotate(1)')),
    Kind('collections.OrderedDict(first={v}, n=2.0)', _ITEM, "{o}['first']", (*_SET_ITEM, "{o}.move_to_end('first')")),
    Kind('collections.defaultdict(float, first={v})', _ITEM[:5], "{o}['first']", _SET_ITEM, 2),
    Kind('collections.defaultdict(functools.partial(same, {v}))', ('taken({o})', '{o}.default_factory()'),
         '{o}.default_factory.args[0]', ('{o}.default_factory = maker({n})',)),
    Kind('collections.UserDict(first={v})', _ITEM[:4], "{o}['first']", (*_SET_ITEM, "{o}.data['first'] = {n}"), 3),
    Kind('collections.ChainMap(dict(), dict(first={v}))', _ITEM[:4], "{o}['first']",
         ("{o}['first'] = {n}", "{o}.maps[1]['first'] = {n}"), 3, True),
    Kind("types.MappingProxyType(dict(first={v}))", _ITEM[:5], "{o}['first']", (), 3, True),
    Kind('functools.partial(same, {v})', ('{o}()', '{o}.args[0]'), '{o}.args[0]', (), 3),
    Kind('dict(first={v}).get', ("{o}('first')",), "{o}('first')", ("{o}.__self__['first'] = {n}",), 2),
    Kind('maker({v})', ('{o}()',), '{o}()', ('{o}.__closure__[0].cell_contents = {n}',), 4),
    Kind('defaulted({v})', ('{o}()',), '{o}()', ('{o}.__defaults__ = ({n},)',), 4),
    Kind('keyword({v})', ('{o}()', '{o}(**{{}})'), '{o}()', ("{o}.__kwdefaults__ = dict(given={n})",
         "{o}.__kwdefaults__['given'] = {n}"), 3),
    Kind("contextvars.ContextVar('v', default={v})", ('{o}.get()',), '{o}.get()', ('{o}.set({n})',), 3, True),
    Kind('Once({v})', ('{o}.first', '{o}._first'), '{o}._first', ('{o}._first = {n}', "{o}.__dict__.pop('first', 0)"), 2),
    Kind('Plain({v}).__dict__', _ITEM[:2], "{o}['first']", _SET_ITEM[:3], 2),
    Kind('functools.lru_cache(None)(maker({v}))', ('{o}()',), '', ('{o}.cache_clear()', '{o}.cache_clear(); {o}()'), 3, True),
    Kind('iter([{v}, TWO, 1.0, 2.5, 1.5, 3.0, 0.5, 1.0, 2.0, 1.0, 1.0, 1.0])', ('next({o})',), '', ('next({o})',), 3, True),
    Kind('(v for v in [{v}, 1.0, 2.5, 1.5, 3.0, 0.5, 1.0, 2.0, 1.0, 1.0, 1.0])', ('next({o})',), '', ('next({o})',), 3, True),
    Kind('weakref.ref(KEPT.setdefault({v!r}, Plain({v})))', ('{o}().first',), '{o}().first', ('{o}().first = {n}',), 3, True),
)  # fmt: skip

_WEIGHTED = tuple(kind for kind in KINDS for _ in range(kind.weight))
_USUAL = tuple(kind for kind in _WEIGHTED if not kind.odd)

#: Values that hold no other: source with ``{a}`` and ``{b}`` for numbers, reads that give a number, changes. The first
#: 17 are such that functions which read them are recorded.
LEAVES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ('{{1.0, {b} or 7.0}}', ('max({o})', 'sum({o})', 'len({o})', 'list({o})[0]'), ('{o}.add({n})', '{o}.clear(); {o}.add({n})')),
    ('frozenset((1.0, {b} or 7.0))', ('max({o})', 'list({o})[0]'), ()),
    ('np.array([{a}, {b}])', ('float({o}[0])', 'float({o}.sum())', '{o}[1].item()'), ('{o}[0] = {n}', '{o}[...] = {n}')),
    ("array.array('d', [{a}, {b}])", ('{o}[0]', 'sum({o})'), ('{o}[0] = {n}', '{o}.append({n})')),
    ('bytearray([1, 2])', ('{o}[0]', 'len({o})'), ('{o}[0] = 5', '{o}.append(3)')),
    ('range(0, {r}, 2)', ('{o}.stop', 'len({o})', 'sum({o})'), ()),
    ('{a}', ('{o}', 'float({o})', 'abs({o})', 'max({o}, 0.5)'), ()),
    ("'text'", ('len({o})', 'len({o}.upper())'), ()),
    ('Colour.RED', ('{o}.value', '{o}.weight', 'Colour.RED.value', '(1.0 if {o} is Colour.RED else 2.0)'),
     ('SCALE = {n}', 'Colour.RED._value_ = {n}')),
    ('threading.Event()', ('(1.0 + {o}.is_set())',), ('{o}.set()',)),
    ('{{{s}}}', ('list({o})[0]', 'next(iter({o}))'), ()),
    ("np.array([[1.0, 2.0], [3.0, 4.0]], order='{f}')", ("float({o}.ravel('K')[1])",), ()),
    ('slice(0, 2)', ('{o}.stop',), ()),
    ("operator.attrgetter('first')", ('{o}(HOLDER)',), ('HOLDER.first = {n}',)),
    ("operator.methodcaller('other')", ('{o}(BASED)',), ('BASED.second = {n}', 'Base.other = lambda s: 1.5')),
    ("np.dtype([('a', 'f8'), ('b', 'f4')])", ('len({o}.names[0])', "(2.0 if 'a' in {o}.names else 3.0)"),
     ("{o}.names = ('abc', 'b')",)),
    ('uuid.UUID(int=2)', ('{o}.int',), ("object.__setattr__({o}, 'int', 3)",)),
    ('memoryview(bytearray([1, 2]))', ('{o}[0]',), ('{o}[0] = 5',)),
    ("logging.getLogger('program.' + NAME)", ('(1.0 + {o}.isEnabledFor(20))',), ('{o}.setLevel(10)',)),
    ('queue.Queue()', ('(1.0 + {o}.qsize())',), ('{o}.put(1)',)),
    ('random.Random(3)', ('{o}.random()',), ('{o}.seed(5)',)),
    ('np.random.default_rng(3)', ('{o}.random()',), ('{o}.random()',)),
    ('np.void(b"ab")', ('len(bytes({o}))',), ()),
)  # fmt: skip


_UNDERSTOOD = 17


@dataclass(frozen=True)
class Leaf:
    """A value at the end of a path. ``sort`` is what reading it gives: 'number' or 'array'."""

    write: Callable[[], str]
    reads: tuple[str, ...]
    changes: tuple[str, ...]
    sort: str


@dataclass(frozen=True)
class Value:
    """A value with the way into it: the kinds from the outermost to the innermost, and the leaf."""

    kinds: tuple[Kind, ...]
    leaf: Leaf

    def source(self) -> str:
        """Write it, with new numbers each time."""
        text = self.leaf.write()
        for kind in reversed(self.kinds):
            text = kind.source.format(v=text, o='')
        return text

    def read(self, choices: Choices, root: str) -> str:
        """Write how the function reads what it holds."""
        text = root
        for number, kind in enumerate(self.kinds, 1):
            last = number == len(self.kinds) and self.leaf.sort == 'number' and self.leaf.reads == ('{o}',)
            text = choices.pick([read for read in kind.reads if last or ' * ' not in read]).format(o=text)
        return choices.pick(self.leaf.reads).format(o=text)

    def change(self, choices: Choices, root: str) -> str | None:
        """Write a change of something in it, reached from outside; None where nothing in it can be changed."""
        found: list[str] = []
        for number, kind in enumerate(self.kinds):
            inner = Value(self.kinds[number + 1 :], self.leaf)
            found += [change.format(o=root, n=inner.source()) for change in kind.changes]
            if not kind.outside:
                break
            root = kind.outside.format(o=root)
        else:
            found += [change.format(o=root, n=number_text(choices)) for change in self.leaf.changes]
        return choices.pick(found) if found else None


def number_text(choices: Choices) -> str:
    """Write a number whose sums and products are exact."""
    return choices.pick(('1.5', '2.0', '0.5', '3.0', '2', '1', '-1.0', '4.5', '0.0', 'True', '-0.0', "float('nan')"))


def _filled(choices: Choices, source: str) -> str:
    """Write a value of this source; what two keys of it may have in common is drawn, too."""
    more = {'r': choices.pick(('3', '4', '5')), 's': choices.pick(('8, 0', '0, 8')), 'f': choices.pick('CF')}
    return source.format(a=number_text(choices), b=_usual(choices), **more)


def _usual(choices: Choices) -> str:
    """Write a number that has a hash and a place in an order."""
    return choices.pick(('1.5', '2.0', '0.5', '3.0', '0', '8', '16'))


def array_text(choices: Choices, dtype: str = '') -> str:
    """Write an array of three."""
    numbers = ', '.join(choices.pick(('1.0', '2.0', '0.5', '-1.5', '3.0')) for _ in range(3))
    return f'cp.array([{numbers}]{dtype})'


def leaf(choices: Choices) -> Leaf:
    """Draw what stands at the end."""
    which = choices.below(10)
    if which < 3:
        return Leaf(lambda: number_text(choices), ('{o}',), (), 'number')
    if which < 7:
        changes = ('{o}[...] = {n}', '{o} *= 2.0', '{o}[0] = {n}', '{o}.fill(1.5)')
        return Leaf(lambda: array_text(choices), ('{o}', '{o}[::1]'), changes, 'array')
    source, reads, changes = choices.pick(LEAVES if choices.odd else LEAVES[:_UNDERSTOOD])
    return Leaf(lambda: _filled(choices, source), reads, changes, 'number')


def value(choices: Choices) -> Value:
    """Draw a value."""
    depth = choices.pick((0, 1, 1, 1, 2, 2, 3))
    end = leaf(choices)
    return Value(tuple(choices.pick(_WEIGHTED if choices.odd else _USUAL) for _ in range(depth)), end)

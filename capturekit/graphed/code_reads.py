"""What code reads, by its steps: names of globals and attributes, imported modules, and what is unknown.

Nothing is run for this. If the steps do not show which attribute is read, all of them count as read. What steps load is
known where their line begins.

There are hundreds of modules, and each may be anything. So of ``sys.modules`` only those that code names are watched,
as those are which code imports. Where code does anything else with ``sys.modules``, all of them are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from capturekit.graphed.allowlists import FLAGS, INTERFACES, OF_ARRAYS, OF_DEVICES, OUT_OF_SIGHT
from capturekit.graphed.stack_steps import call_of, maker_of
from capturekit.model.class_layout import MISSING, among, dictionary_of_class, found_in_class, layout_of
from capturekit.model.code_steps import CodeStep, Does, steps_of


def names_shown(steps: list[CodeStep]) -> set[str]:
    """The names that steps use; Python does not show how code uses any others."""
    return {one.operand for one in steps if one.does in Does.USES_NAME}


def parameters_of(code: CodeType) -> tuple[str, ...]:
    """The names of all parameters."""
    variable = sum(bool(code.co_flags & flag) for flag in (CO_VARARGS, CO_VARKEYWORDS))
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variable]


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code object and those in it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from nested(constant)


_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class LoadedValue(NamedTuple):
    """What steps load: a variable or a global, and the attributes that are taken of it."""

    variable: str
    is_global: bool = False
    attributes: tuple[str, ...] = ()

    def value_in(self, frame: FrameType) -> Any:
        """The value that a frame has there; MISSING if code may have to run to find it."""
        values = frame.f_globals if self.is_global else frame.f_locals
        value = values.get(self.variable, MISSING)
        for name in self.attributes:
            value = _attribute_of(value, name)
        return value


def loaded_at(steps: list[CodeStep], number: int) -> tuple[LoadedValue, int] | None:
    """What a step loads, or takes as an attribute of what is loaded, and the number of the step where that begins."""
    attributes: list[str] = []
    while number > 0 and steps[number].does in Does.ANY_ATTRIBUTE:
        attributes.insert(0, steps[number].operand)
        number -= 1
    root = steps[number]
    is_global = root.does == Does.LOADS_GLOBAL
    if not is_global and root.does not in Does.ANY_VARIABLE:
        return None
    return LoadedValue(root.operand, is_global, tuple(attributes)), number


def loaded_before(steps: list[CodeStep], number: int) -> LoadedValue | None:
    """What was loaded just before a step; None if its value may be another one than when the line began."""
    found = loaded_at(steps, number - 1) if number else None
    if found is None:
        return None
    value, place = found
    root, line = steps[place], steps[number].line
    if line is None or root.line != line or (not value.is_global and _is_stored(steps, root.operand, line)):
        return None
    before = [one.does for one in steps[:place] if one.line in (line, None)]
    if (value.attributes or root.does != Does.LOADS_LOCAL) and not _CHANGES.isdisjoint(before):
        return None
    return value


def dictionary_asked(steps: list[CodeStep], number: int) -> LoadedValue | None:
    """The object whose ``__dict__`` a step loads, if the code asks that at once for an item by ``get``."""
    loads = steps[number].does == Does.LOADS_ATTRIBUTE and steps[number].operand == '__dict__'
    asks = loads and steps[number + 1].operand == 'get' and steps[number + 1].does == Does.LOADS_METHOD
    return loaded_before(steps, number) if asks else None


def _attribute_of(value: Any, name: str) -> Any:
    """An attribute that lies in an object, a module or a class; MISSING if code may have to run for it."""
    cls = type(value)
    if issubclass(cls, ModuleType):
        return _MODULE_DICT(value).get(name, MISSING)
    if cls is type:
        member = found_in_class(value, name)
        return MISSING if hasattr(type(member), '__get__') or name in type.__dict__ else member
    if value is MISSING or issubclass(cls, type):
        return MISSING
    if found_in_class(cls, '__getattribute__') is not object.__getattribute__:
        return MISSING
    layout, member = layout_of(cls), found_in_class(cls, name)
    if name in layout.slots and dictionary_of_class(cls).get(name) is member:
        return layout.read_slot(value, name)
    if hasattr(type(member), '__set__') or layout.dictionary is None:
        return MISSING
    found = layout.dictionary(value).get(name, MISSING)
    return member if found is MISSING and not hasattr(type(member), '__get__') else found


def _is_stored(steps: list[CodeStep], variable: str, line: int) -> bool:
    """Whether a line gives a local variable another value."""
    stores = (one.operand for one in steps if one.line in (line, None) and one.does in _STORED)
    return variable in stores


_STORED = Does.CHANGES_VARIABLE - Does.CHANGES_GLOBAL | {Does.SETS_ASIDE}
#: What may run code, or bind names, before the value is loaded.
_CHANGES = Does.ANY_CALL | Does.CHANGES_ANY | {
    Does.IMPORTS, Does.IMPORTS_FROM, Does.LOOPS, Does.YIELDS, Does.EXITS, Does.RUNS_CODE, Does.MAKES_TUPLE,
}  # fmt: skip
#: Steps that only put a value onto the stack.
_LOADS = Does.ANY_LOAD | {Does.LOADS_CONSTANT, Does.LOADS_PYTHONS_OWN, Does.MAKES_CLASS}


def name_given(steps: list[CodeStep], number: int) -> tuple[CodeStep | None, CodeStep | None]:
    """The call of the function loaded there, if it is called at once, and the step that loads the name for it.

    The name is the second argument. It is None if it is neither a text in the code nor a variable.
    """
    place = call_of(steps, number)
    if place is None or steps[place].does != Does.CALLS or steps[number + 1].does in Does.ANY_ATTRIBUTE:
        return None, None
    made = maker_of(steps, number, place, steps[place].amount - 2)
    if made is None or not (_is_text(steps[made]) or steps[made].does in Does.ANY_VARIABLE):
        return steps[place], None
    changes = any(_may_change(steps[made], step) for step in steps[made + 1 : place])
    return steps[place], None if changes else steps[made]


def only_tested(steps: list[CodeStep]) -> set[str]:
    """The texts by which code only asks whether an object is an array: those of ``hasattr``, and used nowhere else."""
    tests = [n for n, one in enumerate(steps) if one.operand == 'hasattr' and one.does in Does.READS_GLOBAL]
    given = [name for _, name in (name_given(steps, n) for n in tests) if name is not None]
    tested = {one.offset: one.operand for one in given if _is_text(one) and one.operand in INTERFACES}
    others = {one.operand for one in steps if type(one.operand) is str and one.offset not in tested}
    return set(tested.values()) - others


def _may_change(name: CodeStep, step: CodeStep) -> bool:
    """Whether a step between the loading of the name and the call may change its variable."""
    if name.does == Does.LOADS_LOCAL:
        return step.does in Does.CHANGES_ANY
    return name.does == Does.LOADS_CELL and step.does not in (Does.LOADS_CONSTANT, *Does.ANY_VARIABLE)


def _is_text(step: CodeStep) -> bool:
    return step.does == Does.LOADS_CONSTANT and type(step.operand) is str


#: The attribute of ``sys``.
MODULES = 'modules'


def module_asked(steps: list[CodeStep], number: int) -> str | LoadedValue | None:
    """The name by which the code asks for a module where it loads ``modules``, or the variable that has it.

    None if it may do anything with ``modules``.
    """
    before = steps[number - 1] if number else steps[number]
    if before.does != Does.LOADS_GLOBAL or before.operand != 'sys' or steps[number].does not in Does.ANY_ATTRIBUTE:
        return None
    after = steps[number + 1 : number + 6]
    kinds = [one.does for one in after]
    if kinds[:1] == [Does.CONTAINS]:
        plain = number > 1 and not _jumps(steps[number - 1 : number + 2])
        return _name(steps, steps[number - 2]) if plain else None
    if kinds[1:2] == [Does.GETS_ITEM]:
        return None if _jumps(after[:2]) else _name(steps, after[0])
    loads_get = bool(after) and after[0].operand == 'get' and after[0].does in Does.ANY_ATTRIBUTE
    calls = 0 if not loads_get else 2 if _is_call(after[2:3], 1) else 3 if _is_call(after[3:4], 2) else 0
    return _name(steps, after[1]) if calls and not _jumps(after[: calls + 1]) else None


def _is_call(at: Sequence[CodeStep], count: int) -> bool:
    return bool(at) and at[0].does == Does.CALLS and at[0].amount == count


def _name(steps: list[CodeStep], load: CodeStep) -> str | LoadedValue | None:
    if load.does == Does.LOADS_CONSTANT:
        return load.operand if type(load.operand) is str else None
    return loaded_before(steps, steps.index(load) + 1) if load.does == Does.LOADS_LOCAL else None


def _jumps(steps: Sequence[CodeStep]) -> bool:
    return any(step.is_jump_target for step in steps)


#: What code may ask objects of CuPy for that can not be compared.
_OF_CUPY = OF_ARRAYS | OF_DEVICES
_GLOBALS_MADE = frozenset({Does.STORES_GLOBAL, Does.DELETES_GLOBAL})
#: Builtins that steps call without naming them.
_BUILT_IN = {Does.IMPORTS: ('__import__',), Does.MAKES_CLASS: ('__build_class__',)}
READERS = frozenset('getattr setattr hasattr delattr'.split())
#: The names of functions that read an attribute by a string.
_BY_STRING = frozenset('getattr setattr hasattr delattr attrgetter methodcaller __getattribute__ __setattr__'.split())
#: The names of functions that read all attributes.
_ALL = frozenset('vars __dict__ __get__'.split())
#: Methods that take an attribute's name, with their number of arguments as a function; and what is made from names.
_BY_NAME = {'__getattribute__': 2, '__setattr__': 3, '__delattr__': 2}
_FORMATS = ('format', 'format_map')
_ATTRIBUTES = Does.ANY_ATTRIBUTE | {Does.LOADS_OF_SUPER}
_MADE_BY_NAMES = ('attrgetter', 'methodcaller')
#: Types of constants of which there is only one with each value.
_ONE_OF_A_KIND = (type(None), bool, type(...))


class CodeNames:
    """The names that a code object and those nested in it use.

    ``identities``: the globals that are compared by ``is``, each with the chain of attribute names after it, or None
    for a value that is neither global nor constant; ``parameters``: those of the code object itself that are compared
    so with something unknown; ``imports``: modules imported in it, with the level of the import;
    ``unknown``: what is not understood, in words, or ''; ``sites``: the calls of ``getattr``, ``setattr``, ``hasattr``
    and ``delattr`` whose names can be found, by the id of their code object and the offset of the call in it;
    ``looked_at``: the objects that are asked for items of their ``__dict__``, and the names by which ``sys.modules`` is
    asked for modules, each with that attribute, where they have the values that they had when their line began;
    ``of_arrays``: names of what arrays have and can't be compared, such as ``flags`` or ``base``; ``modules``: the
    names by which ``sys.modules`` is asked for modules, and None if it is used otherwise.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        self.identities: set[tuple[str, ...] | None] = set()
        self.imports: set[tuple[str, int]] = set()
        self.unknown = ''
        self.sites: dict[tuple[int, int], str | LoadedValue] = {}
        self.parameters: set[str] = set()
        self.looked_at: set[tuple[LoadedValue, str]] = set()
        self.of_arrays: set[str] = set()
        self.modules: set[str | None] = set()

    def add(self, code: CodeType) -> None:
        """Take in one code object, without those nested in it."""
        steps = steps_of(code)
        for number in range(len(steps)):
            self.take(code, steps, number)
        self.finish(code, steps)

    def take(self, code: CodeType, steps: list[CodeStep], number: int) -> None:
        """Take in one step."""
        step = steps[number]
        name, line = step.operand, step.line or code.co_firstlineno
        if step.does == Does.UNKNOWN:
            self._unknown(f'the instruction {name}', line)
        if step.does == Does.COMPARES_IDENTITY and number:
            self._identity(code, steps[:number])
        if step.does == Does.RAISES and not step.amount:
            self.attributes.add('__context__')  # it raises the exception that is handled: the caller's, perhaps
        self.read.update(_BUILT_IN.get(step.does, ()))
        if step.does == Does.MATCHES_CLASS:
            self._unknown('a class pattern', line)
        if step.does not in Does.USES_NAME:
            return
        if name in READERS and step.does in Does.READS_GLOBAL:
            self._called(code, steps, number, line)
        self._named(steps, number, name, line)
        of = dictionary_asked(steps, number)
        self.looked_at.update([] if of is None else [(of, '__dict__')])
        if name in _ALL and of is None:
            self._unknown(name, line)

    def finish(self, code: CodeType, steps: list[CodeStep]) -> None:
        """Take in what no single step of a code object shows."""
        if _asks_numpy_for_the_time(code):
            self._unknown('the time of day as a datetime64', code.co_firstlineno)
        unsaid = set(code.co_names) - names_shown(steps)
        self.read |= unsaid
        self.attributes |= unsaid
        self.modules.update([None] if MODULES in unsaid else [])
        self.of_arrays |= unsaid & _OF_CUPY
        if not _ALL.isdisjoint(unsaid):
            self._unknown(min(_ALL & unsaid), code.co_firstlineno)
        if not _BY_STRING.isdisjoint(code.co_names):
            texts = [part for text in code.co_consts if type(text) is str for part in text.split('.')]
            tested = only_tested(steps)
            self.attributes |= tested
            self.strings.update(text for text in texts if text.isidentifier() and text not in tested)

    def _named(self, steps: list[CodeStep], number: int, name: str, line: int) -> None:
        kind = steps[number].does
        by_name = (name in _BY_NAME or name in _MADE_BY_NAMES) and not _by_constants(steps, number, name)
        # Of a text, ``format`` is what reads attributes by the names in the text, and it is handed on.
        formats = name in _FORMATS and kind in _ATTRIBUTES and not steps[number].is_called
        if by_name or formats:
            self._unknown(f'{name} with names that are not in the code', line)
        if kind in Does.READS_GLOBAL:
            self.read.add(name)
        elif kind in _GLOBALS_MADE:
            self.written.add(name)
        elif kind == Does.IMPORTS:
            level = steps[number - 2].operand if number > 1 else 0
            self.imports.add((name, level if type(level) is int else 0))
            self.attributes.update(name.split('.')[1:])
        elif kind not in Does.CHANGES_GLOBAL:
            self.attributes.add(name)
            self._asks_for_modules(steps, number)
            whole = name == 'flags' and not _one_flag(steps[number + 1 : number + 3])
            if whole or (name in _OF_CUPY and kind in _ATTRIBUTES):
                self.of_arrays.add(FLAGS if whole else name)
            if name in OUT_OF_SIGHT and kind != Does.STORES_ATTRIBUTE:
                self._unknown(f'attribute {name}', line)

    def _asks_for_modules(self, steps: list[CodeStep], number: int) -> None:
        if steps[number].operand == MODULES:
            asked = module_asked(steps, number)
            if isinstance(asked, LoadedValue):
                self.looked_at.add((asked, MODULES))
            else:
                self.modules.add(asked)

    def _called(self, code: CodeType, steps: list[CodeStep], number: int, line: int) -> None:
        """Note where ``getattr`` or its like, which is loaded there, is called, and where the name comes from."""
        call, name = name_given(steps, number)
        if call is None:
            self._unknown(f'{steps[number].operand}, which it does not call at once,', line)
        elif name is not None and (_is_text(name) or _is_one(code, name.operand)):
            self.sites[id(code), call.offset] = name.operand if _is_text(name) else LoadedValue(name.operand)

    def _unknown(self, what: str, line: int) -> None:
        self.unknown = self.unknown or f'{what} at line {line}'

    def _identity(self, code: CodeType, before: list[CodeStep]) -> None:
        last = before[-1]
        if last.does == Does.LOADS_PYTHONS_OWN or last.operand == '__class__':
            return
        if last.does == Does.LOADS_CONSTANT and among(type(last.operand), _ONE_OF_A_KIND):
            return
        names: list[str] = []
        for step in reversed(before):
            names.insert(0, str(step.operand))
            if step.does not in Does.ANY_ATTRIBUTE:
                break
        if step.does in Does.READS_GLOBAL:
            self.identities.add(tuple(names))
        else:
            left = before[-len(names) - 1 : -len(names)] if step.does in _LOADS else []
            named = [one.operand for one in (*before[-1:], *left) if one.does in Does.ANY_VARIABLE]
            given = [name for name in named if keeps_argument(code, name)]
            self.parameters.update(given[:1])
            self.identities.update([] if given else [None])

    def completed(self, of_line: bool = False) -> CodeNames:
        """The same, when all was taken in. ``of_line``: whoever asks looks at the variables when the line begins."""
        unseen = set() if of_line else {name for _, name in self.looked_at}
        self.unknown = self.unknown or ('the __dict__ of an object' if '__dict__' in unseen else '')
        self.modules.update([None] if MODULES in unseen else [])
        self.attributes |= self.strings
        return self


def keeps_argument(code: CodeType, name: str) -> bool:
    """Whether a variable of code is a parameter that gets no other value."""
    stores = any(one.operand == name and one.does in Does.CHANGES_ANY for one in steps_of(code))
    return name in parameters_of(code) and not stores


def names_of(code: CodeType) -> CodeNames:
    """Names of globals read and written, of attributes; strings where attributes are read by string."""
    names = CodeNames()
    names.add(code)
    own = set(names.parameters)
    for inner in nested(code):
        if inner is not code:
            names.add(inner)
    names.parameters = own
    return names.completed()


def names_by_line(code: CodeType) -> dict[int, CodeNames]:
    """The same for each line of a code object, without those nested in it; under 0 what belongs to no line."""
    lines = {0: CodeNames()}
    steps = steps_of(code)
    for number, step in enumerate(steps):
        lines.setdefault(step.line or 0, CodeNames()).take(code, steps, number)
    lines[0].finish(code, steps)
    return {number: names.completed(number > 0) for number, names in lines.items()}


def _one_flag(after: list[CodeStep]) -> bool:
    """Whether one flag of an array is read at once, by its name, which is not ``OWNDATA``."""
    if after and after[0].does in Does.ANY_ATTRIBUTE:
        return True  # under a name that is refused by itself
    item = len(after) == 2 and after[0].does == Does.LOADS_CONSTANT and after[1].does == Does.GETS_ITEM
    return item and after[0].operand not in ('OWNDATA', 'O')


def _asks_numpy_for_the_time(code: CodeType) -> bool:
    """Whether code makes a ``datetime64`` of the text 'now' or 'today', for which NumPy reads the clock."""
    texts = [text for text in code.co_consts if type(text) is str]
    of_numpy = 'datetime64' in code.co_names or any('datetime64' in text or 'M8' in text for text in texts)
    return of_numpy and not {'now', 'today'}.isdisjoint(texts)


def _is_one(code: CodeType, variable: str) -> bool:
    """False where a comprehension may have a variable of its own of this name, and both are variables of the frame."""
    return [*code.co_varnames, *code.co_cellvars, *code.co_freevars].count(variable) == 1


def _by_constants(steps: list[CodeStep], number: int, name: str) -> bool:
    """True if a function that takes attribute names is called at once, with constant strings."""
    given: list[CodeStep] = []
    for step in steps[number + 1 :]:
        if step.does in Does.ANY_CALL:
            break
        if step.does in Does.NO_VALUE:
            continue
        if step.does not in _LOADS:
            return False
        given.append(step)
    texts = [_is_text(one) for one in given]
    if name in _MADE_BY_NAMES:
        return bool(texts) and all(texts[:1] if name == 'methodcaller' else texts)
    return texts[:1] == [True] or (len(texts) == _BY_NAME[name] and texts[1])

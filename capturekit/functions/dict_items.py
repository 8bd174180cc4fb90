"""Where code that ran loads and stores the items of dicts that it has under one name.

Launches reckon with numbers in such items. So every instruction has to be known that loads one: no code sees these
dicts but under that name, and nothing is done with them but to load, store and look for items.
"""

from __future__ import annotations

import dis
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from capturekit.functions.carried_state import DICTS
from capturekit.functions.code_that_ran import CodeThatRan, Counts, ItemUses, RanCode
from capturekit.functions.number_uses import NotArithmetic
from capturekit.functions.value_flow import LOADS_CONSTANT, StackedValue, ValueFlow, names_below
from capturekit.functions.watched_value import WatchedValue

_TAKE_KEYS = ('BINARY_SUBSCR', 'STORE_SUBSCR')
_DICT = 'dict'


def item_uses(program: CodeThatRan, entries: Iterable[WatchedValue]) -> ItemUses:
    """The uses of the items of these dicts. A name has none if a dict under it may be used otherwise."""
    uses, keys, named = ItemUses({}, {}), _Keys(program), defaultdict[str, dict[str, WatchedValue]](dict)
    for one in entries:
        named[one.key][one.kind] = one  # attributes, globals and variables may have the same name
    for name, kinds in named.items():
        flow = DictFlow(program, keys)
        try:
            for entry in kinds.values():
                flow.all_of_dict(entry)
        except (Counts, NotArithmetic):
            continue
        uses.loads[name] = flow.loads
        uses.stores.update({place: (name, key) for place, key in flow.item_stores.items()})
    return uses


class DictFlow(ValueFlow):
    """Follows the dicts under one name. Raises Counts where more is done with them than is known."""

    def __init__(self, program: CodeThatRan, keys: _Keys) -> None:
        super().__init__(program, of_any_use=True)
        self._keys = keys
        #: The instructions that load and store items, each with the constant key; () where that is not known.
        self.loads: list[tuple[RanCode, int, tuple[Any, ...]]] = []
        self.item_stores: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._locals: list[tuple[RanCode, str]] = []

    def all_of_dict(self, entry: WatchedValue) -> None:
        """Follow what all instructions load that load under the name of this watched value."""
        name = entry.key
        if not self._program.always(name, lambda value: type(value) in DICTS):
            raise Counts  # something else may be stored into, too
        if entry.kind == 'attribute':
            self._attribute(name, _DICT)
        else:
            for code, place in self._program.variable_loads(entry):
                self._add(StackedValue(code, place, 0, _DICT, False))
        self._to_the_end()
        for code, variable in self._locals:
            self._must_be_it(code, variable)

    def _taken(self, held: StackedValue, number: int, above: int) -> None:
        code, kind = held.code, held.code.steps[number].opname
        if number in code.entering and kind != 'CALL':
            raise Counts
        if kind == 'BINARY_SUBSCR' and above == 1:
            self.loads.append((code, number, self._keys.at(code, number)))
        elif kind == 'STORE_SUBSCR' and above == 1:
            self.item_stores[id(code.code), number] = self._keys.at(code, number)
        elif kind == 'STORE_FAST':
            self._stored.add((id(code.code), number))
            self._locals.append((code, code.steps[number].argval))
            self._local(held, code.steps[number].argval)
        elif kind == 'CALL' and above < (code.steps[number].arg or 0):
            self._called_with(held, number, above)
        elif not (kind == 'POP_TOP' or (kind == 'CONTAINS_OP' and above == 0)):
            raise Counts

    def _called_with(self, held: StackedValue, number: int, above: int) -> None:
        """A function gets a dict as an argument: one that is called nowhere else."""
        code = held.code
        if number not in code.entering:
            if self._program.callee(code, number, {'len'}) is None:
                raise Counts
            return
        position = (code.steps[number].arg or 0) - 1 - above
        for inner, parameter, caller in self._program.parameters(code, number, position, names_below(code, number)):
            if not self._program.is_called_from_one_place(inner):
                raise Counts
            self._locals.append((inner, parameter))
            self._local(StackedValue(inner, 0, 0, held.what, False, frozenset({caller})), parameter)

    def _must_be_it(self, code: RanCode, name: str) -> None:
        """Raise if a variable may hold something else than one of the dicts: a value may be stored into that."""
        for place, step in enumerate(code.steps):
            named = step.argval == name and step.opname.startswith(('STORE_', 'DELETE_'))
            if named and code.ran(place) and (id(code.code), place) not in self._stored:
                raise Counts


class _Keys(ValueFlow):
    """The constant keys by which code loads and stores items."""

    def __init__(self, program: CodeThatRan) -> None:
        super().__init__(program, of_any_use=True)
        self._known: dict[int, dict[int, Any]] = {}
        self._key: Any = None

    def at(self, code: RanCode, number: int) -> tuple[Any, ...]:
        """The key that an instruction takes; () if it is not known."""
        if id(code.code) not in self._known:
            self._known[id(code.code)] = {}
            for place, step in enumerate(code.steps):
                if step.opname in LOADS_CONSTANT and type(step.argval) in (str, int):
                    self._follow_key(code, place, step)
        found = self._known[id(code.code)]
        return (found[number],) if number in found else ()

    def _follow_key(self, code: RanCode, place: int, step: dis.Instruction) -> None:
        self._key = step.argval
        self._add(StackedValue(code, place, 0, place, True))
        while self._todo:
            try:
                self._follow(self._todo.pop())
            except (Counts, NotArithmetic):
                continue

    def _taken(self, held: StackedValue, number: int, above: int) -> None:
        if above == 0 and held.code.steps[number].opname in _TAKE_KEYS:
            self._known[id(held.code.code)][number] = self._key

"""Addresses of objects that are only used as keys of dicts in attributes: ``self.owners[hash(network)] = network``.

Each call has other addresses. But if a number that ``id`` or ``hash`` gives only finds what was stored under it, it
stands for the object: that is the same in each call. So all code that ran is looked at that names the attribute. It may
store, find and remove by such numbers, ask for the length and the values, and go through the keys to use them in the
same way. The dict has to be made by the run, or the object was there before it, and no two objects of the run may have
had the same address. What such a dict holds never leaves the run.
"""

from __future__ import annotations

import dis

from capturekit.functions.addresses_asked import (
    BY_KEY,
    VARIABLE,
    Asked,
    NotFollowed,
    dict_found_by,
    is_attribute,
    is_item,
    taken,
)
from capturekit.functions.code_reads import parameters_of
from capturekit.functions.code_that_ran import CodeThatRan, Counts, RanCode
from capturekit.functions.handed_on import call_of, loader_of
from capturekit.functions.number_uses import NotArithmetic

#: Methods of dicts that give no key.
_WITHOUT_KEYS = frozenset({'values', 'clear'})
#: Functions that make a container of the keys of a dict.
_GO_THROUGH = frozenset({'tuple', 'list'})
_LOOP = ['GET_ITER', 'FOR_ITER', 'STORE_FAST']
#: What compares an exception that was caught with a class, and names of what gets at the exception.
_MATCH = ('CHECK_EXC_MATCH', 'CHECK_EG_MATCH')
_OF_EXCEPTIONS = frozenset({
    'exc_info', 'exception', 'format_exc', 'print_exc', 'last_value', 'last_exc', '__context__', '__cause__',
    '__exit__', '__aexit__', 'ExitStack',
})  # fmt: skip


def dicts_of_addresses(program: CodeThatRan, calls: list[Asked]) -> set[str] | None:
    """The attributes that hold dicts with these numbers as keys; None if a number may do more than find something."""
    if program.opened or any(map(_keeps_exceptions, program.codes())):
        return None
    try:
        uses = _KeyUses(program, calls)
        uses.follow_all()
    except (Counts, NotFollowed, NotArithmetic):
        return None
    return uses.attributes


class _KeyUses:
    """Follows the numbers, and the dicts of which they are keys. Raises Counts where one does more."""

    def __init__(self, program: CodeThatRan, calls: list[Asked]) -> None:
        self._program = program
        self._calls: list[tuple[RanCode, int]] = []
        for one in calls:
            code = program.code_of(one.code)
            if code is None:
                raise Counts
            self._calls.append((code, code.number(one.offset)))
        self._known = {(id(code.code), place) for code, place in self._calls}
        self.attributes: set[str] = set()
        #: The variables that hold keys, each with the stores that put them there.
        self._variables: dict[tuple[int, str], set[int]] = {}
        self._needed: set[tuple[int, str]] = set()

    def follow_all(self) -> None:
        """Follow everything."""
        for code, place in self._calls:
            found = dict_found_by(code.steps, place)
            if found is None:
                raise Counts
            self.attributes.add(found.attribute)
        for name in self.attributes:
            for code, place in self._program.attribute(name):
                self._named(code, place)
        for code in self._program.codes():
            for owner, name in self._variables:
                if owner == id(code.code):
                    self._variable(code, name)
        if not self._needed <= self._variables.keys():
            raise Counts

    def _named(self, code: RanCode, place: int) -> None:
        """An instruction names an attribute that holds such a dict."""
        step = code.steps[place]
        if step.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
            return
        if step.opname == 'STORE_ATTR':
            if not _stores_a_new_dict(code.steps, place):
                raise Counts
        elif is_attribute(step):
            self._used(code, place)
        else:
            raise Counts

    def _used(self, code: RanCode, place: int) -> None:
        """What becomes of a dict that is loaded there."""
        number, above = taken(code.steps, place)
        one = code.steps[number]
        if is_item(one) and above == 1:
            self._must_be_key(code, number - 1)
        elif one.opname == 'CONTAINS_OP' and above == 0:
            self._must_be_key(code, place - 2)
        elif one.opname in ('LOAD_ATTR', 'LOAD_METHOD'):
            self._method(code, number)
        elif one.opname == 'CALL' and self._program.callee(code, number, {'len', *_GO_THROUGH}) is not None:
            if self._program.callee(code, number, {'len'}) is None:
                self._gone_through(code, *taken(code.steps, number))
        elif one.opname == 'GET_ITER':
            self._gone_through(code, number, above)
        elif not one.opname.startswith(('TO_BOOL', 'POP_JUMP', 'UNARY_NOT', 'POP_TOP')):
            raise Counts

    def _method(self, code: RanCode, number: int) -> None:
        """A method of a dict is loaded there."""
        name, call = code.steps[number].argval, call_of(code.steps, number)
        if call is None or code.steps[call].opname != 'CALL':
            raise Counts
        if name in _WITHOUT_KEYS:
            return
        first = number + 1 + (code.steps[number + 1].opname == 'PUSH_NULL')
        if name not in BY_KEY or not code.steps[call].arg:
            raise Counts
        if code.steps[first].opname in VARIABLE:
            self._must_be_key(code, first)
        elif not any(owner == id(code.code) and loader_of(code.steps, place) == first for owner, place in self._known):
            raise Counts

    def _gone_through(self, code: RanCode, number: int, above: int) -> None:
        """A loop over the keys begins there: it stores each in a variable."""
        steps = code.steps
        loops = above == 0 and [one.opname for one in steps[number : number + 3]] == [
            'GET_ITER',
            'FOR_ITER',
            'STORE_FAST',
        ]
        if not loops:
            raise Counts
        self._variables.setdefault((id(code.code), steps[number + 2].argval), set()).add(number + 2)

    def _variable(self, code: RanCode, name: str) -> None:
        """All that code does with a variable that holds a key."""
        stores = self._variables[id(code.code), name]
        if name in (*parameters_of(code.code), *code.code.co_cellvars, *code.code.co_freevars):
            raise Counts
        for place, step in enumerate(code.steps):
            if step.argval != name or 'FAST' not in step.opname or not code.ran(place):
                continue
            if step.opname in VARIABLE:
                found = dict_found_by(code.steps, place)
                if found is None or found.attribute not in self.attributes:
                    raise Counts
            elif place not in stores:
                raise Counts

    def _must_be_key(self, code: RanCode, place: int) -> None:
        """What lies on the stack when this instruction is done has to be one of the numbers."""
        step = code.steps[place]
        if step.opname in VARIABLE:
            self._needed.add((id(code.code), step.argval))
        elif (id(code.code), place) not in self._known:
            raise Counts


def _keeps_exceptions(code: RanCode) -> bool:
    """Whether code may have got hold of an exception, which may hold the key that was not found."""
    if not _OF_EXCEPTIONS.isdisjoint({code.code.co_name, *code.code.co_names}):
        return True
    matches = (place for place, step in enumerate(code.steps) if step.opname in _MATCH and code.ran(place))
    return any(step.opname.startswith('STORE_') for place in matches for step in code.steps[place + 1 : place + 4])


def _stores_a_new_dict(steps: list[dis.Instruction], place: int) -> bool:
    """Whether a store puts an empty dict there that is made just before."""
    if place < 2 or any(step.is_jump_target for step in steps[place - 1 : place + 1]):
        return False
    made = steps[place - 2]
    return steps[place - 1].opname in (*VARIABLE, 'LOAD_DEREF') and made.opname == 'BUILD_MAP' and not made.arg

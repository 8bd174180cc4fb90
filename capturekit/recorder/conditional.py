"""``cap.while_``, ``cap.if_``, ``cap.if_else``, ``cap.switch``: work that the device decides about at every launch.

CUDA C++ Programming Guide, "Conditional Graph Nodes".
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from types import CellType, FrameType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Self

import numpy as np

from capturekit.guard import GUARD
from capturekit.guard.conditional_bodies import RETURNED, Decision, made_at
from capturekit.guard.open_capture import OpenCapture
from capturekit.launch.outside_arrays import is_installed, variables_of
from capturekit.model import errors
from capturekit.model.cleanup import uninterrupted
from capturekit.model.code_steps import Does, drops_result, steps_of
from capturekit.model.source_line import Place, here, is_foreign_frame
from capturekit.recorder.block_source import Block, block_entered, block_owner, forbid_suspension
from capturekit.recorder.options import reports_refusal

# -- places in which the user's code keeps values: which of them mean another array after the body of a decision ------
#
# A body is recorded once, and Python binds its names while that happens. So a name, an attribute or an item that held a
# value before the body and holds an array from the body after it would mean that array, however the device decides.


#: How deep containers are looked into: ``model.state['w'][0]`` is an item of an item of an attribute.
_DEPTH = 4
#: Containers with more items than these are not looked through, nor are more containers than these.
_MOST, _LOOKED_AT = 1000, 20_000
#: How many functions of the user that have called each other are looked into.
_CALLERS = 5
_NUMBERS = (int, float, complex, np.generic)
_LISTS = (list, tuple, deque)
#: Modules of Python whose objects users keep values in. Objects of other libraries are not looked into.
_KEEPERS = frozenset({'types', 'functools', 'collections', 'builtins'})
#: A name, the value before and the value now; and the frame whose variable it is.
Changed = tuple[str, Any, Any, 'FrameType | None']


class FramePlaces:
    """The arrays and numbers that can be reached from a frame and its callers: by their places, with a name for each.

    ``lists``: how long the lists are, by their identities. Everything is held, so that identities stay what they are.
    """

    def __init__(self, frame: FrameType | None, array: type) -> None:
        self.found: dict[tuple[int, Any], tuple[str, Any]] = {}
        self.lists: dict[int, int] = {}
        #: The places of containers, and by the identity of a container its first place.
        self._containers: dict[tuple[int, Any], tuple[str, Any]] = {}
        self._places: dict[int, tuple[int, Any]] = {}
        self._array = array
        self.frames: dict[int, FrameType] = {}
        while frame is not None and len(self.frames) < _CALLERS:
            if not is_foreign_frame(frame):
                self.frames[id(frame)] = frame
                for name, value in variables_of(frame).items():
                    self._add((id(frame), name), name, value, _DEPTH)
                if frame.f_locals is not frame.f_globals:
                    for name, value in list(frame.f_globals.items()):
                        self._add((id(frame.f_globals), name), name, value, _DEPTH)
            frame = frame.f_back

    def _add(self, key: tuple[int, Any], name: str, value: Any, depth: int) -> None:
        if isinstance(value, (self._array, *_NUMBERS)):
            self.found[key] = name, value
            return
        if not depth or len(self._places) >= _LOOKED_AT or isinstance(value, (str, bytes, np.ndarray, type(None))):
            return
        self._containers[key] = name, value
        if id(value) not in self._places:
            self._places[id(value)] = key
            if isinstance(value, (list, deque)):
                self.lists[id(value)] = len(value)
            for part, label, inner in _inside(value):
                self._add((id(value), part), f'{name}{label}', inner, depth - 1)

    def changed(self, now: FramePlaces, made: Callable[[Any], bool]) -> Iterator[Changed]:
        """Yield what means another array ``now``, or an array in the place of a number, and the reverse.

        Each comes with its name, the value before and the value now; and the frame whose variable it is.
        ``made``: whether the body has made an array.
        """
        for key, (name, value) in now.found.items():
            owner, part = key
            _, before = self.found.get(key, ('', None))
            if before is None:
                grown = owner in self.lists and isinstance(part, int) and part >= self.lists[owner]
                if grown and isinstance(value, self._array):
                    yield name, None, value, None
                elif made(value):
                    yield from self._replaced(owner, value, now)
            elif not self._same(before, value):
                yield name, before, value, now.frames.get(owner)

    def _replaced(self, owner: int, array: Any, now: FramePlaces) -> Iterator[Changed]:
        """Yield the place of a new container around an array, if another container, or a value, was there before."""
        while (place := now._places.get(owner)) is not None:
            _, before = self._containers.get(place) or self.found.get(place) or ('', None)
            if before is not None:
                held = (one for (inside, _), (_, one) in self.found.items() if inside == id(before))
                if id(before) != owner:
                    yield now._containers[place][0], next(held, before), array, now.frames.get(place[0])
                return
            owner = place[0]

    def _same(self, before: Any, value: Any) -> bool:
        arrays = isinstance(before, self._array), isinstance(value, self._array)
        if before is value or not any(arrays):
            return True
        return all(arrays) and _layout(before) == _layout(value)


def _layout(array: Any) -> Any:
    return array.data.ptr, array.shape, array.strides, array.dtype


def _inside(value: Any) -> list[tuple[Any, str, Any]]:
    """What an object holds: the place in it, what code writes behind its name, and the value there."""
    if isinstance(value, _LISTS):
        return [(n, f'[{n}]', one) for n, one in enumerate(value)] if len(value) < _MOST else []
    if isinstance(value, dict):
        keys = list(value.items()) if len(value) < _MOST else []
        return [(key, f'[{key!r:.40}]', one) for key, one in keys if isinstance(key, (str, int, float, tuple, bytes))]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or ())
        return [(name, f'.{name}', _of_slot(cell, None)) for name, cell in cells]
    if isinstance(value, MethodType):
        return [('__self__', '', value.__self__)]
    if isinstance(value, ModuleType):
        return [] if is_installed(value) else _attributes(vars(value))
    module = (value if isinstance(value, type) else type(value)).__module__
    if module not in _KEEPERS and (module not in sys.modules or is_installed(sys.modules[module])):
        return []
    if isinstance(value, type):
        return _attributes(vars(value)) if module not in _KEEPERS else []
    slots = [
        (name, f'.{name}', _of_slot(one, value))
        for kind in type(value).__mro__
        for name, one in vars(kind).items()
        if name != '__dict__' and isinstance(one, MemberDescriptorType)
    ]
    return slots + _attributes(getattr(value, '__dict__', {}))


def _attributes(values: Any) -> list[tuple[Any, str, Any]]:
    if not isinstance(values, (dict, MappingProxyType)) or len(values) >= _MOST:
        return []
    return [(name, f'.{name}', one) for name, one in list(values.items())]


def _of_slot(slot: CellType | MemberDescriptorType, value: Any) -> Any:
    """What a variable of a closure, or a slot of an object, holds; None where it is not assigned yet."""
    try:
        return slot.cell_contents if isinstance(slot, CellType) else slot.__get__(value)
    except (ValueError, AttributeError):
        return None


def is_used_again(frame: FrameType, name: str) -> bool:
    """Whether the code of a frame, from where it is on, reads a variable before it sets it anew."""
    later = [step.does for step in steps_of(frame.f_code) if step.offset > frame.f_lasti and step.operand == name]
    return next((does in Does.ANY_LOAD for does in later if does in Does.ANY_LOAD | Does.CHANGES_VARIABLE), False)


def is_dropped(frame: FrameType | None) -> bool:
    """Whether a frame drops the result of the call that it is making."""
    return frame is not None and drops_result(frame.f_code, frame.f_lasti)


class Branch:
    """One body of a decision: what its ``with`` block records runs when the device decides so. It is entered once."""

    def __init__(self, live: OpenCapture, decision: Decision, number: int) -> None:
        self._live, self._decision, self._number = live, decision, number
        self._state = 'new'
        self._places: FramePlaces | None = None
        self._way_out: tuple[str, Place] | None = None
        #: What is refused at the end of the body.
        self.wrong: Exception | None = None

    @reports_refusal
    def __enter__(self) -> Self:
        if self._state != 'new':
            raise errors.UnsupportedCallError(
                'A branch entered twice',
                location=here(),
                rule='Each body of a conditional node is recorded once.',
                remedy='Put all of its work into one block, or make another decision.',
            )
        live, decision = self._live, self._decision
        frame = sys._getframe(1).f_back  # past `reports_refusal`
        owner = None if frame is None else block_owner(frame)
        if decision in live.decisions.unentered:
            live.decisions.unentered.remove(decision)
        if owner is not None and is_foreign_frame(owner):
            owner = None  # capturekit's own functions leave no body
        elif owner is not None:
            forbid_suspension(owner, f'with {decision.call}')
        with uninterrupted(), GUARD.lock:
            GUARD.bodies.enter_body(live, decision, self._number, here())
            self._state = 'open'
        self._places = FramePlaces(frame, live.platform.cupy.ndarray)
        if owner is not None:
            self._note_ways_out(owner, block_entered(owner))
        return self

    def _note_ways_out(self, owner: FrameType, block: Block | None) -> None:
        """Remember the ``break``, ``continue`` or ``return`` that leaves the block; note where none would be seen."""
        if block is None:
            text = f'no `with` statement is seen that enters the body of `{self._decision.call}`: what leaves it, as '
            self._live.note('note', None, f'{text}`break` and `return` do, is taken once and not seen', here())
        elif block.left is not None:
            self._way_out = block.left[0], Place(owner.f_code.co_filename, block.left[1], owner.f_code.co_name)

    @reports_refusal
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._state = 'over'
        live, decision = self._live, self._decision
        frame = sys._getframe(1)
        wrong = (self.wrong or self._moved(frame)) if error is None else None
        self._places = self.wrong = None
        with uninterrupted(), GUARD.lock:
            if not live.decisions.open or live.decisions.open[-1] is not decision:
                return  # the capture around it is over
            try:
                GUARD.bodies.leave_body(live, decision, here(), error, wrong)
            except errors.CaptureError:
                if error is None:
                    raise

    def _moved(self, frame: FrameType | None) -> errors.CaptureError | None:
        """Look for places that mean another array than before the body; adapting captures only warn of them."""
        live, decision, before = self._live, self._decision, self._places
        assert before is not None
        if self._way_out is not None:
            return _left_by(decision, *self._way_out)
        known = decision.made
        after = FramePlaces(frame, live.platform.cupy.ndarray)
        for name, was, now, owner in before.changed(after, lambda one: made_at(one) in known):
            if was is decision.condition and decision.decides == 'while':
                return _other_condition(name)
            if owner is not None and GUARD.bodies.has_left(was) and not is_used_again(owner, name):
                continue  # a name for the time of a body, as it was in an earlier one
            made = known.get(made_at(now))
            fault = errors.UnsupportedCallError(
                f'`{name}` is another array at the end of the body of `{decision.call}` than before it',
                location=made or here(),
                rule='Python has set it once, while the body was recorded; the device decides at each launch how often '
                'the body runs. So what reads it afterwards, or in the next pass, would read the wrong array.',
                remedy=RETURNED,
            )
            if live.strict:
                return fault
            at = fault.location or Place('<unknown>', 0, '')
            live.note('note', None, f'{fault.operation}: {fault.rule}', fault.location)
            warnings.warn_explicit(f'{fault}', RuntimeWarning, at.file, at.line)
        return None


class Loop(Branch):
    """The body of ``cap.while_``."""

    @property
    def passes(self) -> Any:
        """How many passes the last launch made: a CuPy array of shape (), dtype uint64."""
        return self._decision.passes.reshape(())


class Branches:
    """The bodies of ``cap.if_else`` and ``cap.switch``: ``with`` each of them; nothing may be recorded in between."""

    def __init__(self, live: OpenCapture, decision: Decision) -> None:
        self._live, self._decision = live, decision
        self._all = tuple(Branch(live, decision, number) for number in range(len(decision.bodies)))

    def __enter__(self) -> tuple[Branch, ...]:
        self._live.decisions.asked.append(self._decision)
        return self._all

    @reports_refusal
    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: object) -> None:
        live, decision = self._live, self._decision
        if decision not in live.decisions.asked:
            return
        live.decisions.asked.remove(decision)
        if kind is None and decision.inside is None and GUARD.mine() is live:
            with uninterrupted(), GUARD.lock:
                GUARD.bodies.nothing_between(live, decision, here())


def loop(live: OpenCapture, condition: Any, limit: int | None, frame: FrameType | None = None) -> Loop:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit < 1 << 63):
        wrong = ValueError if isinstance(limit, int) and not isinstance(limit, bool) else TypeError
        raise wrong(f'limit must be a positive whole number, or None: {limit!r}')
    return Loop(live, decided(live, 'while', condition, 1, limit or 0, frame), 0)


def branches(live: OpenCapture, condition: Any, frame: FrameType | None = None) -> Branches:
    return Branches(live, decided(live, 'if', condition, 2, frame=frame))


def cases(live: OpenCapture, index: Any, count: int, frame: FrameType) -> Branches:
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f'the number of cases must be a whole number: {count!r}')
    if count < 1:
        raise ValueError(f'a switch has at least one case: {count}')
    return Branches(live, decided(live, 'switch', index, count, frame=frame))


def decided(
    live: OpenCapture, decides: str, condition: Any, count: int, limit: int = 0, frame: FrameType | None = None
) -> Decision:
    """Record the node. ``frame``: who must enter a block that is returned."""
    ndarray = live.platform.cupy.ndarray
    if not isinstance(condition, ndarray):
        raise TypeError(f'the condition must be a CuPy array of one element, not {type(condition).__name__}')
    if condition.size != 1:
        raise ValueError(f'the condition must be one element, not {condition.shape}')
    if condition.dtype.kind not in 'biu':
        raise TypeError(f'the condition must be boolean or a whole number, not {condition.dtype}: compare first')
    decision = Decision(decides, condition, limit, here(), bodies=[0] * count)
    with uninterrupted(), GUARD.lock:
        live.graph_memory.keep(condition)
        GUARD.bodies.decide(live, decision, is_dropped(frame))
    return decision


def _other_condition(name: str) -> errors.CaptureError:
    return errors.UnsupportedCallError(
        f'`{name}`, the condition of a loop, is another array at its end',
        location=here(),
        rule='The loop reads the array that it was given, so it would end at once or never.',
        remedy=f'Write into it: `{name}[...] = ...`, or `cp.greater(a, b, out={name})`; or use `cap.loop`.',
    )


def _left_by(decision: Decision, way: str, at: Place) -> errors.CaptureError:
    return errors.UnsupportedCallError(
        f'`{way}` in the body of `{decision.call}`',
        location=at,
        rule='Python takes it once, while the body is recorded, whatever the device will decide: what stands below it '
        'would be missing from the graph.',
        remedy='Let the device decide about what stands below, too, in a branch of `cap.if_else`; about a loop with '
        '`cap.while_` or `cap.loop`; about a value with `cap.cond`.',
    )


# -- ``cap.cond`` and ``cap.loop``: decisions on the device that return values ----------------------------------------
#
# What the functions return lies in memory of the bodies. So it is copied, in the body, into arrays that belong to the
# work around the decision.


_NUMBERS_RETURNED = (bool, int, float, complex, np.generic)


def conditional(live: OpenCapture, condition: Any, then: Any, otherwise: Any, operands: tuple[Any, ...]) -> Any:
    """Record :meth:`capturekit.Capture.cond`."""
    _callable('cond()', then, otherwise)
    results: list[Any] = []
    with branches(live, condition) as both:
        for branch, function, place in zip(both, (then, otherwise), ('then', 'otherwise')):
            with branch:
                found = _arrays(live, function(*operands), branch, f'What `{place}` returns')
                if branch.wrong is None and not results:
                    results = [_mapped(lambda one: _outside(live, one), found)]
                if branch.wrong is None:
                    _write(results[0], found, branch, 'What `then` and `otherwise` return')
                del found
    return results[0]


def repeated(live: OpenCapture, condition: Any, body: Any, state: Any, limit: int | None) -> Any:
    """Record :meth:`capturekit.Capture.loop`."""
    _callable('loop()', condition, body)
    cupy = live.platform.cupy
    state = _mapped(lambda one: one.copy(order='C'), _arrays(live, state, None, 'The state'))
    going = cupy.empty((), '?')
    _ask(going, condition(_mapped(lambda one: one, state)))
    with loop(live, going, limit) as passes:
        found = _arrays(live, body(_mapped(lambda one: one, state)), passes, 'What `body` returns')
        if passes.wrong is None:
            mems = {id(one.data.mem) for _path, one in _leaves(state) if isinstance(one, cupy.ndarray)}
            # a value that lies in another place of the state must be read before that is written
            found = _mapped(lambda one: one.copy() if id(one.data.mem) in mems else one, found)
            _write(state, found, passes, 'The state and what `body` returns')
        if passes.wrong is None:
            _ask(going, condition(_mapped(lambda one: one, state)))
        del found
    return state


def _callable(call: str, *functions: Any) -> None:
    for one in functions:
        if not callable(one):
            raise TypeError(f'{call} takes functions, not {type(one).__name__}: write `lambda: ...`')


def _ask(going: Any, asked: Any) -> None:
    """Write into the condition what the function says."""
    if not isinstance(asked, type(going)) or asked.size != 1 or asked.dtype.kind not in 'biu':
        form = f'{asked.dtype}{list(asked.shape)}' if isinstance(asked, type(going)) else type(asked).__name__
        raise TypeError(f'`condition` must return a CuPy array of one element, boolean or a whole number, not {form}')
    going[...] = asked.reshape(()) != 0


def _outside(live: OpenCapture, array: Any) -> Any:
    """An array like this one for the work around the open body; if that is a body, too, the array belongs to it."""
    pointer = live.graph_memory.grow(max(int(array.nbytes), 1))
    for around in live.decisions.open[-2:-1]:
        around.made[int(pointer.mem.ptr)] = here()
    return live.platform.cupy.ndarray(array.shape, array.dtype, pointer)


def _arrays(live: OpenCapture, tree: Any, branch: Branch | None, what: str) -> Any:
    """The same tree with arrays in the place of numbers; an error, at the end of the branch, for other things."""
    cupy = live.platform.cupy
    for path, one in _leaves(tree):
        if not isinstance(one, (cupy.ndarray, type(None), *_NUMBERS_RETURNED)):
            wrong = TypeError(f'{what} must hold CuPy arrays and numbers: {path or "it"} is {type(one).__name__}')
            if branch is None:
                raise wrong
            branch.wrong = wrong
            return None
    return _mapped(
        lambda one: one if isinstance(one, cupy.ndarray) else cupy.full((), one, np.asarray(one).dtype), tree
    )


def _write(targets: Any, found: Any, branch: Branch, what: str) -> None:
    """Copy each array of ``found`` into its place, or refuse the branch where the two differ."""
    into, values = list(_leaves(targets)), list(_leaves(found))
    form, other = _form(targets), _form(found)
    if form != other:
        branch.wrong = TypeError(f'{what} must have the same form: {form} and {other}')
    for (path, target), (_path, value) in zip(into, values):
        if branch.wrong is None and target is not None and (target.shape, target.dtype) != (value.shape, value.dtype):
            known, new = (f'{one.dtype}{list(one.shape)}' for one in (target, value))
            branch.wrong = TypeError(
                f'{what} must have the same shapes and dtypes: {path or "it"} is {known} and {new}'
            )
    for (_path, target), (_other, value) in zip(into, values) if branch.wrong is None else ():
        if target is not None and target is not value:
            target[...] = value


def _items(tree: Any) -> list[tuple[Any, str, Any]] | None:
    """What a container holds, with the place as it is written; None for what is no container."""
    if isinstance(tree, (tuple, list)):
        return [(n, f'[{n}]', one) for n, one in enumerate(tree)]
    if isinstance(tree, dict):
        return sorted(((key, f'[{key!r}]', one) for key, one in tree.items()), key=lambda item: item[1])
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        return [(name, f'.{name}', getattr(tree, name)) for name in names]
    return None


def _leaves(tree: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    items = _items(tree)
    if items is None:
        yield path, tree
    for _key, label, one in items or ():
        yield from _leaves(one, path + label)


def _form(tree: Any) -> str:
    """The containers of a tree, with * for each array."""
    items = _items(tree)
    if items is None:
        return 'None' if tree is None else '*'
    return f'{type(tree).__name__}({", ".join(f"{label}: {_form(one)}" for _key, label, one in items)})'


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """A new tree with changed leaves."""
    items = _items(tree)
    if items is None:
        return None if tree is None else change(tree)
    parts = {key: _mapped(change, one) for key, _label, one in items}
    if isinstance(tree, dict):
        made = copy.copy(tree)  # keeps the order of the keys
        made.update(parts)
        return made
    if isinstance(tree, (tuple, list)):
        named = getattr(type(tree), '_make', type(tree))
        return named(parts.values())
    return dataclasses.replace(tree, **parts)

"""The end of a watched run: which watched values it changed itself, and what later calls compare."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from capturekit.graphed.allowlists import FAR, OF_PYTHON
from capturekit.graphed.array_blocks import overlap
from capturekit.graphed.calls_followed import RunRecord
from capturekit.graphed.calls_out_of_sight import handed_on
from capturekit.graphed.carried_state import CarriedState
from capturekit.graphed.code_watch import caught_in
from capturekit.graphed.environment import Environment, RunSummary
from capturekit.graphed.follow_time import TooLong
from capturekit.graphed.hidden_state import FILES, HOST_RANDOMNESS, STATE_NAMES, STATE_SETTERS, is_in_state
from capturekit.graphed.outcomes import NOTHING, GivenNumbers
from capturekit.graphed.read_paths import ReadPaths
from capturekit.graphed.reasons import Reason, Why
from capturekit.graphed.sets_made import ADD, is_another_name_of_sets, is_only_asked, orders_of_sets
from capturekit.graphed.settings import ERRORS, HANDLED
from capturekit.graphed.state_changes import StateChanges
from capturekit.graphed.value_changes import ValueDifference, containers, difference, kept_in, replaced
from capturekit.graphed.value_flow import CodeThatRan, Counts, kept_reads, kept_times, reckoned_numbers
from capturekit.graphed.watched_objects import is_uncompiled
from capturekit.graphed.watched_values import Holder, OtherNumbers, WatchedValue, itself
from capturekit.model.class_layout import (
    MISSING,
    among,
    attributes_of,
    bases_of,
    dictionary_of_class,
    form_of_class,
    is_dataclass,
    layout_of,
    name_of,
)
from capturekit.model.code_steps import Does
from capturekit.model.host_reads import Read
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import a
from capturekit.model.pytree import PAYLOADS


def finish(
    run: RunRecord, failure: BaseException | None, not_repeated: Reason, reads: Sequence[Read] = (),
    reckons: OtherNumbers | None = None, given: GivenNumbers | None = None,
) -> Environment:  # fmt: skip
    """Make the environment of a run that has ended, and empty the record of it.

    ``failure``: why the run was followed no farther. ``not_repeated``: why launches repeat no changes of Python state.
    ``reads``: the host reads of the run. ``reckons``: tells with which numbers in attributes launches are
    to reckon; ``given``: the numbers among the arguments.
    """
    if reads or run.values.keeper.has_numbers or 'type' in run.names.attributes:
        run.values.depends_on(ERRORS)  # the code may compute with numbers of NumPy's
    paths = ReadPaths(run)
    run.code_watch.times, others = kept_times(run)
    run.doubts.unwatchable += others  # the caller may get such a time
    changes = StateChanges(run)
    carries = not not_repeated and not any(paths.reach(lock) for lock in run.met.locks)
    written = _written(run, changes if carries else None)
    _doubts(run, failure, paths)
    written = written or next(iter(run.doubts.unwatchable), None)
    objects, missing = _objects_of(run)
    kept = kept_reads(run, changes, reads) if written is None else {}
    reckoned = reckoned_numbers(run, changes, reads, kept, reckons, given) if written is None else NOTHING
    carried = changes.carried() if written is None else None
    arrays, known = _arrays_of(run, carried), run.values.keeper.forms
    environment = Environment(
        RunSummary(
            written, run.doubts.unwatchable, _compared(run), objects, missing, arrays, _all_names(run),
            forms=[(array, known[id(array)]) for array in arrays if id(array) in known],
            bases=list(run.holders.bases.values()),
            inner=[(*one, key in run.library.complete) for key, one in run.library.inner.items()],
            sizes=run.library.sizes(caught_in([(code, run.lines.of(code)) for code in run.code.own()])),
            carried=carried, not_repeated=not_repeated, own=run.given.own,
            times=frozenset(run.code_watch.times), named=run.code.named(), kept=kept, reckoned=reckoned,
            compiler=(run.libraries.compiler, frozenset(run.libraries.compiled)),
            too_much=isinstance(failure, TooLong) or run.met.weak,
            far=run.met.far or not FAR.isdisjoint(run.names.attributes),
            asks_identities=bool(run.uses.identities),
        )
    )  # fmt: skip
    _let_go(run)
    return environment


def _compared(run: RunRecord) -> list[WatchedValue]:
    """The watched values that are compared: not those that launches change, nor random states that nobody asks for."""
    states_count = run.hidden.sets_states or not run.names.attributes.isdisjoint(STATE_NAMES | STATE_SETTERS)
    entries = [entry for entry in run.values.entries.values() if entry.kind != 'draws' or states_count]
    return [entry for entry in entries if entry.kept.kind != 'carried']


def _doubts(run: RunRecord, failure: BaseException | None, paths: ReadPaths) -> None:
    """Gather what could not be watched, in sentences; leave out what is of values that the run can not have got."""
    if isinstance(failure, TooLong):
        text = 'it reads so much that following a run takes more than a second'
        run.doubts.unwatchable.insert(0, Reason(text, Why.TOO_MUCH))
    elif failure is not None:
        run.doubts.say(f'what the function reads could not be followed: {failure!r}')
    _aliases(run)
    run.doubts.unwatchable = [one for one in run.doubts.unwatchable if paths.matter(one)]
    run.doubts.unwatchable += [text for known, text in run.functions.ran.items() if known not in run.met.reached]
    run.doubts.unwatchable += [*run.code_watch.to_hash.values(), *map(Reason, _handed_on(run, paths))]
    if '__context__' in run.names.attributes:
        run.values.depends_on(HANDLED)
    name = run.names.of_arrays()
    if name is not None:
        run.doubts.say(f'the function asks an array for {name}, which can not be compared')
    run.doubts.unwatchable = list(dict.fromkeys(run.doubts.unwatchable))


def _handed_on(run: RunRecord, paths: ReadPaths) -> Iterator[str]:
    yield from handed_on(run, paths)
    for cls, count in run.uses.finalized.values():
        if count > 0:
            yield f'the function makes {a(cls)}, whose method __del__ runs after the call'
    by_address = _hashed_by_address(run, paths)
    ran = [(code, run.lines.of(code)) for code in run.code.own()]
    by_name = not ADD.isdisjoint(run.names.strings)
    yield from orders_of_sets(
        ran, run.code_watch.sets, by_address, functools.partial(_only_asked, run), by_name, run.uses.copied_sets
    )
    for entry in run.values.entries.values() if by_address else ():
        if is_another_name_of_sets(entry) and paths.reads(entry):
            cls = min(by_address)
            yield f'{entry.where()} makes sets, whose order is that of the addresses of its {cls} objects'


def _only_asked(run: RunRecord, attribute: str) -> bool:
    """Whether all code that ran only asks the sets in an attribute for members."""
    if not attribute:
        return False
    program = CodeThatRan(run)
    if program.opened:
        return False
    try:
        places = [*program.attribute(attribute)]
    except Counts:
        return False
    loads = [(code.steps, place) for code, place in places if code.steps[place].does in Does.ANY_ATTRIBUTE]
    return all(is_only_asked(steps, place) for steps, place in loads)


def _hashed_by_address(run: RunRecord, paths: ReadPaths) -> set[str]:
    """The names of classes of which the run may have made objects that are hashed by their address.

    A class that the code only asks for in ``isinstance`` it has not called, unless it comes to it by an object.
    """
    met = {id(base) for holder in run.holders.by_id.values() for base in bases_of(type(holder.value))}
    perhaps = run.uses.perhaps_made.values()
    made = [cls for cls in perhaps if id(cls) in met or not paths.only_checks(cls)]
    return run.uses.by_address | set(map(name_of, made))


def _objects_of(run: RunRecord) -> tuple[list[tuple[Any, type, Any, Any]], list[Any]]:
    """The objects whose class and attributes count, as they are; and names that code looked for and did not find."""
    watched = {id(entry.holder) for entry in run.values.entries.values()}
    objects: list[tuple[Any, type, Any, Any]] = []
    missing: list[Any] = [
        (itself, mapping, frozenset(names), where) for mapping, names, where in run.holders.absent.values()
    ]
    for holder in run.holders.by_id.values():
        if holder.layout.dictionary is not None and holder.missing:
            where = f'attribute {{}}{holder.whose}'
            missing.append((holder.layout.dictionary, holder.value, frozenset(holder.missing), where))
        of_user = holder.kind == 'object' or (holder.kind == 'module' and holder.owned)
        of_user = of_user or (holder.kind == 'function' and bool(holder.start or holder.missing))
        if not of_user or holder.cls is not type(holder.value):
            continue
        get = holder.layout.dictionary
        if id(holder.value) in watched or holder.missing or holder.owned:
            read: Any = get or (lambda _: None)  # type: ignore[return-value]
            objects.append((holder.value, holder.cls, read, read(holder.value)))
    return objects, missing


def _arrays_of(run: RunRecord, carried: CarriedState | None) -> list[Any]:
    """The arrays that the run reached, without those that carried state passes to launches as arguments."""
    if carried is None:
        return list(run.values.keeper.arrays.values())
    arrays = run.values.keeper.arrays
    every = kept_in([entry.kept for entry in run.values.entries.values()])
    return list({id(one.value): one.value for one in every if one.kind == 'same' and id(one.value) in arrays}.values())


def _let_go(run: RunRecord) -> None:
    for met in (
        run.names.full, run.code.codes, run.code.callers, run.code.left_at, run.code_watch.globals,
        run.code_watch.clock, run.hidden.states, run.hidden.uncompiled, run.met.locks,
        run.holders.by_id, run.values.entries, run.values.keeper.memory, run.functions.told,
    ):  # fmt: skip
        met.clear()


def given_back(environment: Environment, result: Any, is_array: Callable[[Any], bool]) -> str | None:
    """Say which container in a result the run did not make itself: a recording would return a copy of it."""
    todo, seen = [result], set()
    shown: list[Any] = []
    placed = [] if environment.run.carried is None else environment.run.carried.tuples
    while todo:
        value = todo.pop()
        contents = contents_of(value)
        if any(value is one for one in placed):
            return f'the result is or holds {a(type(value))} that the function also puts elsewhere'
        if id(value) in seen and among(type(value), _TUPLES) and value:
            return f'the result holds {a(type(value))} twice'
        if id(value) in seen:
            continue
        if type(value) in (types.BuiltinMethodType, types.MethodWrapperType):
            if id(value) in environment.reached:
                return f'the result is or holds a method of {a(type(value.__self__))} that is not made by the function'
            continue
        seen.add(id(value))
        by_value = contents is not None or is_dataclass(type(value))
        reached = id(value) in environment.reached and type(value) is not tuple and by_value
        if reached or id(value) in environment.run.own:
            return f'the result is or holds {a(type(value))} that is not made by the function'
        if not environment.run.times.isdisjoint(attributes_of(value)):
            return f'the result is or holds {a(type(value))}, which keeps the time of a clock'
        if id(value) in environment.known or is_array(value):
            continue
        cls = type(value)  # a launch returns the same object each time
        if cls not in PAYLOADS and issubclass(cls, PAYLOADS) and layout_of(cls).dictionary is not None:
            return f'the result is or holds {a(type(value))}, which may get attributes'
        if issubclass(type(value), np.ndarray):
            shown.append(value)
        todo += [] if contents is None else contents[2]
        if not issubclass(type(value), _NOT_LOOKED_INTO):
            todo += attributes_of(value).values()
    if shown and overlap(shown, environment.containers()):
        return 'the result is or holds a NumPy array whose memory another object has, too'
    return None


#: Immutable containers: each that a launch returns is a new one.
_TUPLES = (tuple, frozenset)
_NOT_LOOKED_INTO = (type, types.ModuleType, types.FunctionType)


def _all_names(run: RunRecord) -> list[tuple[Any, Any, list[str]]]:
    """For objects, modules and classes all of whose attributes count: how to list their names, and the list."""
    names: list[tuple[Any, Any, list[str]]] = []
    for holder in run.holders.by_id.values():
        get = holder.layout.dictionary
        if get is None or holder.cls is not type(holder.value):
            continue
        if holder.kind != 'module' and (holder.whole or id(holder.value) in run.names.full):
            names.append((get, holder.value, list(holder.start)))
    for cls, _ in run.holders.classes.values():
        if id(cls) in run.names.full:
            names.append((_names_in_class, cls, _names_in_class(cls)))
    return names


def _not_pythons(names: Any) -> list[str]:
    """The names without those that Python itself adds."""
    return [name for name in names if name not in OF_PYTHON]


def _names_in_class(cls: type) -> list[str]:
    return _not_pythons(dictionary_of_class(cls))


def _aliases(run: RunRecord) -> None:
    """Refuse containers among the arguments that are also reached in another way: a recording gets copies of them."""
    for key, value in run.given.own.items():
        if issubclass(type(value), (tuple, frozenset, slice)) and not is_dataclass(type(value)):
            continue
        if key in run.values.keeper.memory or key in run.holders.by_id:
            run.doubts.say(f'{a(type(value))} is an argument and is reached in another way, too')
    if run.uses.identities and (run.uses.plain or len(run.given.own) > 3):  # three of them only pass the arguments
        given = 'a number or a text' if run.uses.plain else 'a container'
        run.doubts.say(f'{run.uses.identities} asks whether two objects are the same, and {given} is an argument')


def _written(run: RunRecord, changes: StateChanges | None) -> Reason | None:
    for holder in run.holders.by_id.values():
        if type(holder.value) is not holder.cls:
            return Reason(f'the function changes the class of {a(holder.cls)}', Why.CHANGES)
    for cls, form in run.holders.bases.values():
        if form_of_class(cls) != form:
            return Reason(f'the function changes the name or the bases of class {name_of(cls)}', Why.CHANGES)
    for array, form in [*run.values.keeper.arrays_and_forms(), *run.given.forms]:
        if (array.shape, array.strides) != form:
            return Reason(f'the function makes the shape of an array {array.shape} that was {form[0]}')
    equal: list[WatchedValue] = []
    for entry in run.values.entries.values():
        if entry.kind in ('draws', 'contents'):
            continue  # reported below
        value = entry.read()
        found = difference(entry.kept, value)
        if found is None and value is not entry.value and entry.key in run.code_watch.times:
            return Reason(f'the function rebinds {entry.where()}', Why.CHANGES)  # to an equal time, by chance
        if found is not None and (changes is None or not changes.add(entry, value)):
            return _change_in_words(entry, value, found)
        if found is None:
            equal.append(entry)
    replacing = _replacing(equal) or (None if changes is None else changes.held_elsewhere())
    if replacing is not None:
        return replacing
    for (_, name), (values, file) in run.code_watch.made.items():
        if name in values:
            return Reason(f'the function creates global {name} of {file}', Why.CREATES)
    for cls, before in run.holders.classes.values():
        new = dictionary_of_class(cls).keys() - before
        new = set(_not_pythons(new)) if id(cls) in run.names.full else new & run.names.attributes
        if new:
            return Reason(f'the function creates attribute {min(new)} of class {name_of(cls)}', Why.CREATES)
    for holder in run.holders.by_id.values():
        created = _new_attribute(run, holder)
        if created is not None:
            return Reason(f'the function creates attribute {created}{holder.whose}', Why.CREATES)
    return _drawn(run)


def _replacing(entries: Sequence[WatchedValue]) -> Reason | None:
    """Say where the run has put a container in the place of an equal one: others may hold the one that was there."""
    entries = [entry for entry in entries if entry.holds_containers]
    if all(then is now for then, now in containers((entry.kept, entry.read()) for entry in entries)):
        return None
    for entry in entries:
        another = replaced(entry.kept, entry.read())
        if another is not None:
            return Reason(f'the function puts {a(type(another))} in the place of an equal one: {entry.where()}')
    return None


def _drawn(run: RunRecord) -> Reason | None:
    """Say what the run took from generators, files or random number generators on the host."""
    for value, where in run.hidden.uncompiled.values():
        if not is_uncompiled(value):
            return Reason(f'the function may call what Numba has compiled meanwhile: {where}')
    for name, kept in run.hidden.randomness.items():
        if difference(kept, HOST_RANDOMNESS[name]()) is not None:
            return Reason(f'the function draws from {name} on the host', Why.DRAWS)
    for value, kept, where in run.hidden.states.values():
        if not is_in_state(value, kept):
            if among(type(value), FILES):
                return Reason(f'the function reads or writes a file: {where}', Why.FILE)
            return Reason(f'the function draws from {a(type(value))} on the host: {where}', Why.DRAWS)
    return None


def _new_attribute(run: RunRecord, holder: Holder) -> str | None:
    """An attribute that the run made; in modules and in objects that are not the user's, only one that code names."""
    layout = holder.layout
    now = set(layout.dictionary(holder.value)) if layout.dictionary is not None else set()
    new = now - holder.start.keys()
    new |= {name for name in layout.slots if layout.read_slot(holder.value, name) is not MISSING} - {
        name for name, value in holder.slots.items() if value is not MISSING
    }
    if (not holder.owned and not holder.whole) or holder.kind == 'module':
        new &= run.names.attributes
    if holder.kind == 'module' and not holder.owned:
        return None
    return min(new, default=None)


def _change_in_words(entry: WatchedValue, value: Any, found: ValueDifference) -> Reason:
    """Say what the function did to a watched value."""
    if entry.value is MISSING:
        return Reason(f'the function creates {entry.where()}', Why.CREATES, entry.attribute)
    if value is MISSING:
        return Reason(f'the function deletes {entry.where()}', Why.DELETES, entry.attribute)
    if entry.kind == 'state':
        return Reason(f'the function changes a setting or a log: {entry.where()}', Why.SETS)
    if value is entry.value:
        text = f'the function changes {entry.where(found.path)}: it {found.text} before'
    else:
        text = f'the function rebinds {entry.where()}'
    return Reason(text, Why.CHANGES, entry.attribute)

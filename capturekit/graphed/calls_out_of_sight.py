"""What Python tells nobody: functions written in C that C calls for the code, and calls of classes written in C.

``sorted(parts, key=id)``, ``map(datetime.timestamp, dates)`` or ``operator.call(time.time)`` call them out of sight. So
where code loads such a function and does not call it at once, what it reads counts as read. It may be watched under its
name, or be a method of a class that is written in C, whose attributes never change and so are not watched. Of a class
it counts where the code may call it: what an object of it reads, as it is made or iterated over, makes no event either.
Code may also reach classes without naming them, by the class of an object, as in ``type(file)``.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from capturekit.graphed.allowlists import SPECIAL, makes_unknown, owner_of, reads_unknown
from capturekit.graphed.calls_followed import RunRecord
from capturekit.graphed.code_reads import nested
from capturekit.graphed.hidden_state import FILES
from capturekit.graphed.read_paths import ReadPaths
from capturekit.graphed.stack_steps import call_of
from capturekit.graphed.value_changes import kept_in
from capturekit.graphed.watched_values import WatchedValue
from capturekit.model.class_layout import among, bases_of, dictionary_of_class, name_of
from capturekit.model.code_steps import Does, steps_of

_LOADS = Does.ANY_LOAD - {Does.LOADS_CLOSURE} | Does.ANY_ATTRIBUTE
_NAMES = _LOADS | {Does.IMPORTS_FROM}
_COMPARE = frozenset({'isinstance', 'issubclass'})
#: What gives all attributes of a class.
_WHOLE = frozenset({'vars', '__dict__'})
#: What makes objects that read attributes whose names they were given.
_MAKERS = frozenset({'attrgetter', 'methodcaller'})


def handed_on(run: RunRecord, paths: ReadPaths) -> Iterator[str]:
    """Say what the code that ran may call out of sight.

    Of attributes of which it is known where their values go, only those of modules count. From a class of which the
    code only asks whether objects are of it, it gets no method.
    """
    codes = [inner for code in run.code.own() for inner in nested(code)]
    entries = [entry for entry in run.values.entries.values() if paths.reads(entry)]
    yield from _classes_called(entries, codes)
    yield from _functions_handed_on(run, paths, entries, codes)
    yield from _classes_of_files(run, codes)


def _functions_handed_on(
    run: RunRecord, paths: ReadPaths, entries: list[WatchedValue], every: list[CodeType]
) -> Iterator[str]:
    asked, given = run.names.strings, run.names.attributes - SPECIAL
    watched = {entry.key: entry.kept.value for entry in entries if entry.key and reads_unknown(entry.kept.value)}
    named = {name for code in every for name in code.co_names}
    by_name = asked if named & _MAKERS else set()
    values = [entry.kept.value for entry in entries]
    values += [holder.value for holder in run.holders.by_id.values() if paths.reach(id(holder.value))]
    values = [one for one in values if not (issubclass(type(one), type) and paths.only_checks(one))]
    values += _makers_in(entries)
    methods = dict(_methods(values, named | by_name | given, bool(named & _WHOLE)))
    unshown = by_name | (methods.keys() - named)  # no step shows these names
    got = by_name | (asked - named) if 'getattr' in named else by_name
    for found, loads, anyhow in ((watched, _LOADS, got), (methods, Does.ANY_ATTRIBUTE, unshown)):
        for name, function in found.items():
            only = name in run.code_watch.times
            where = next((code for code in every if name in _names(code) and _hands_on(code, name, loads, only)), None)
            if where is not None or name in anyhow:
                place = '' if where is None else f' in {where.co_name}'
                name = f'{owner_of(function)}.{function.__name__}'
                yield f'the function hands on {name}{place}: what that reads is not known'


def _makers_in(entries: list[WatchedValue]) -> Iterator[type]:
    """The classes whose methods are in values: ``datetime.fromisoformat`` makes an object without naming its class."""
    for one in kept_in([entry.kept for entry in entries]):
        bound: Any = one.value.__self__ if type(one.value) is types.BuiltinFunctionType else None
        if issubclass(type(bound), type):
            yield bound


def _classes_called(entries: list[WatchedValue], every: list[CodeType]) -> Iterator[str]:
    """Say which watched classes written in C, whose objects may read anything, the code may call.

    What it only compares types with, it does not call: one ``isinstance`` or ``issubclass`` for each time that it loads
    the class.
    """
    for entry in entries:
        value, name = entry.kept.value, entry.key
        made = makes_unknown(value) if name and issubclass(type(value), type) else ''
        using = [code for code in every if name in _names(code)] if made else []
        if made and not (using and all(_only_compares(code, name) for code in using)):
            yield f'{entry.where()} is {made}: what its objects read is not known'


def _only_compares(code: CodeType, name: str) -> bool:
    steps = steps_of(code)
    loads = [n for n, step in enumerate(steps) if step.operand == name and step.does in _NAMES]
    compares = sum(step.operand in _COMPARE and step.does in _LOADS for step in steps)
    return len(loads) <= compares and all(call_of(steps, n) is None for n in loads)


def _methods(values: Iterable[Any], names: set[str], whole: bool) -> Iterator[tuple[str, Any]]:
    """Methods of that kind under these names, in the classes of what is watched, and in classes that are.

    ``whole``: of the latter all methods count, but for those that Python itself looks up.
    """
    values = list(values)
    classes = [cls for value in values for cls in (type(value), value) if issubclass(type(cls), type)]
    opened = {id(value) for value in values} if whole else set()
    for base in {id(base): base for cls in classes for base in bases_of(cls)}.values():
        inside = dictionary_of_class(base)
        for name in inside.keys() - SPECIAL if id(base) in opened else names & inside.keys():
            if reads_unknown(inside[name]):
                yield name, inside[name]


def _names(code: CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars, *code.co_varnames, *code.co_cellvars)


def _hands_on(code: CodeType, name: str, loads: frozenset[str], of_modules: bool = False) -> bool:
    """Whether code loads what has this name without calling it at once; ``of_modules``: of
    attributes, only those of globals count."""
    steps = steps_of(code)
    return any(
        step.operand == name
        and step.does in loads
        and not (of_modules and step.does in Does.ANY_ATTRIBUTE and steps[number - 1].does != Does.LOADS_GLOBAL)
        and call_of(steps, number) is None
        for number, step in enumerate(steps)
    )


_CLASS_OF = frozenset({'type', '__class__'})


def _classes_of_files(run: RunRecord, every: list[CodeType]) -> Iterator[str]:
    """Say which watched file's class the code may call: the class of an object needs no name."""
    if not any(_CLASS_OF & {*code.co_names} for code in every):
        return
    for value, _, _ in run.hidden.states.values():
        if among(type(value), FILES):
            yield f'the function may make a {name_of(type(value))} by the class of one: what it reads is not known'

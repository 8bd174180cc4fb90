"""The parts of a watch, each on its own: what they note, and whom they tell."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import types
from collections import UserDict
from typing import Any

import numpy as np
import pytest

from capturekit.functions.calls_followed import RunRecord, WatchedCall, record_of
from capturekit.functions.code_watch import LinesRun
from capturekit.functions.collector import Before
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.ownership import LibraryState, Ownership, default_skip
from capturekit.functions.watch import Watch
from capturekit.functions.watched_objects import (
    Attributes,
    FunctionsFound,
    GivenValues,
    HiddenParts,
    Holders,
    OutOfSight,
)
from capturekit.functions.watched_values import Doubts, NamesUsed, ObjectUses, Unsettled, WatchedValues
from capturekit.model.cleanup import Uncollected
from tests.functions.environments import Array, is_array


class Base:
    limit = 3


class Thing(Base):
    def __init__(self, rate: float) -> None:
        self.rate, self.unread = rate, Array()

    def scaled(self, by: float) -> float:
        return self.rate * by


class Parts:
    """The parts up to the holders. What the values meet goes to a list."""

    def __init__(self) -> None:
        self.doubts, self.unsettled, self.names = Doubts(default_skip), Unsettled(), NamesUsed()
        self.ownership, self.time = Ownership(default_skip), FollowTime()
        self.library = LibraryState(self.ownership)
        self.values = WatchedValues(is_array, self.doubts, self.unsettled)
        self.met: list[Any] = []
        self.values.note = self.met.append
        self.attributes = Attributes(self.values, self.names, self.library, self.ownership, self.doubts)
        self.out_of_sight = OutOfSight(self.attributes, self.ownership, self.time)
        self.holders = Holders(
            self.values, self.attributes, self.out_of_sight, self.library, self.names, self.unsettled, self.ownership,
            self.doubts, self.time,
        )  # fmt: skip

    def watched(self) -> set[str]:
        return {entry.where() for entry in self.values.entries.values()}


@pytest.fixture
def parts() -> Parts:
    return Parts()


def record() -> RunRecord:
    time = FollowTime()
    lines = LinesRun(lambda frame, first: None, lambda code, offset, function, first: None)
    return record_of(WatchedCall(is_array, default_skip, None, (), None), Uncollected(), lines, Before(time), time)


def test_no_part_of_a_watch_is_a_base_of_another() -> None:
    run = record()
    parts = [getattr(run, field.name) for field in dataclasses.fields(run)]
    assert [type(part).__mro__[1:] for part in parts if part is not None] == [(object,)] * (len(parts) - 1)
    assert Watch.__mro__ == (Watch, object)


def test_the_owner_of_a_module_is_told_by_its_file() -> None:
    ownership = Ownership(default_skip)
    assert ownership.is_foreign_module(np)
    assert ownership.is_foreign_module(json)
    assert not ownership.is_foreign_module(sys.modules[__name__])
    assert ownership.is_foreign_class(UserDict)
    assert ownership.is_foreign_class(int)
    assert not ownership.is_foreign_class(Thing)


def test_a_doubt_says_at_which_line_of_the_user() -> None:
    doubts = Doubts(default_skip)
    doubts.add(None, 'reads')
    doubts.add(sys._getframe(), 'reads')
    line = sys._getframe().f_lineno - 1
    assert doubts.unwatchable == [
        'the function reads: what that reads is not known',
        f'the function reads at test_watch_parts.py:{line}: what that reads is not known',
    ]


def test_what_a_class_of_a_library_has_is_kept() -> None:
    library = LibraryState(Ownership(default_skip))
    library.of_library(UserDict)
    library.of_library(Thing)
    assert UserDict in library.libraries.values()
    assert Thing not in library.libraries.values()
    assert library.inner[id(UserDict)][1]['__len__'] is vars(UserDict)['__len__']
    assert 'class UserDict' in [name for name, _, _ in library.sizes(False)]


def test_a_place_is_watched_once_and_what_is_met_is_told(parts: Parts) -> None:
    values, thing = {'thing': Thing(1.0)}, Thing(2.0)
    entry = parts.values.watch('global', values, 'thing', [thing, 1], ('global', ''), values)
    assert entry is not None and entry.where() == 'global thing'
    assert parts.met == [thing]
    assert parts.values.watch('global', values, 'thing', [thing, 1], ('global', ''), values) is None
    parts.values.end()
    parts.values.watch('global', values, 'other', Thing(3.0), ('global', ''), values)
    assert parts.met == [thing]
    assert parts.values.at == ''


def test_a_value_that_holds_too_much_is_a_doubt(parts: Parts) -> None:
    parts.values.watch('global', {}, 'many', list(range(20_000)), ('global', ''), {})
    assert parts.doubts.unwatchable == ['global many holds too many values to compare at each call']


def test_the_position_of_a_file_is_state(parts: Parts) -> None:
    hidden, file = HiddenParts(parts.values), io.StringIO('text')
    parts.values.at = 'global file'
    hidden.has_state(file, io.StringIO)
    assert [(value, where) for value, _, where in hidden.states.values()] == [(file, 'global file')]
    assert parts.watched() == {'global file: what it holds'}
    assert not hidden.has_state(types.MethodType(Thing.scaled, file), types.MethodType)
    assert parts.met == [Thing.scaled]
    assert parts.unsettled.also == [(file, 'global file')]


def test_attributes_are_watched_once_code_names_them(parts: Parts) -> None:
    thing = Thing(1.0)
    parts.unsettled.pending.append(thing)
    parts.holders.settle()
    assert [holder.value for holder in parts.holders.by_id.values()] == [thing]
    assert {cls for cls, _ in parts.holders.classes.values()} == {Thing, Base}
    assert not any(where.startswith('attribute rate') for where in parts.watched())
    parts.holders.name({'rate', 'limit', 'absent'}, (), False)
    assert {'attribute rate of a Thing object', 'attribute limit of class Base'} <= parts.watched()
    assert 'attribute unread of a Thing object' not in parts.watched()
    assert parts.holders.by_id[id(thing)].missing >= {'limit', 'absent'}
    sought = {where: names for _, names, where in parts.attributes.absent.values()}
    assert 'absent' in sought['attribute {} of class Thing'] & sought['attribute {} of class Base']
    parts.holders.name((), (), True)
    assert 'attribute unread of a Thing object' in parts.watched()


def test_names_of_libraries_count_for_what_is_held_later_too(parts: Parts) -> None:
    first, second = Thing(1.0), Thing(2.0)
    parts.unsettled.pending.append(first)
    parts.holders.settle()
    parts.out_of_sight.name(['rate'], parts.holders.by_id.values())
    assert 'attribute rate of a Thing object' in parts.watched()
    parts.unsettled.pending.append(second)
    parts.holders.settle()
    assert [entry.value for entry in parts.values.entries.values() if entry.key == 'rate'] == [1.0, 2.0]


def test_a_comparison_by_identity_of_plain_values_is_noted() -> None:
    uses = ObjectUses(is_array)
    uses.identity([('one',)], {'one': Thing}, {}, 'f of train.py')
    assert uses.identities == ''
    uses.identity([('one',)], {'one': [1]}, {}, 'f of train.py')
    assert uses.identities == 'f of train.py'
    uses.makes(Thing)
    assert uses.by_address == {'Thing'}


def test_a_function_is_found_by_the_frame_that_runs_it(parts: Parts) -> None:
    rate = [0.5]

    def scaled() -> Any:
        return sys._getframe(), rate

    with Before(parts.time) as before:
        functions = FunctionsFound(parts.values, parts.attributes, parts.library, parts.ownership, before, parts.time)
        functions.know(scaled)
        frame, _ = scaled()
        assert functions.find(frame, frame.f_code, frame.f_locals)
    assert {'variable rate of the closure of scaled', '__code__ of scaled'} <= parts.watched()


def test_arguments_are_told_apart_by_who_compares_them(parts: Parts) -> None:
    uses, thing, array = ObjectUses(is_array), Thing(1.0), Array()
    numbers = [1e3, thing, array]
    arguments = (numbers,)
    with Before(parts.time) as before:
        given = GivenValues(
            parts.values, parts.holders, uses, parts.doubts, before, parts.time, arguments,
            lambda value: type(value) is list,
        )  # fmt: skip
        given.keep_arguments()
    assert list(given.own) == [id(arguments), id(numbers)]
    assert thing in parts.met
    assert parts.watched() == {'an argument'}
    assert uses.plain


def test_the_parts_of_a_run_tell_each_other() -> None:
    run, thing = record(), Thing(1.0)
    run.values.watch('global', {}, 'asks', [thing, getattr], ('global', ''), {})
    assert not run.names.everything
    run.holders.settle()
    assert run.names.everything
    assert id(thing) in run.holders.by_id
    assert {entry.key for entry in run.values.entries.values()} >= {'asks', 'rate', 'unread'}

"""What a run has shown: the parts of a watch that its end, and what is made of it, read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from capturekit.functions.attributes import Attributes
from capturekit.functions.code_met import CodeMet
from capturekit.functions.code_watch import CodeWatch, NamesAsked
from capturekit.functions.collector import Before
from capturekit.functions.doubts import Doubts, NamesUsed, ObjectUses, Unsettled
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.functions_found import FunctionsFound
from capturekit.functions.hidden_parts import HiddenParts
from capturekit.functions.holders import Holders, OutOfSight
from capturekit.functions.library_uses import LibraryUses
from capturekit.functions.lines_run import LinesRun
from capturekit.functions.ownership import LibraryState, Ownership
from capturekit.functions.values_met import GivenValues, ValuesMet
from capturekit.functions.watched_values import WatchedValues
from capturekit.model.cleanup import Uncollected
from capturekit.model.kept_values import IsArray


class WatchedCall(NamedTuple):
    """What a watch is given: see :class:`capturekit.functions.watch.Watch`."""

    is_array: IsArray
    skip: Callable[[str], bool]
    ignore: Callable[[Any], bool] | None
    arguments: Any
    array: type | None


@dataclass(frozen=True)
class RunRecord:
    """The parts of a watch, each with what it has found out. ``array``: the class of arrays."""

    ownership: Ownership
    doubts: Doubts
    names: NamesUsed
    uses: ObjectUses
    code: CodeMet
    library: LibraryState
    values: WatchedValues
    hidden: HiddenParts
    attributes: Attributes
    out_of_sight: OutOfSight
    holders: Holders
    functions: FunctionsFound
    met: ValuesMet
    given: GivenValues
    asked: NamesAsked
    code_watch: CodeWatch
    libraries: LibraryUses
    lines: LinesRun
    before: Before
    array: type | None


def record_of(
    given: WatchedCall, uncollected: Uncollected, lines: LinesRun, before: Before, time: FollowTime
) -> RunRecord:
    """Make the parts of a watch. Each gets those before it that it uses; the values tell of what they meet."""
    ownership, doubts, unsettled = Ownership(given.skip), Doubts(given.skip), Unsettled()
    names, uses, code = NamesUsed(), ObjectUses(given.is_array), CodeMet()
    library = LibraryState(ownership)
    values = WatchedValues(given.is_array, doubts, unsettled)
    hidden = HiddenParts(values)
    attributes = Attributes(values, names, library, ownership, doubts)
    out_of_sight = OutOfSight(attributes, ownership, time)
    holders = Holders(values, attributes, out_of_sight, library, names, unsettled, ownership, doubts, time)
    functions = FunctionsFound(values, attributes, library, ownership, before, time)
    met = ValuesMet(values, holders, hidden, functions, library, names, uses, unsettled, ownership, uncollected)
    values.note = met.note
    arguments = GivenValues(values, holders, uses, doubts, before, time, given.arguments, given.ignore)
    asked = NamesAsked(values, holders, attributes, names, ownership, lines, before)
    code_watch = CodeWatch(
        values, holders, attributes, names, asked, arguments, code, uses, unsettled, library, doubts, lines, before,
        given.array,
    )  # fmt: skip
    libraries = LibraryUses(values, holders, attributes, library, functions, code_watch, ownership, doubts)
    return RunRecord(
        ownership, doubts, names, uses, code, library, values, hidden, attributes, out_of_sight, holders, functions,
        met, arguments, asked, code_watch, libraries, lines, before, given.array,
    )  # fmt: skip

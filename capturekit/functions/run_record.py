"""What a run has shown: the parts of a watch that its end, and what is made of it, read."""

from __future__ import annotations

from dataclasses import dataclass

from capturekit.functions.attributes import Attributes
from capturekit.functions.code_met import CodeMet
from capturekit.functions.code_watch import CodeWatch
from capturekit.functions.collector import Before
from capturekit.functions.doubts import Doubts
from capturekit.functions.functions_found import FunctionsFound
from capturekit.functions.given_values import GivenValues
from capturekit.functions.hidden_parts import HiddenParts
from capturekit.functions.holders import Holders
from capturekit.functions.library_state import LibraryState
from capturekit.functions.library_uses import LibraryUses
from capturekit.functions.lines_run import LinesRun
from capturekit.functions.names_used import NamesUsed
from capturekit.functions.object_uses import ObjectUses
from capturekit.functions.values_met import ValuesMet
from capturekit.functions.watched_values import WatchedValues


@dataclass(frozen=True)
class RunRecord:
    """The parts of a watch, each with what it has found out. ``array``: the class of arrays."""

    values: WatchedValues
    met: ValuesMet
    holders: Holders
    attributes: Attributes
    names: NamesUsed
    hidden: HiddenParts
    library: LibraryState
    uses: ObjectUses
    functions: FunctionsFound
    code: CodeMet
    code_watch: CodeWatch
    lines: LinesRun
    given: GivenValues
    libraries: LibraryUses
    doubts: Doubts
    before: Before
    array: type | None

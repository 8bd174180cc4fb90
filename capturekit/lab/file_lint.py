"""A whole script, checked while it runs: its captures, its graphed functions and the functions that it marks.

Captures are real ones. A call that a strict capture refuses and ``strict=False`` would not becomes a finding, and the
capture goes on as with ``strict=False``; any other refusal becomes a finding and is raised, which ends that capture. A
graphed function's first call, and every call of a marked function, is an eager run that is linted whole.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

from capturekit.driver.cuda import current
from capturekit.graphed.call_turns import BUSY
from capturekit.graphed.decorator import Graphed
from capturekit.guard import GUARD, LISTENERS
from capturekit.guard.lint_guard import Witness
from capturekit.lab.lint import _NOTES, Linting, Report, finding_of, note_of
from capturekit.model.cleanup import Undo
from capturekit.model.counted import counted
from capturekit.model.counters import REFUSED
from capturekit.model.errors import CaptureError, EscapedWorkError, UnjoinedError
from capturekit.model.recording import Recording
from capturekit.model.skipped_exits import Lock
from capturekit.model.source_line import Place

#: A function of a script is checked if it has a decorator of this name, such as pytest's marker.
MARK = 'capture_safe'
_JUDGED = '__capturekit_judged__'


class Judging:
    """A block whose captures, graphed and marked functions are checked: ``with Judging() as judged: ...``.

    Attributes:
        report: what was found.
        captures: how many captures were checked. functions: the names of the functions that were.
    """

    def __init__(self) -> None:
        self.report = Report()
        self.captures = 0
        self.functions: list[str] = []
        self._undo = Undo()
        self._told: dict[int, BaseException] = {}
        self._seen: dict[int, Graphed[..., Any]] = {}
        self._lock = Lock()

    def __enter__(self) -> Judging:
        GUARD.install(current())
        self._undo.push(GUARD.uninstall)
        witness = Witness(GUARD, self._add)
        self._undo.push(witness.close)
        witness.open()
        LISTENERS.append(self._hear)
        self._undo.push(lambda: LISTENERS.remove(self._hear))
        REFUSED.append(self._add)
        self._undo.push(lambda: REFUSED.remove(self._add))
        call = Graphed.__call__
        self._undo.push(lambda: setattr(Graphed, '__call__', call))
        judge = self._graphed

        def first_time(graphed: Graphed[..., Any], *args: Any, **kwargs: Any) -> Any:
            return judge(call, graphed, args, kwargs)

        setattr(Graphed, '__call__', first_time)  # noqa: B010
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        failure = self._undo.run()
        if error is not None:
            self._add(error)
        elif failure is not None:
            raise failure

    @property
    def names(self) -> dict[str, Any]:
        """The names that code from :func:`marked` needs."""
        return {_JUDGED: self.function}

    @property
    def looked(self) -> str:
        """What was checked, in words; '' if nothing was."""
        names = list(dict.fromkeys(self.functions))
        captures = [counted(self.captures, 'capture')] if self.captures else []
        functions = [counted(len(names), 'function', f' ({", ".join(names)})')] if names else []
        return ' and '.join(captures + functions)

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its calls are judged."""

        @functools.wraps(fn)
        def judged(*args: Any, **kwargs: Any) -> Any:
            if GUARD.occupied() or BUSY.depth:
                return fn(*args, **kwargs)
            return self._eagerly(fn.__qualname__, lambda: fn(*args, **kwargs))

        return judged

    def _eagerly(self, name: str, go: Callable[[], Any], graphed: bool = False) -> Any:
        self.functions.append(name)
        report = Report()
        try:
            with Linting() as report:
                return go()
        finally:
            with self._lock:
                self.report.ignored += report.ignored
                for finding in report.findings:
                    if graphed and (not finding.refused_adapting or finding.rule in _OF_GRAPHED):
                        continue
                    self.report.add(finding)

    def _graphed(self, call: Callable[..., Any], graphed: Graphed[..., Any], args: Any, kwargs: Any) -> Any:
        """Check a graphed function's first call, which runs eagerly, and leave out what such a function may do."""
        if id(graphed) in self._seen or BUSY.depth or GUARD.occupied():
            return call(graphed, *args, **kwargs)
        self._seen[id(graphed)] = graphed
        fn = graphed.__wrapped__
        return self._eagerly(getattr(fn, '__qualname__', repr(fn)), lambda: fn(*args, **kwargs), graphed=True)

    def _add(self, error: BaseException, adapted: str | None = None) -> None:
        with self._lock:
            if isinstance(error, CaptureError) and id(error) not in self._told:
                self._told[id(error)] = error
                adapted = adapted or next((text for kind, text in _ADAPTED.items() if isinstance(error, kind)), None)
                self.report.add(finding_of(error, adapted))

    def told(self, error: BaseException) -> bool:
        """Whether an exception is one of the findings."""
        return id(error) in self._told

    def _hear(self, recording: Recording, graph: Any) -> None:
        """A capture has ended."""
        self.captures += not BUSY.depth
        with self._lock:
            for step in recording.steps:
                if step.kind in _NOTES:
                    self.report.add(note_of(step.kind, step.text, Place.from_json(step.at)))


#: What strict=False does about work that is found only after it was submitted.
_ADAPTED: dict[type[CaptureError], str] = {
    EscapedWorkError: 'the stream is forked where its work begins',
    UnjoinedError: 'the lane is joined to the origin at the end',
}
#: What a graphed function may do and a capture may not: it assumes and checks values that the host reads, and between
#: two graphs it makes calls that no capture can hold.
_OF_GRAPHED = ('host-read', 'seam', 'constant', 'drawn')


# -- the script's text ----------------------------------------------------------------------------------------


class _Marking(ast.NodeTransformer):
    """Adds the checking decorator, as the innermost one, to each function that is marked or named."""

    def __init__(self, named: set[str]) -> None:
        self.named = named
        self.found: dict[str, int] = {}
        self.marked: list[str] = []
        self._path: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inner(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        name = '.'.join([*self._path, node.name])
        self.found[name] = node.lineno
        if name in self.named or any(_last_name(decorator) == MARK for decorator in node.decorator_list):
            self.marked.append(name)
        if name in self.marked and not any(_last_name(decorator) == 'graphed' for decorator in node.decorator_list):
            node.decorator_list.append(ast.copy_location(ast.Name(_JUDGED, ast.Load()), node))
        return self._inner(node)

    def _inner(self, node: Any) -> ast.AST:
        self._path.append(node.name)
        try:
            return self.generic_visit(node)
        finally:
            self._path.pop()


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ''


def marked(source: bytes, file: str, named: set[str]) -> tuple[CodeType, list[str], list[str]]:
    """Compile a script; return its code, the names of the functions that are checked, and those of all its functions.

    Raises SyntaxError as Python does.
    """
    marking = _Marking(named)
    tree = marking.visit(ast.parse(source, file))
    return compile(ast.fix_missing_locations(tree), file, 'exec', dont_inherit=True), marking.marked, [*marking.found]

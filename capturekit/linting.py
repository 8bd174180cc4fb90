"""``lint()``: all that a capture of some code would refuse, lose or bake in, found by one eager run of it.

Nothing is recorded, nothing refused: the code runs once, as ever, and its result is right. What a strict capture would
raise at each call is collected; :mod:`capturekit.guard.shadow` knows it from the guard's own verbs and the table of
rules. What a run does not come past is not found, nor what CuPy's compiled code does without coming through Python.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from capturekit import errors
from capturekit.cache import _BUSY
from capturekit.cuda import current
from capturekit.errors import CaptureError
from capturekit.guard import GUARD, Shadow
from capturekit.intercept import SEAMS
from capturekit.places import Place, here
from capturekit.rules import RULES
from capturekit.undo import Undo, add_note

VERSION = 1

#: What is recorded, but not as it reads: what it means, what a capture does, and what to do about it.
_NOTES = {
    'constant': (
        'Values of the host are uploaded once, while recording, and are the same at every launch.',
        'records the copy',
        'Right if they never change; else keep an array outside of the capture and write it before each launch.',
    ),
    'drawn': (
        'The generators of `cupy.random` count on the host: it draws anew before each launch.',
        'records a copy of the numbers',
        'Right as it is. A `cupy.random.Generator` made before the capture draws on the device.',
    ),
    'outside-handle': (
        'Work that is given to a stream outside of the capture by its handle runs at once, and is missing from the '
        'graph.',
        'notes it, and leaves the work out',
        RULES['escaped-work'].remedy,
    ),
}


@dataclass
class Finding:
    """One kind of trouble at one line.

    Attributes:
        rule: a rule's name (``capturekit explain NAME``), 'seam' for a call that no capture can hold, an exception's
            name where there is no rule; 'constant', 'drawn', 'outside-handle' for what is recorded otherwise than it
            reads.
        says: what is met, in a sentence or two.
        at: the line, as a :class:`~capturekit.places.Place`.
        count: how many times.
        strict: what a strict capture does: 'raises HostReadError', or 'records it'.
        adapting: what ``strict=False`` makes of it: 'the same', or what it becomes.
        remedy: what to write instead.
        call: the call, and what it addressed.
    """

    rule: str
    says: str
    at: Place | None
    count: int
    strict: str
    adapting: str
    remedy: str
    call: str = ''

    @property
    def refused(self) -> bool:
        """True where a strict capture raises."""
        return self.strict.startswith('raises')

    @property
    def refused_adapting(self) -> bool:
        """True where ``strict=False`` raises as well."""
        return self.refused and self.adapting == 'the same'

    @property
    def source(self) -> str:
        """The text of the line, where it can be had."""
        return '' if self.at is None else linecache.getline(self.at.file, self.at.line).strip()

    def to_json(self) -> dict[str, Any]:
        """The finding as a dictionary."""
        at = None if self.at is None else self.at.to_json()
        more = {'source': self.source, 'refused': self.refused, 'refused_adapting': self.refused_adapting}
        return {**asdict(self), 'at': at, **more}

    def __str__(self) -> str:
        many = f' ({self.count} times)' if self.count > 1 else ''
        lines = [f'{self.at or "an unknown line"}: {self.call}  [{self.rule}]{many}']
        if self.source:
            lines.append(f'    {self.source}')
        lines += [f'  {self.says}', f'  strict: {self.strict}; strict=False: {self.adapting}', f'  {self.remedy}']
        return '\n'.join(lines)


@dataclass
class Report:
    """What one run has come past: ``findings`` in the order in which they were met first, and the run's ``result``."""

    findings: list[Finding] = field(default_factory=list)
    result: Any = None

    @property
    def ok(self) -> bool:
        """True if a strict capture would refuse nothing."""
        return not any(finding.refused for finding in self.findings)

    @property
    def ok_adapting(self) -> bool:
        """True if a capture with ``strict=False`` would refuse nothing."""
        return not any(finding.refused_adapting for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The findings as dictionaries and lists; the result is left out."""
        found = [finding.to_json() for finding in self.findings]
        return {'version': VERSION, 'ok': self.ok, 'ok_adapting': self.ok_adapting, 'findings': found}

    def __str__(self) -> str:
        if not self.findings:
            return 'nothing found that a capture would refuse, lose or bake in'
        refused = sum(finding.refused for finding in self.findings)
        still = sum(finding.refused_adapting for finding in self.findings)
        head = f'{len(self.findings)} found: a strict capture refuses {refused}, one with strict=False {still}'
        return '\n'.join([head, *map(str, self.findings)])


class Linting:
    """A block that is linted: ``with Linting() as report: ...``. See :func:`lint`."""

    def __init__(self) -> None:
        self._report = Report()
        self._known: dict[tuple[str, Place | None], Finding] = {}
        self._undo = Undo()
        self._shadow: Shadow | None = None

    def __enter__(self) -> Report:
        platform = current()
        if GUARD.occupied():
            raise errors.UnmatchedError(
                'ck.lint()',
                location=here(),
                rule='What is linted runs eagerly, and this thread has a capture or a rehearsal open.',
                remedy='Lint outside of it.',
            )
        GUARD.install(platform)
        self._undo.push(GUARD.uninstall)
        try:
            shadow = self._shadow = Shadow(GUARD, self._tell, self._note)
            self._undo.push(shadow.close)
            shadow.open(here())
            _BUSY.depth += 1  # graphed functions inside run as they do in a capture: as they stand
            self._undo.push(_free)
        except BaseException:
            self._undo.run()
            raise
        return self._report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._shadow is not None
        try:
            self._shadow.look_back(aborted=error is not None)
        finally:
            failure = self._undo.run()
        self._report.findings[:] = _without_echoes(self._report.findings)
        if failure is not None:
            raise failure
        if error is not None:
            error.__dict__['capturekit_report'] = self._report
            if self._report.findings:
                add_note(error, f'capturekit lint, up to here: {self._report}')

    def _tell(self, error: CaptureError, adapted: str | None) -> None:
        self._add(
            Finding(
                _name(error),
                error.rule,
                error.location,
                1,
                strict=f'raises {type(error).__name__}',
                adapting='the same' if adapted is None else adapted or 'lets it be',
                remedy=error.remedy,
                call=error.operation + (f' on {error.subject}' if error.subject else ''),
            )
        )

    def _note(self, kind: str, call: str, at: Place | None) -> None:
        says, strict, remedy = _NOTES[kind]
        self._add(Finding(kind, says, at, 1, strict, 'the same', remedy, call))

    def _add(self, found: Finding) -> None:
        known = self._known.setdefault((found.rule, found.at), found)
        if known is found:
            self._report.findings.append(found)
        else:
            known.count += 1


def _free() -> None:
    _BUSY.depth -= 1


def _name(error: CaptureError) -> str:
    """The name of the rule that an error tells of, 'seam' for a call of that table, or the error's own name."""
    if error.operation.removesuffix('()') in SEAMS:
        return 'seam'
    for rule in RULES.values():
        if type(error) is rule.error and error.rule.startswith(rule.says):
            return rule.name
    return type(error).__name__


def _without_echoes(findings: list[Finding]) -> Iterator[Finding]:
    """A handle that was read for a call which is a finding itself is none of its own."""
    escaped = {finding.at for finding in findings if finding.refused}
    return (finding for finding in findings if finding.rule != 'outside-handle' or finding.at not in escaped)


def lint(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Run ``fn(*args, **kwargs)`` once, eagerly, and list all that a capture of it would refuse, lose or bake in.

    Nothing is refused: the run goes on behind each finding as ``strict=False`` would have it, so that all are found at
    once; the stream that is current plays the origin. ``report.ok`` is True where ``ck.capture()`` would refuse
    nothing, ``report.result`` is what ``fn`` returned, ``print(report)`` shows each finding with its line and remedy.

    On a GPU it can't be seen what a stream was given: one that is made current counts as worked on.

    Raises:
        UnmatchedError: this thread has a capture open.
        Whatever ``fn`` raises, with the report so far as a note, and as its ``capturekit_report``.
    """
    if not callable(fn):
        raise TypeError(f'lint takes a function and its arguments, got {type(fn).__name__}')
    with Linting() as report:
        report.result = fn(*args, **kwargs)
    return report

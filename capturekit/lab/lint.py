"""``lint()``: all that a capture of some code would refuse, leave out or make a constant, found by one eager run of it.

Nothing is recorded and nothing is refused: the code runs once, eagerly, and its result is right. Lines that the run
does not reach are not checked, and neither is what CuPy's compiled code does without Python.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from capturekit.driver.cuda import current
from capturekit.graphed.call_turns import BUSY
from capturekit.guard import GUARD
from capturekit.guard.entry_points import SEAMS
from capturekit.guard.lint_guard import LintGuard
from capturekit.model import errors
from capturekit.model.cleanup import Undo
from capturekit.model.errors import CaptureError
from capturekit.model.rules import RULES, VARIANTS
from capturekit.model.shown import Shown
from capturekit.model.source_line import Place, here

VERSION = 1

_IGNORE = re.compile(r'#\s*capturekit:\s*ignore(?:\[([^\]]*)\])?')

#: Calls that a capture records, but not as the code reads: what that means, what a capture does, and the remedy.
_NOTES = {
    'constant': (
        'Values of the host are uploaded once, while recording, and are the same at every launch.',
        'records the copy',
        'This is right if they never change; else keep an array outside and write it before each launch.',
    ),
    'drawn': (
        'The generators of `cupy.random` count on the host: it draws anew before each launch.',
        'records a copy of the numbers',
        'This is right as it is. A `cupy.random.Generator` made before the capture draws on the device.',
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
    """One kind of problem at one line.

    Attributes:
        rule: a rule's name (``capturekit explain NAME``), 'seam' for a call that no capture can hold, or an exception's
            name if there is no rule; 'constant', 'drawn' or 'outside-handle' if a capture records something else than
            the code says.
        says: the problem, in a sentence or two.
        at: the line, as a :class:`~capturekit.model.source_line.Place`.
        count: how many times.
        strict: what a strict capture does: 'raises HostReadError', or 'records it'.
        adapting: what ``strict=False`` does with it: 'the same', or what it becomes.
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
        """The text of the line; '' if it can't be read."""
        return '' if self.at is None else linecache.getline(self.at.file, self.at.line).strip()

    def to_json(self) -> dict[str, Any]:
        """The finding as a dictionary."""
        at = None if self.at is None else self.at.to_json()
        more = {'source': self.source, 'refused': self.refused, 'refused_adapting': self.refused_adapting}
        return {**asdict(self), 'at': at, **more}

    def in_line(self, where: str) -> str:
        """The finding in one line, which begins with where it is."""
        many = f' ({self.count} times)' if self.count > 1 else ''
        source = f'    | {self.source}' if self.source else ''
        means = f'strict: {self.strict}; strict=False: {self.adapting}'
        return f'{where}: [{self.rule}] {self.call}{many}; {means}{source}'

    def __str__(self) -> str:
        return self.in_line(str(self.at or 'an unknown line'))


@dataclass(repr=False)
class Report(Shown):
    """The findings of one run of :func:`capturekit.lint`; ``print`` shows them with lines and repairs.

    Attributes:
        findings: in the order in which they were met first.
        result: what the run returned.
        ignored: how many findings were left out because their lines say ``# capturekit: ignore`` or ``ignore[rule]``.
    """

    findings: list[Finding] = field(default_factory=list)
    result: Any = None
    ignored: int = 0

    def add(self, found: Finding) -> None:
        """Add a finding. The same one at the same line is counted; one whose line says to ignore it is left out."""
        known = next((one for one in self.findings if (one.rule, one.at) == (found.rule, found.at)), None)
        if known is not None:
            known.count += found.count
        elif is_ignored(found):
            self.ignored += 1
        else:
            self.findings.append(found)

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
        ok = {'ok': self.ok, 'ok_adapting': self.ok_adapting, 'ignored': self.ignored}
        return {'version': VERSION, **ok, 'findings': found}

    def rules(self) -> list[str]:
        """For each rule that was found, once: its name, what it means, and what to write instead."""
        lines = []
        for name in dict.fromkeys(finding.rule for finding in self.findings):
            of_it = [finding for finding in self.findings if finding.rule == name]
            lines += [f'{name}: {says}' for says in dict.fromkeys(finding.says for finding in of_it)]
            lines += [f'  {remedy}' for remedy in dict.fromkeys(finding.remedy for finding in of_it)]
        return lines

    @property
    def left_out(self) -> str:
        """How many findings were left out, in words; '' for none."""
        return f' ({self.ignored} ignored)' if self.ignored else ''

    @property
    def count(self) -> str:
        """How many there are, in one line."""
        refused, still = (sum(getattr(f, name) for f in self.findings) for name in ('refused', 'refused_adapting'))
        found = f'{len(self.findings)} found: a strict capture refuses {refused}, one with strict=False {still}'
        return found + self.left_out

    def __str__(self) -> str:
        if not self.findings:
            return f'nothing was found that a capture would refuse, leave out or make a constant{self.left_out}'
        return '\n'.join([self.count, *map(str, self.findings), *self.rules()])


class Linting:
    """A block whose calls are checked: ``with Linting() as report: ...``. See :func:`lint`."""

    def __init__(self) -> None:
        self._report = Report()
        self._undo = Undo()
        self._lint_guard: LintGuard | None = None

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
            lint_guard = self._lint_guard = LintGuard(
                GUARD,
                lambda error, adapted: self._report.add(finding_of(error, adapted)),
                lambda kind, call, at: self._report.add(note_of(kind, call, at)),
            )
            self._undo.push(lint_guard.close)
            lint_guard.open(here())
            BUSY.depth += 1  # graphed functions inside run as they do in a capture: as they stand
            self._undo.push(lambda: setattr(BUSY, 'depth', BUSY.depth - 1))
        except BaseException:
            self._undo.run()
            raise
        return self._report

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._lint_guard is not None
        try:
            self._lint_guard.look_back(aborted=error is not None)
        finally:
            failure = self._undo.run()
        if isinstance(error, CaptureError) and self._lint_guard.alone:
            self._report.add(finding_of(error, None))  # of a capture of the code's own, which nothing else reports
        found = self._report.findings
        refused = {one.at for one in found if one.refused}
        # a stream's handle that was only read for a call which is itself a finding
        found[:] = [one for one in found if one.rule != 'outside-handle' or one.at not in refused]
        if failure is not None:
            raise failure
        if error is not None:
            error.__dict__['capturekit_report'] = self._report
            if self._report.findings:
                error.add_note(f'capturekit lint, up to here: {self._report}')


def finding_of(error: CaptureError, adapted: str | None) -> Finding:
    """Make a finding of what a strict capture raises; ``adapted``: what ``strict=False`` does, None if the same."""
    return Finding(
        _name(error),
        error.rule,
        error.location,
        1,
        strict=f'raises {type(error).__name__}',
        adapting='the same' if adapted is None else adapted or 'lets it be',
        remedy=error.remedy,
        call=error.operation + (f' on {error.subject}' if error.subject else ''),
    )


def note_of(kind: str, call: str, at: Place | None) -> Finding:
    """Make a finding of a call that a capture records differently from what the code says."""
    says, strict, remedy = _NOTES[kind]
    return Finding(kind, says, at, 1, strict, 'the same', remedy, call)


def is_ignored(finding: Finding) -> bool:
    """Whether the finding's line says so: ``# capturekit: ignore``, or ``ignore[rule, rule]`` with the finding's."""
    comment = _IGNORE.search(finding.source)
    if comment is None:
        return False
    named = comment.group(1)
    return named is None or finding.rule in [name.strip() for name in named.split(',')]


def known_rules() -> set[str]:
    """Every name that a finding's rule may have."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, CaptureError)}
    return {'seam', *RULES, *_NOTES, *kinds}


def _name(error: CaptureError) -> str:
    """The name of an error's rule, 'seam' for a call that no capture can hold, or the error's own name."""
    if error.operation.removesuffix('()') in SEAMS:
        return 'seam'
    for rule in (*RULES.values(), *VARIANTS.values()):
        if rule.name in RULES and isinstance(error, rule.error) and error.rule.startswith(rule.says):
            return rule.name
    return type(error).__name__


def lint(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Run ``fn(*args, **kwargs)`` once, eagerly; list what a capture would refuse, leave out or make a constant.

    Nothing is refused: after each finding the run continues as with ``strict=False``, so that one run finds all. The
    current stream takes the part of the origin. ``report.ok`` is True if ``ck.capture()`` would refuse nothing,
    ``report.result`` is what ``fn`` returned, ``print(report)`` shows each finding with its line and remedy.

    A capture that ``fn`` opens itself is a real one. What it refuses is raised in ``fn``, since its work does not run
    and there is no value to go on with. A refusal that leaves ``fn`` is the last finding of the report.

    On a GPU, lint can not see which streams got work, and what that writes: a stream that is made current counts as
    used, and a read on a stream outside of the capture as one of an array that recorded work may write.

    Raises:
        TypeError: ``fn`` is not callable. UnmatchedError: this thread has a capture or a rehearsal open.
        Whatever ``fn`` raises, with the report so far as a note, and in the exception's ``capturekit_report``.

    Threads: only the calling thread is checked.
    """
    if not callable(fn):
        raise TypeError(f'lint takes a function and its arguments, got {type(fn).__name__}')
    with Linting() as report:
        report.result = fn(*args, **kwargs)
    return report

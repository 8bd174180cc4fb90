"""What :mod:`capturekit.cli.explain` says in words: where each rule is met, a wrong example of it and a right one.

The examples stand in ``examples.diff``: those of a name as one text, with ``-`` before the lines of the wrong one and
``+`` before those of the right one. :func:`program` makes an example whole. Tests run every one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files

from capturekit.model.rules import Code

_IMPORTS = 'import capturekit as ck\nimport cupy as cp\n'
_ARRAY = 'x = cp.arange(4.0)\n'


@dataclass(frozen=True)
class Lesson:
    """``met``: where the trouble is met. ``wrong`` and ``right``: code. ``seen``: threads of people who met it.

    ``unshown``: why there is no wrong example, or why the simulated device does not raise it. ``raises``: the name of
    what the wrong example raises, where that is not what its topic says.
    """

    met: str
    wrong: str = ''
    right: str = ''
    seen: tuple[str, ...] = ()
    unshown: str = ''
    raises: str = ''


@dataclass(frozen=True)
class ExampleKind:
    """A kind of step in a recording, or of finding of ``ck.lint()``, that is not a rule."""

    name: str
    says: str


_KINDS = {
    'adapted': 'A call that a strict capture refuses was replaced by its equivalent in a graph.',
    'assumed': 'A host read was answered with what the rehearsal read there; every launch compares.',
    'constant': 'Values of the host were uploaded once, while recording: they are the same at every launch.',
    'cut': 'The graph is split in two parts here: a value is checked in between, or the host acts.',
    'decision': 'A conditional node: the device decides at each launch whether a body runs, or how often.',
    'drawn': 'Random numbers that the host draws: a launch begins with new ones.',
    'embedded': 'Another graph stands here as one node.',
    'outside-handle': 'Work was given to a stream outside of the capture by its handle: it runs at once, and no '
    'launch repeats it.',
    'seam': 'A call that no capture can hold: one graph ends, the host makes the call at every launch, and another '
    'graph goes on.',
}
KINDS = {name: ExampleKind(name, says) for name, says in _KINDS.items()}


def program(code: str) -> str:
    """An example as a whole: with what every example begins with."""
    head, _, rest = code.partition('\n\n')
    imports, rest = (f'{head}\n', rest.lstrip('\n')) if head.startswith(('import ', 'from ')) else ('', code)
    gap = '\n\n' if rest.startswith(('def ', '@')) else ''
    return f'{_IMPORTS}{imports}\n{_ARRAY}{gap}{rest}'


#: What CUDA means by its codes.
MEANINGS: dict[Code, str] = {
    Code.cudaErrorInvalidValue: 'An argument of the call is not valid; in a capture it often is an event or a pointer '
    'that stands for nothing there.',
    Code.cudaErrorIllegalState: 'The call does not fit the state of its stream, which is being captured already, or '
    'is not being captured.',
    Code.cudaErrorStreamCaptureUnsupported: 'The call can not be made while a stream is being captured: it would have '
    "to wait for the work or to ask about it, it can not be put into a graph, or the capture's mode forbids it.",
    Code.cudaErrorStreamCaptureInvalidated: 'An earlier call has lost the capture. CUDA says so to each later one, and '
    'at the end, but not which call it was.',
    Code.cudaErrorStreamCaptureMerge: 'The call would make one capture out of two.',
    Code.cudaErrorStreamCaptureUnmatched: 'The capture was not begun on this stream.',
    Code.cudaErrorStreamCaptureUnjoined: 'The capture has a fork that was not joined to the origin, or that was worked '
    'on after its join. CUDA does not say which.',
    Code.cudaErrorStreamCaptureIsolation: 'A captured stream was told to wait for something outside of the capture.',
    Code.cudaErrorStreamCaptureImplicit: 'The call would order the legacy stream after a captured stream that it '
    'synchronises with: a blocking one.',
    Code.cudaErrorCapturedEvent: 'The event was last recorded in a capture: it stands for nodes, not for running work.',
    Code.cudaErrorStreamCaptureWrongThread: 'The capture was not begun by this thread.',
    Code.cudaErrorTimeout: 'A wait took longer than it was allowed to.',
    Code.cudaErrorGraphExecUpdateFailure: 'An executable graph could not be updated: the new graph has other nodes or '
    'other edges, or a node changed what can not be changed.',
}


def _read(text: str) -> dict[str, Lesson]:
    """The lessons of a text: under each name its fields, then both examples as one, marked as a diff is."""
    found = {}
    for part in text.removeprefix('== ').split('\n== '):
        head, _, code = part.partition('\n\n')
        name, *said = head.replace('\n    ', ' ').splitlines()
        given = [line.partition(': ')[::2] for line in said]
        seen = tuple(value for key, value in given if key == 'seen')
        fields = {key: value for key, value in given if key != 'seen'}
        found[name] = Lesson(**fields, wrong=_side(code, '-'), right=_side(code, '+'), seen=seen)
    return found


def _side(code: str, mark: str) -> str:
    """One of the two examples: the lines with its own mark, and those of both, which have none."""
    return ''.join(f'{line[2:]}\n' for line in code.splitlines() if line[:1] in (mark, ' ', ''))


#: The key is the name of a rule, of a code whose example is not its first rule's, or of an exception without a rule.
LESSONS: dict[str, Lesson] = _read(files('capturekit.cli').joinpath('examples.diff').read_text(encoding='utf-8'))
LESSONS['assumed'] = replace(LESSONS['AssumptionError'], raises='AssumptionError')
LESSONS['cudaErrorGraphExecUpdateFailure'] = LESSONS['UpdateError']
LESSONS['cudaErrorIllegalState'] = LESSONS['already-capturing']

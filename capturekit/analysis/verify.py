"""``graph.verify()``: a graph's launches compared with eager runs, with other inputs, over poisoned memory.

A graph repeats what was recorded. A value that the host computed while recording is the same at every launch, whatever
the inputs are: a value that Python had read, a list that was uploaded, a scalar argument. The results of such a graph
are wrong. Here its inputs are changed, and its results are compared with those of the function.
"""

from __future__ import annotations

import ast
import linecache
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.analysis.node_view import Node
from capturekit.driver.cuda import Platform, StreamHandle, current
from capturekit.launch.array_extent import extent
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.host_reads import Rehearsal
from capturekit.model.progress import each
from capturekit.model.shown import Shown
from capturekit.model.source_line import Place, here

if TYPE_CHECKING:
    from numpy.typing import NDArray


# -- values that came from the host: the lines that likely baked a value into a graph ---------------------------------


#: The most lines that are named.
MOST_LINES = 8


@dataclass
class Suspect:
    """Something that came from the host. ``at``: file, line and function, or None.

    ``kind``: 'upload' (an array uploaded while recording), 'scalar' (a kernel's argument), 'value' (a number of the
    host's that a recorded line names), 'read' (a host read that a rehearsal answered), 'drawn' (random numbers).
    """

    kind: str
    text: str
    at: list[Any] | None = None

    def __str__(self) -> str:
        place = Place.from_json(self.at)
        if place is None:
            return self.text
        source = linecache.getline(place.file, place.line).strip()
        return f'{place}: {self.text}' + (f': `{source}`' if source else '')


def suspects(graph: Any, fn: Callable[..., Any], frame: FrameType | None, array: Any, values: bool) -> list[Suspect]:
    """Values that came from the host on the way to an array of a graph, the likeliest first; else its last lines.

    ``values``: whether a value that is the same at every launch can be the cause. ``fn`` and ``frame`` know names.
    """
    recording = graph.recording
    nodes = _before(graph, array)
    lines = list(dict.fromkeys(node.at for node in nodes if node.at is not None))
    found = []
    spaces = _spaces(fn, frame)
    if values:
        found += [Suspect('upload', step.text, step.at) for step in recording.constants]
        found += list(_scalars(graph, nodes))
        found += [suspect for at in lines for suspect in _names(at, spaces)]
        found += [Suspect('read', step.text, step.at) for step in recording.steps if step.kind == 'assumed']
    found += [Suspect('drawn', step.text, step.at) for step in recording.steps if step.kind == 'drawn']
    if not found:
        found = [Suspect('line', 'the work behind it', at.to_json()) for at in reversed(lines)]
    unique = {(suspect.kind, suspect.text, str(suspect.at)): suspect for suspect in found}
    return list(unique.values())[:MOST_LINES]


def _before(graph: Any, array: Any) -> list[Node]:
    """The nodes that touch an array, and all before them; all nodes where that is not known."""
    nodes: list[Node] = graph.nodes
    low, high = extent(array)
    wanted = {node.number for node in nodes if any(low <= word.address < high for word in node.pointers)}
    if not wanted:
        return nodes
    behind: dict[int, list[int]] = {}
    for tail, head in graph.edges:
        behind.setdefault(head, []).append(tail)
    waiting = list(wanted)
    while waiting:
        for tail in behind.get(waiting.pop(), ()):
            if tail not in wanted:
                wanted.add(tail)
                waiting.append(tail)
    return [node for node in nodes if node.number in wanted]


def _scalars(graph: Any, nodes: list[Node]) -> Iterator[Suspect]:
    """Scalar arguments of the kernels, except those that the line itself spells out."""
    lines: dict[str, list[Place]] = {}
    for node in nodes:
        if node.at is not None:
            lines.setdefault(node.name, []).append(node.at)
    for known in graph.constants():
        if known['kind'] == 'scalar':
            for at in dict.fromkeys(lines.get(known['kernel'], [])):
                if not spelled_out(known['value'], linecache.getline(at.file, at.line)):
                    text = f'argument {known["argument"]} of {known["kernel"]} is {known["value"]}'
                    yield Suspect('scalar', text, at.to_json())


def _spaces(fn: Callable[..., Any], frame: FrameType | None) -> list[Mapping[str, Any]]:
    """The places where names are looked up: the frame, then the function's closure and globals."""
    spaces: list[Mapping[str, Any]] = [] if frame is None else [frame.f_locals, frame.f_globals]
    fn = getattr(fn, '__wrapped__', fn)
    free = getattr(getattr(fn, '__code__', None), 'co_freevars', ())
    with suppress(ValueError):  # a cell that is empty
        spaces.append({name: cell.cell_contents for name, cell in zip(free, getattr(fn, '__closure__', None) or ())})
    return [*spaces, getattr(fn, '__globals__', {})]


def _names(at: Place, spaces: list[Mapping[str, Any]]) -> Iterator[Suspect]:
    """Numbers of the host's that a line names."""
    for name in names_in(linecache.getline(at.file, at.line)):
        value = next((space[name] for space in spaces if name in space), None)
        if isinstance(value, (bool, int, float, complex, np.generic)):
            yield Suspect('value', f'{name} was {value!r} on the host', at.to_json())
        elif isinstance(value, np.ndarray):
            yield Suspect('value', f'{name} was an array on the host', at.to_json())


def names_in(source: str) -> list[str]:
    """The names that a line reads."""
    try:
        tree = ast.parse(source.strip())
    except SyntaxError:  # a part of a statement
        return list(dict.fromkeys(re.findall(r'(?<![\w.])[A-Za-z_]\w*', source)))
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    loads.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in loads))


def spelled_out(value: Any, source: str) -> bool:
    """Whether a line holds a number as it stands."""
    numbers = re.findall(r'(?<![\w.])(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?', source)
    try:
        return any(math.isclose(abs(float(value)), float(number), rel_tol=1e-6) for number in numbers)
    except (TypeError, ValueError, OverflowError):  # no real number
        return False


VERSION = 1
#: The contents of poisoned memory: NaN as floats of any size, -1 as signed integers.
_POISON = 0xFF
_SAID = {
    'constant': 'stays the same although the inputs changed',
    'differs': 'differs from the eager run',
    'changes': 'changes on the second launch, with the same inputs',
}


@dataclass
class Mismatch:
    """One output that differs from the eager run.

    Attributes:
        kind: 'constant' (the same in all rounds, while the eager run's changes), 'differs' (from the eager run), or
            'changes' (launched again on the same inputs, it gave something else).
        output: the array: 'output', 'output[1]', "output['loss']", or an argument changed in place, by its name.
        largest: the largest absolute difference of two elements; inf where one of the two is not finite.
        rounds: in which rounds, counted from 0; round 0 has the inputs as they were.
        suspects: what came from the host and may be the cause, the likeliest first.
    """

    kind: str
    output: str
    largest: float
    rounds: list[int]
    suspects: list[Suspect] = field(default_factory=list)

    def __str__(self) -> str:
        rounds = ', '.join(map(str, self.rounds))
        lines = [f'{self.output} {_SAID[self.kind]} (round {rounds}), by up to {self.largest:.3g}']
        if self.suspects:
            lines += ['  likely from:', *(f'    {suspect}' for suspect in self.suspects)]
        return '\n'.join(lines)


@dataclass(repr=False)
class Verification(Shown):
    """What :meth:`Graph.verify` found.

    Attributes:
        rounds: launches compared with eager runs; the first with the inputs as they were.
        outputs: the names of the arrays that were compared.
        mismatches: the outputs that differ.
        stopped: for each round that was not compared, why: a check of a host read stopped the launch, or ``fn`` raised.
        unchanged: the arguments that could not be changed: whole numbers that are all the same, and empty arrays.
    """

    rounds: int = 0
    outputs: list[str] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every launch that was compared gave what the eager run gave, and at least one was."""
        return not self.mismatches and self.rounds > 0

    def to_json(self) -> dict[str, Any]:
        """The report as dictionaries and lists."""
        return {'version': VERSION, 'ok': self.ok, **asdict(self)}

    def __str__(self) -> str:
        names = ', '.join(self.outputs)
        head = f'{counted(self.rounds, "round")} compared, of {names}: ' + (
            'as the eager runs' if self.ok else 'not as it should be'
        )
        lines = [head if self.rounds else 'nothing was compared', *map(str, self.mismatches)]
        lines += [f'not compared: {reason}' for reason in self.stopped]
        if self.unchanged:
            lines.append(f'never changed: {", ".join(self.unchanged)}')
        return '\n'.join(lines)


def verify(
    graph: Any,
    state: Any,
    fn: Callable[..., Any],
    args: Sequence[Any],
    outputs: Any,
    values: Sequence[Sequence[Any]] | None,
    rounds: int,
    rtol: float | None,
    atol: float | None,
    frame: FrameType | None,
) -> Verification:
    """Make the report for :meth:`Graph.verify`, of a graph with a state; ``frame`` is its caller's."""
    if not callable(fn):
        raise TypeError(f'verify takes the function that the graph was recorded from, got {type(fn).__name__}')
    if isinstance(rounds, bool) or not isinstance(rounds, int):
        raise TypeError(f'rounds must be a whole number, got {rounds!r}')
    if rounds < 1:
        raise ValueError(f'rounds must be 1 or more, got {rounds}')
    check_tolerance('rtol', rtol)
    check_tolerance('atol', atol)
    if state.gate.occupied():
        raise errors.UnmatchedError(
            'Graph.verify()',
            location=here(frame),
            rule='It launches the graph and runs the function, and this thread has a capture or a rehearsal open.',
            remedy='Verify outside of it.',
        )
    return _Trial(graph, state, fn, args, outputs, frame, rtol, atol).run(values, rounds)


# -- arrays in containers ---------------------------------------------------------------------------------------


def _named(value: Any, name: str, array: type) -> Iterator[tuple[str, Any]]:
    """The arrays in a value, in lists, tuples and dictionaries, each with its name."""
    if isinstance(value, array):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from _named(part, f'{name}[{number}]', array)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _named(part, f'{name}[{key!r}]', array)


def _with(value: Any, arrays: Mapping[int, Any]) -> Any:
    """A value with other arrays in it, by the identity of the old ones."""
    if id(value) in arrays:
        return arrays[id(value)]
    if isinstance(value, tuple):
        parts = [_with(part, arrays) for part in value]
        return type(value)(*parts) if hasattr(value, '_fields') else tuple(parts)
    if isinstance(value, list):
        return [_with(part, arrays) for part in value]
    if isinstance(value, dict):
        return {key: _with(part, arrays) for key, part in value.items()}
    return value


def _names_of_arguments(fn: Callable[..., Any], count: int) -> list[str]:
    code = getattr(getattr(fn, '__wrapped__', fn), '__code__', None)
    known = code.co_varnames[: code.co_argcount] if code is not None else ()
    if known and hasattr(fn, '__self__'):
        known = known[1:]
    return [known[n] if n < len(known) else f'argument {n}' for n in range(count)]


def check_tolerance(name: str, value: Any) -> None:
    """Raise TypeError or ValueError if this is neither None nor a number of at least 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f'{name} must be a number or None, got {value!r}')
    if not value >= 0:
        raise ValueError(f'{name} must be 0 or more, got {value}')


# -- other values, and comparing --------------------------------------------------------------------------------


def changed(values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Other values for an input: random ones within the range of these; booleans are flipped.

    Floats that are all equal vary around that number by half; whole numbers that are all equal stay. Elements that are
    not finite stay.
    """
    kind = values.dtype.kind
    if kind == 'b':
        return ~values
    if kind in 'iu' and values.size:
        low, high = int(np.min(values)), int(np.max(values))
        return rng.integers(low, high, values.shape, values.dtype.type, endpoint=True)
    if kind == 'c':
        parts = [_other_floats(part, rng) for part in (values.real, values.imag)]
        return np.asarray(parts[0] + 1j * parts[1]).astype(values.dtype)
    return _other_floats(values, rng).astype(values.dtype) if kind == 'f' else values.copy()


def _other_floats(values: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float64]:
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    if not finite.any():
        return wide
    low, high = float(np.min(wide[finite])), float(np.max(wide[finite]))
    if low == high:
        low, high = (0.5 * low, 1.5 * low) if low else (0.0, 1.0)
    share = rng.random(wide.shape)
    return np.where(finite, low * (1 - share) + high * share, wide)


def difference(got: NDArray[Any], want: NDArray[Any], rtol: float | None, atol: float | None) -> float | None:
    """The largest difference of two arrays of one shape and dtype; None where they are equal as far as it matters."""
    if np.array_equal(got, want):
        return None
    if got.dtype.kind not in 'fc':
        return float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
    relative = math.sqrt(float(np.finfo(got.dtype).eps)) if rtol is None else rtol
    finite = np.isfinite(want)
    scale = float(np.max(np.abs(want[finite]), initial=0.0))
    absolute = relative * scale if atol is None else atol
    with np.errstate(all='ignore'):
        if np.allclose(got, want, relative, absolute, equal_nan=True):
            return None
        apart = np.abs(got - want)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
    apart = np.where(same, 0, apart)
    return float(np.max(apart)) if np.isfinite(apart).all() else math.inf


# -- a trial ----------------------------------------------------------------------------------------------------


@dataclass
class _Output:
    """The values of one output, by rounds: from the first launch, and from the eager run."""

    name: str
    array: Any
    got: list[NDArray[Any]] = field(default_factory=list)
    want: list[NDArray[Any]] = field(default_factory=list)
    wrong: dict[int, float] = field(default_factory=dict)
    unsteady: dict[int, float] = field(default_factory=dict)


class _Trial:
    """One verification of one graph."""

    def __init__(
        self, graph: Any, state: Any, fn: Callable[..., Any], args: Sequence[Any], outputs: Any,
        frame: FrameType | None, rtol: float | None, atol: float | None,
    ) -> None:  # fmt: skip
        self.platform: Platform = current()
        self.cupy = self.platform.cupy
        self.graph, self.state = graph, state
        self.fn = fn
        self.args = tuple(args)
        self.frame = frame
        self.tolerance = (rtol, atol)
        array = self.cupy.ndarray
        names = _names_of_arguments(fn, len(self.args))
        pairs = [pair for name, arg in zip(names, self.args) for pair in _named(arg, name, array)]
        self.inputs = {id(one): (name, one) for name, one in pairs}
        self.order = [*_named(outputs, 'output', array)]
        self.written = {id(one) for _name, one in self.order}
        if outputs is not None and not self.written:
            raise TypeError(f'outputs must be the arrays that the graph writes, got {type(outputs).__name__}')

        self.report = Verification()
        self.outputs: list[_Output] = []

    def run(self, values: Sequence[Sequence[Any]] | None, rounds: int) -> Verification:
        given = self._given(values)
        saved = [(one, one.copy()) for one in self._touched()]
        first = [self._host(one) for _name, one in self.inputs.values()]
        names, moved = [name for name, _one in self.inputs.values()], set[str]()
        rng = np.random.default_rng(0)
        count = 1 + (rounds if given is None else len(given))
        try:
            for number in each('verifying', range(count)):
                if number == 0:
                    contents = first
                elif given is not None:
                    contents = given[number - 1]
                else:
                    contents = [changed(one, rng) for one in first]
                self._round(number, contents)
                pairs = zip(names, first, contents)
                moved |= {name for name, before, now in pairs if before.tobytes() != now.tobytes()}
                self.report.unchanged = [name for name in names if name not in moved] if number else []
        finally:
            for one, before in saved:
                one[...] = before
            self.cupy.cuda.get_current_stream().synchronize()
        return self._found()

    def _given(self, values: Sequence[Sequence[Any]] | None) -> list[list[NDArray[Any]]] | None:
        """The caller's own values for the inputs, checked."""
        if values is None:
            return None
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise TypeError(f'values must be a sequence with the arrays of each round, got {type(values).__name__}')
        rounds = []
        for contents in values:
            if len(contents) != len(self.inputs):
                wanted = counted(len(self.inputs), 'array')
                raise ValueError(f'values must hold {wanted} for each round, got {len(contents)}')
            made = []
            for (name, one), content in zip(self.inputs.values(), contents):
                host = self._host(content) if isinstance(content, self.cupy.ndarray) else np.asarray(content)
                if host.shape != one.shape:
                    raise ValueError(f'values for {name} must have shape {one.shape}, got {host.shape}')
                made.append(host.astype(one.dtype))
            rounds.append(made)
        return rounds

    def _host(self, array: Any) -> NDArray[Any]:
        return np.array(self.cupy.asnumpy(array))

    def _touched(self) -> list[Any]:
        """Every array outside of the graph's memory that may be written: all are restored at the end."""
        cupy, memory = self.cupy, self.state.memory
        found = [one for _name, one in (*self.inputs.values(), *self.order)]
        found += [one for value in self._reached() for _name, one in _named(value, '', cupy.ndarray)]
        pointer = cupy.cuda.MemoryPointer
        held = (one for thing in memory.held() for one in (thing if isinstance(thing, list) else [thing]))
        for mem in (one.mem for one in held if isinstance(one, pointer)):
            if mem.size and not (memory.holds(mem.ptr) if memory.private else memory.owns(mem)):
                found.append(cupy.ndarray((mem.size,), np.uint8, pointer(mem, 0)))
        return list({id(one): one for one in found}.values())

    def _reached(self) -> Iterator[Any]:
        """Values that the function names besides its arguments: closures, and globals of its code."""
        fn = getattr(self.fn, '__wrapped__', self.fn)
        for cell in getattr(fn, '__closure__', None) or ():
            with suppress(ValueError):  # not assigned yet
                yield cell.cell_contents
        code, space = getattr(fn, '__code__', None), getattr(fn, '__globals__', {})
        for name in code.co_names if code is not None else ():
            if name in space:
                yield space[name]

    # -- one round ------------------------------------------------------------------------------------------------

    def _round(self, number: int, contents: list[NDArray[Any]]) -> None:
        try:
            drawn = self._launch(contents)
            got = [self._host(one) for _name, one in self._compared()]
            want = self._eager(number, contents, drawn)
            if want is None:
                return
            self._launch(contents)
        except errors.AssumptionError as error:
            at = '' if error.location is None else f' at {error.location}'
            self.report.stopped.append(f'round {number}: the check of the host read{at} stopped the launch')
            return
        self.report.rounds += 1
        for out, first, eager in zip(self.outputs, got, want):
            out.got.append(first)
            out.want.append(eager)
            apart = difference(first, eager, *self.tolerance)
            if apart is not None:
                out.wrong[number] = apart
            again = difference(self._host(out.array), first, *self.tolerance)
            if again is not None and not drawn:  # what is drawn is new at each launch
                out.unsteady[number] = again

    def _compared(self) -> list[tuple[str, Any]]:
        """The arrays that are compared: the outputs, then the inputs, which may be changed in place."""
        return [*self.order, *(pair for key, pair in self.inputs.items() if key not in self.written)]

    def _launch(self, contents: list[NDArray[Any]]) -> list[Any]:
        """Fill the inputs, poison free memory, launch; return the numbers that were drawn for the launch."""
        for (_name, one), content in zip(self.inputs.values(), contents):
            one[...] = self.cupy.asarray(content)
        self._poison()
        self.graph.launch()
        self.cupy.cuda.get_current_stream().synchronize()
        plan = self.state.plan
        return [] if plan is None else plan.drawn()

    def _eager(self, number: int, contents: list[NDArray[Any]], drawn: list[Any]) -> list[NDArray[Any]] | None:
        """Run the function on copies of the inputs; return the results, and the copies after the run."""
        copies: dict[int, Any] = {}
        for (key, (_name, one)), content in zip(self.inputs.items(), contents):
            copies[key] = one.copy(order='K')
            copies[key][...] = self.cupy.asarray(content)
        try:
            with self.state.gate.rehearsing(self.platform, Rehearsal(), list(drawn)):
                result = self.fn(*_with(self.args, copies))
        except Exception as error:
            if number == 0:  # the inputs are unchanged, so the function itself is wrong
                raise
            self.report.stopped.append(f'round {number}: the eager run raised {error!r}')
            return None
        results = self._results(result, copies)
        rest = [copies[key] for key in self.inputs if key not in self.written]
        return [self._host(one) for one in (*results, *rest)]

    def _results(self, result: Any, copies: Mapping[int, Any]) -> list[Any]:
        """The arrays that the function returned, in the order of the outputs, which they must match."""
        returned = [one for _name, one in _named(result, 'output', self.cupy.ndarray)]
        if not self.written and all(any(one is copy for copy in copies.values()) for one in returned):
            returned = []
        if len(returned) != len(self.order):
            told = 'give outputs=' if not self.written else f'outputs has {len(self.order)}'
            got = counted(len(returned), 'array')
            raise ValueError(f'the function returns {got}: {told}, the arrays that the graph writes')
        for (name, out), one in zip(self.order, returned):
            if (out.shape, out.dtype) != (one.shape, one.dtype):
                raise ValueError(f'{name} is {out.dtype}{out.shape}, and the function returns {one.dtype}{one.shape}')
        if not self.outputs:
            self.outputs = [_Output(name, one) for name, one in self._compared()]
        return returned

    # -- poison ---------------------------------------------------------------------------------------------------

    def _poison(self) -> None:
        """Write over free memory of the graph's own."""
        cupy = self.cupy
        streams = [cupy.cuda.Stream.from_external(StreamHandle(lane.stream)) for lane in self.graph.recording.lanes]
        ptr = cupy.cuda.get_current_stream().ptr
        with self.state.gate.inside(), self.state.memory.turn(ptr):
            for pointer in self.state.memory.spare(streams):
                pointer.memset_async(_POISON, int(pointer.mem.size) - (int(pointer.ptr) - int(pointer.mem.ptr)))
        cupy.cuda.get_current_stream().synchronize()

    # -- what was found -------------------------------------------------------------------------------------------

    def _found(self) -> Verification:
        report = self.report
        report.outputs = [out.name for out in self.outputs]
        for out in self.outputs:
            still = len(out.got) > 1 and all(one.tobytes() == out.got[0].tobytes() for one in out.got)
            kinds = [('constant' if still and 0 not in out.wrong else 'differs', out.wrong), ('changes', out.unsteady)]
            for kind, rounds in kinds:
                if rounds:
                    found = suspects(self.graph, self.fn, self.frame, out.array, kind != 'changes')
                    largest = max(rounds.values())
                    report.mismatches.append(Mismatch(kind, out.name, largest, list(rounds), found))
        return report

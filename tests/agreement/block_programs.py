"""Random programs of blocks: each as source that captures and launches, and as source that does the same plainly.

A program knows whether it is sound. All that a block does is drawn so that it is right: clocks of the lanes say who may
read and write what. At most one deed of a block is wrong (:mod:`tests.agreement.block_deeds`), and then the program
knows the lines at which it may be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.agreement.block_deeds import CAUGHT, WRONG, Deed
from tests.agreement.block_source import Block, Line, Program, rendered
from tests.agreement.choices import Choices

MAKING = (
    '{a} * 0.5 + {b}', '{a} - {b} * 0.25', 'cp.tanh({a}) + {b}', '{a}[::-1] + {b}', 'cp.where({a} > 1, {a}, {b})',
    '{a} @ M', 'cp.concatenate([{a}[:2], {b}[2:]])', '{a} * cp.tanh({b}.sum())', 'cp.arange(4.0) + {a}', '{a}.copy()',
    'cp.sort({a}) - {b}', 'cp.cumsum({a}) * 0.25 + cp.zeros(4)', '{a} + cp.asarray([1.0, 0.0, 2.0, 1.0])',
)  # fmt: skip
#: The last ones bind no name, so that inner functions can do them with names of outer ones.
CHANGING = (
    '{a} *= 0.5', '{a} += {b} * 0.5', '{a}[1:] += 1.0', '{a}[...] = cp.tanh({b})', 'cp.add({a}, {b}, out={a})',
    '{a}.fill(2.0)', 'cp.multiply({a}, 0.5, out={a})',
)  # fmt: skip
BINDS_NOTHING = 2


@dataclass
class Lane:
    """A stream of the capture, and for each lane how far this one has come after it."""

    name: str
    number: int
    clock: dict[int, int] = field(default_factory=dict)

    def follows(self, other: dict[int, int]) -> None:
        for lane, tick in other.items():
            self.clock[lane] = max(self.clock.get(lane, 0), tick)

    def after(self, place: tuple[int, int]) -> bool:
        return self.clock.get(place[0], 0) >= place[1]


@dataclass
class Value:
    """An array of four numbers: its name, the place that wrote it, those that have read it, and whose name it is."""

    name: str
    written: tuple[int, int] = (0, 0)
    read: list[tuple[int, int]] = field(default_factory=list)
    scope: int = -1


def program(choices: Choices) -> Program:
    """Draw a program of one to three blocks."""
    lines: list[Line] = []
    blocks = [_block(choices, lines, number) for number in range(choices.pick((1, 1, 2, 3)))]
    captured, marks = rendered(lines, True)
    changes = [choices.below(4) for _ in range(choices.pick((2, 3, 4)))]
    return Program(captured, rendered(lines, False)[0], blocks, marks, changes, choices.once_in(4))


def _block(choices: Choices, lines: list[Line], number: int) -> Block:
    block = Block()
    body: list[Line] = []
    lines.append(Line(*[f'def block{number}(X, Y, M, S, keep, caught, missed, right):'] * 2, body))
    options = [choices.pick(('', '', f'S[{choices.below(4)}]'))]
    block.strict = not choices.once_in(4)
    pieces = choices.once_in(5)
    options += [] if block.strict else ['strict=False']
    options += ['pieces=True'] if pieces else []
    options += ["mode='thread_local'"] if choices.once_in(10) else []
    making = Making(choices, body, 'X', pieces, block)
    if options[0]:
        making.free.remove(options[0])
    making.wrong = choices.pick(WRONG) if choices.once_in(5) else None
    if choices.once_in(10):
        block.ends = 'KeyError'
    if choices.once_in(8):
        block.interrupted = [choices.below(1000) for _ in range(2)]
    making.whole(f'ck.capture({", ".join(one for one in options if one)})')
    return block


class Making:
    """Makes the statements of one block. ``state``: the name of the list whose arrays it works on."""

    def __init__(
        self, choices: Choices, out: list[Line], state: str, pieces: bool, block: Block, depth: int = 0
    ) -> None:
        self.choices, self.out, self.state, self.pieces, self.block = choices, out, state, pieces, block
        self.before = out
        self.values = [Value(f'{state}[{number}]') for number in range(4)]
        self.free = [f'S[{number}]' for number in range(8)]
        self.cap = choices.name('cap')
        self.origin = Lane(f'{self.cap}.stream', 0)
        self.current = self.origin
        self.lanes: list[Lane] = [self.origin]
        self.forked: list[Lane] = []
        self.events: list[tuple[str, dict[int, int]]] = []
        self.ticks = 0
        self.functions = 0
        self.bodies = 0
        self.scopes = 0
        self.depth, self.level = depth, 0
        self.wrong: Deed | None = None

    # -- the block itself -----------------------------------------------------------------------------------------

    def whole(self, opened: str) -> None:
        """The block, what is before it, and what it leaves."""
        self.before = []
        self.out.append(Line(None, None, self.before))
        outer, body = self.out, []
        head = Line(f'with {opened} as {self.cap}:', None, body)
        if self.choices.once_in(8):
            self.add(f'{self.cap} = {opened}\n{self.cap}.__enter__()', None)
            head = Line('try:', None, body)
        self.out.append(head)
        self.out = body
        self.statements(self.choices.pick((2, 3, 4, 5, 6, 8)))
        self._wrong_one(head)
        self.join_all()
        if self.block.ends == 'KeyError':
            self.add("raise KeyError('out')", None)
        self.out = outer
        if head.captured == 'try:':
            self.add(f'finally:\n    {self.cap}.__exit__(*sys.exc_info())', None, 0)
        kept = [value for value in self.values if value.name.isidentifier() and self.choices.below(3)]
        names = ', '.join(f'{one.name}={one.name}' for one in kept)
        self.add(f'keep({self.cap}, {names})', f'keep(None, {names})')

    def _wrong_one(self, head: Line) -> None:
        """The wrong deed, whose lines and those of the block's begin may be refused."""
        if self.wrong is None or not self.free:
            return
        self.join_all()
        self.block.wrong, self.block.moves = self.wrong.name, self.wrong.moves
        values = self.readable()
        free = self.choices.pick(self.free)
        self.free.remove(free)  # the deed may make it a stream of the capture
        names = {
            'a': self.choices.pick(values).name,
            'b': self.choices.pick(values).name,
            'v': self.bound(),
            'free': free,
            'cap': self.cap,
            'n': self.choices.name('w'),
            'i': self.state,
        }
        for text in self.wrong.before:
            self.before.append(Line(text.format(**names), None))
        for captured, plain in self.wrong.lines:
            self.add(captured.format(**names) or None, plain.format(**names) or None, 0)
        head.marks = frozenset([0])
        self.level += 9  # no decision, which would be refused where a lane is open
        self.statements(self.choices.below(3))
        self.level -= 9

    def add(self, captured: str | None, plain: str | None, *marks: int) -> None:
        self.out.append(Line(captured, plain, None, frozenset(marks)))

    @contextmanager
    def inside(self, captured: str | None, plain: str | None, *marks: int) -> Iterator[Line]:
        """Statements that are made meanwhile are the body of this one."""
        outer, body = self.out, []
        line = Line(captured, plain, body, frozenset(marks))
        outer.append(line)
        self.out = body
        try:
            yield line
        finally:
            self.out = outer

    # -- arrays -----------------------------------------------------------------------------------------------------

    def tick(self) -> tuple[int, int]:
        self.ticks += 1
        self.current.clock[self.current.number] = self.ticks
        return self.current.number, self.ticks

    def readable(self) -> list[Value]:
        return [value for value in self.values if self.current.after(value.written)]

    def writable(self, own_name: bool = False) -> list[Value]:
        found = [value for value in self.readable() if all(self.current.after(place) for place in value.read)]
        return [one for one in found if one.scope == self.scopes] if own_name else found

    def reading(self, *values: Value) -> None:
        place = self.tick()
        for value in values:
            value.read.append(place)

    def bound(self) -> str:
        """A new array under a name of the block, for deeds that need one."""
        name = self.choices.name('v')
        self.both(f'{name} = {self.state}[0] * 0.5')
        return name

    def both(self, text: str) -> None:
        self.add(text, text)

    def make(self) -> Value | None:
        """Make an array, under a new name or one that another array had."""
        values = self.readable()
        if not values:
            return None
        a, b = self.choices.pick(values), self.choices.pick(values)
        old = [one for one in self.writable(True) if one.name.isidentifier()] if self.choices.once_in(5) else []
        value = self.choices.pick(old) if old else Value(self.choices.name('v'), scope=self.scopes)
        self.both(f'{value.name} = {self.choices.pick(MAKING).format(a=a.name, b=b.name)}')
        self.reading(a, b)
        if old:
            self.values.remove(value)
        fresh = Value(value.name, self.tick(), scope=self.scopes)
        self.values.append(fresh)
        return fresh

    def change(self) -> None:
        values = self.writable()
        if not values:
            return
        a, b = self.choices.pick(values), self.choices.pick(self.readable())
        binds = a.scope == self.scopes or '[' in a.name or not self.functions
        some = CHANGING if binds else CHANGING[BINDS_NOTHING:]
        self.both(self.choices.pick(some).format(a=a.name, b=b.name))
        self.reading(b)
        a.written, a.read = self.tick(), []

    def drop(self) -> None:
        values = [one for one in self.values if one.scope == self.scopes and one.name.isidentifier()]
        if values:
            value = self.choices.pick(values)
            self.values.remove(value)
            self.both(f'del {value.name}')

    # -- lanes ------------------------------------------------------------------------------------------------------

    def new_lane(self, name: str) -> Lane:
        self.ticks += 1
        lane = Lane(name, self.ticks, dict(self.current.clock))
        self.lanes.append(lane)
        return lane

    def _waits(self, stream: str) -> Callable[[str], str]:
        """How a stream waits for an event: by its method, or by one that was bound before the block."""
        if self.choices.once_in(4) and stream.startswith('S['):
            name = self.choices.name('wait')
            self.before.append(Line(f'{name} = {stream}.wait_event', None))
            return lambda event: f'{name}({event})'
        return lambda event: f'{stream}.wait_event({event})'

    def _records(self) -> str:
        """How an event is recorded on the current lane."""
        if not self.choices.once_in(3):
            return f'{self.current.name}.record()'
        event = self.choices.name('e')
        self.add(f'{event} = cp.cuda.Event()\n{event}.record({self._stream(self.current)})', None)
        self.events.append((event, dict(self.current.clock)))
        return event

    @staticmethod
    def _stream(lane: Lane) -> str:
        return lane.name if '.' in lane.name or '[' in lane.name else f'{lane.name}.stream'

    def fork(self) -> None:
        if not self.free:
            return
        stream = self.choices.pick(self.free)
        self.free.remove(stream)
        bound = len(self.before)
        self.add(self._waits(stream)(self._records()), None)
        self.forked.append(self.new_lane(stream))
        if len(self.before) > bound or self.choices.below(4):  # nobody has seen the other ones
            self.on_lane(self.forked[-1])

    def _another(self) -> Lane | None:
        others = [one for one in self.forked if one is not self.current]
        return self.choices.pick(others) if others else None

    def on_lane(self, lane: Lane | None = None) -> None:
        lane = lane or self._another()
        if lane is None:
            return
        outer, self.current = self.current, lane
        if self.choices.once_in(6) and outer is self.origin and self.level == 1:
            use = self.choices.name('use')
            self.before.append(Line(f'{use} = {lane.name}.use', None))
            self.add(f'{use}()', None)
            for _ in range(self.choices.pick((1, 2))):  # after a `with` the stream would not be current any more
                self.choices.pick((self.make, self.change))()
            self.add(f'{self.origin.name}.use()', None)
        else:
            with self.inside(f'with {lane.name}:', None):
                self.statements(self.choices.pick((1, 2, 3)))
        self.current = outer

    def join(self, lane: Lane | None = None) -> None:
        lane = lane or self._another()
        if lane is None:
            return
        if self.choices.below(2):
            self.add(f'{self.cap}.join({self._stream(lane)})', None)
        else:
            self.add(f'{self.current.name}.wait_event({lane.name}.record())', None)
        self.current.follows(lane.clock)

    def join_all(self) -> None:
        for lane in self.lanes:
            if any(not self.origin.after(place) for place in lane.clock.items()):
                self.join(lane)

    def order(self) -> None:
        """A lane waits for an event of the past."""
        if not self.events:
            return
        event, clock = self.choices.pick(self.events)
        self.add(f'{self.current.name}.wait_event({event})', None)
        self.current.follows(clock)

    def scope(self) -> None:
        count = self.choices.pick((2, 2, 3, 1))
        names = [self.choices.name('lane') for _ in range(count)]
        broken = self.choices.once_in(8)
        with self._maybe_broken(broken), self.inside(f'with {self.cap}.fork({count}) as ({", ".join(names)},):', None):
            lanes = [self.new_lane(name) for name in names]
            outer = self.current
            for _ in range(self.choices.pick((1, 2, 3, 4))):
                self.current = self.choices.pick(lanes)
                with self.inside(f'with {self.current.name}:', None):
                    self.statements(self.choices.pick((1, 2)))
                self.current = outer
            if broken:
                self.add("raise KeyError('in')", None)
        for lane in lanes:
            self.lanes.remove(lane)
            self.current.follows(lane.clock)

    @contextmanager
    def _maybe_broken(self, broken: bool) -> Iterator[None]:
        if not broken:
            yield
            return
        with self.inside('try:', None):
            yield
        with self.inside('except KeyError:', None):
            pass

    def parallel(self) -> None:
        count = self.choices.pick((2, 2, 3))
        functions, results, outer = [], [], self.current
        lanes = [self.new_lane('') for _ in range(count)]
        for lane in lanes:
            lane.name = self.choices.name('f')
            functions.append(lane.name)
            self.current = lane
            lane.name = 'cp.cuda.get_current_stream()'
            with self.inside(f'def {functions[-1]}():', None), self._function():
                self.statements(self.choices.pick((0, 1, 2)))
                result = self.make()
                results.append(result)
                self.add(f'return {result.name}' if result else 'return None', None)
        self.current = outer
        names = [self.choices.name('v') for _ in results]
        self.add(
            f'{", ".join(names)} = {self.cap}.parallel({", ".join(functions)})',
            f'{", ".join(names)} = {", ".join(one.name if one else "None" for one in results)}',
        )
        for lane in lanes:
            self.lanes.remove(lane)
            self.current.follows(lane.clock)
        self.values += [Value(name, one.written, one.read, self.scopes) for name, one in zip(names, results) if one]

    @contextmanager
    def _function(self) -> Iterator[None]:
        """Names that are bound meanwhile belong to an inner function, or to a body of a decision."""
        before, events, scope = list(self.values), list(self.events), self.scopes
        self.functions += 1
        self.scopes = self.tick()[1]
        try:
            yield
        finally:
            self.functions -= 1
            self.scopes = scope
            self.values, self.events = before, events

    # -- decisions ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _body(self) -> Iterator[None]:
        """A body of a decision: its arrays, lanes and events are its own."""
        before = self.lanes, self.forked, self.free
        self.lanes, self.forked, self.free = [self.origin], [], list(self.free)
        self.bodies += 1
        with self._function():
            self.functions -= 1
            self.events = []
            yield
            self.join_all()
            self.functions += 1
        self.bodies -= 1
        left = self.free  # the others stay streams of the capture
        self.lanes, self.forked, self.free = before
        self.free[:] = [stream for stream in self.free if stream in left]

    def decision(self) -> None:
        if self.current is not self.origin:
            return
        self.join_all()
        values = self.readable()
        a, more = self.choices.pick(values), f'{self.choices.pick(("1.0", "3.0", "-1.0"))}'
        self.reading(a)
        kind = self.choices.pick((self._if, self._if, self._loop, self._loop, self._cases, self._returning))
        kind(a, f'{a.name}.sum() > {more}')

    def _if(self, _a: Value, question: str) -> None:
        with self.inside(f'with {self.cap}.if_({question}):', f'if bool({question}):'), self._body():
            self.statements(self.choices.pick((1, 2)))

    def _cases(self, a: Value, question: str) -> None:
        count = self.choices.pick((2, 3))
        names = [self.choices.name('case') for _ in range(count)]
        chosen = question if count == 2 else f'({a.name}[0] > 0).astype(cp.int32) + ({a.name}[1] > 0)'
        verb = f'if_else({chosen})' if count == 2 else f'switch({chosen}, 3)'
        answer = self.choices.name('c')
        self.add(None, f'{answer} = int({chosen})')
        with self.inside(f'with {self.cap}.{verb} as ({", ".join(names)}):', None):
            for number, name in enumerate(names):
                wanted = 1 - number if count == 2 else number
                with self.inside(f'with {name}:', f'if {answer} == {wanted}:'), self._body():
                    self.statements(self.choices.pick((1, 2)))

    def _loop(self, a: Value, _question: str) -> None:
        left, most = self.choices.name('left'), self.choices.pick((0, 0, 2, 5))
        self.both(f"{left} = cp.full((), {self.choices.below(4)}, 'i4')")
        limit = f', limit={most}' if most else ''
        with self.inside(f'with {self.cap}.while_({left}{limit}):', f'for _ in range({most or 100}):'), self._body():
            self.add(None, f'if not bool({left}): break')
            self.statements(self.choices.pick((1, 2)))
            if most and a in self.writable() and self.choices.below(2):
                self.both(f'{a.name}[...] = {a.name} * 1.5 + 0.5\ncp.less({a.name}.sum(), 20.0, out={left})')
                a.written, a.read = self.tick(), []
            else:
                self.both(f'cp.subtract({left}, 1, out={left})')

    def _returning(self, a: Value, question: str) -> None:
        b, name, other = self.choices.pick(self.readable()), self.choices.name('v'), self.choices.name('v')
        one, two = (self.choices.pick(MAKING).format(a=a.name, b=b.name) for _ in range(2))
        made = [name]
        if self.choices.below(2):
            text = f'{name} = {{}}cond({question}, lambda: {one}, lambda: {two})'
        elif self.choices.below(2):
            text = f'{name} = {{}}loop(lambda x: x.sum() < 9.0, lambda x: x * 1.5 + {b.name}, {a.name}, limit=4)'
        else:
            made = [name, other]
            body = 'lambda s: (s[0] * 1.5 + 1.0, s[1] - s[0])'
            text = f'{name}, {other} = {{}}loop(lambda s: s[0].sum() < 9.0, {body}, ({a.name}, {b.name}), limit=3)'
        self.add(text.format(f'{self.cap}.'), text.format(''))
        self.reading(a, b)
        self.values += [Value(name, self.tick(), scope=self.scopes) for name in made]

    def by_host(self) -> None:
        """A call that no capture holds, between two parts."""
        if not self.pieces or self.current is not self.origin or self.bodies:
            return
        self.join_all()
        a, name = self.choices.pick(self.readable()), self.choices.name('v')
        call = self.choices.pick(('svd({}, compute_uv=False)', 'eigh({})[0]')).format(f'M + cp.diag({a.name})')
        self.both(f'{name} = cp.linalg.{call}')
        self.reading(a)
        self.values.append(Value(name, self.tick(), scope=self.scopes))
        for lane in self.lanes:
            lane.follows(self.origin.clock)

    # -- what is around ---------------------------------------------------------------------------------------------

    def refused(self) -> None:
        """A call that is refused and caught; the block goes on."""
        deed, values = self.choices.pick(CAUGHT), self.readable()
        adapts = not self.block.strict and ('{free}' in deed or 'null' in deed)  # then it is a fork, which may race
        elsewhere = ('svd' in deed and self.pieces) or ('while_' in deed and self.current is not self.origin)
        if not values or not self.free or adapts or elsewhere or ('before' in deed and self.depth):
            return
        if 'while_' in deed:
            self.join_all()
        a, mark = self.choices.pick(values), int(self.choices.name(''))
        names = {'a': a.name, 'cur': self._stream(self.current), 'cap': self.cap, 'n': self.choices.name('t'),
                 'free': self.choices.pick(self.free), 'i': self.state}  # fmt: skip
        if '{n}' in deed and 'before' in deed:
            self.before.append(Line(f'{names["n"]} = {names["free"]}.record()', None))
        with self.inside('try:', None):
            self.add(deed.partition(' # ')[0].format(**names), None, mark)
        with self.inside('except ck.CaptureError as error:', None):
            self.add(f'caught(error, {mark})', None)
        if self.block.strict:
            with self.inside('else:', None):
                self.add(f'missed({mark})', None)
        self.reading(a)

    def thread(self) -> None:
        """Another thread works, or captures and launches, meanwhile."""
        if not self.free:
            return
        stream, name = self.choices.pick(self.free), self.choices.name('thread')
        self.free.remove(stream)
        how = self.choices.pick(('work', 'capture'))
        self.add(f'{name} = beside({how!r}, {stream}, right)', None)
        self.statements(self.choices.below(2))
        self.add(f'{name}.join()', None)
        self.free.append(stream)

    def nested(self) -> None:
        """Another capture, on other arrays; this one waits meanwhile."""
        if self.depth or self.bodies:
            return
        inner = Making(self.choices, self.out, 'Y', False, Block(interrupted=self.block.interrupted), 1)
        inner.free = list(self.free)
        stream = self.choices.pick(inner.free) if inner.free and self.choices.below(2) else ''
        if stream:
            inner.free.remove(stream)
        inner.whole(f'ck.capture({stream})')

    def statements(self, count: int) -> None:
        """Draw so many statements."""
        self.level += 1
        for _ in range(count):
            kind = self.choices.pick(self.KINDS if self.level < 4 else self.SIMPLE)
            getattr(self, kind)()
        self.level -= 1

    def nothing(self) -> None:
        """The simplest statement."""

    SIMPLE = ('nothing', 'make', 'make', 'change', 'make', 'change', 'drop', 'refused')
    KINDS = (*SIMPLE, 'fork', 'fork', 'on_lane', 'join', 'order', 'scope', 'scope', 'parallel', 'decision', 'decision',
             'by_host', 'refused', 'thread', 'nested', 'decision', 'by_host')  # fmt: skip

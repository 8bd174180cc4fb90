"""Random programs whose graph is changed again and again: after each change it has to give what it gave before.

The programs call libraries whose kernels have workspaces, and the changes follow each other in any order: relaning,
fusing, rebinding, updating, cloning, measuring, with launches between them or without. What is recorded once and never
changed tells what is right. A program that differs is printed with its seed.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import capturekit as ck
from capturekit.driver.cuda import current
from tests.agreement.choices import Choices
from tests.agreement.trying import Kind, Outcome

#: Rows of a long side, on a GPU and simulated: cuBLAS splits products over it, in a workspace.
ROWS, FEW_ROWS, WIDTH = 4096, 40, 32
INPUTS = 3
OPTIONS: tuple[dict[str, Any], ...] = ({}, {'lanes': 'auto'}, {'fuse': True}, {'lanes': 'auto', 'fuse': True})

#: One piece of a program: it is given tall matrices and a small one, and returns another small one.
PIECES: dict[str, Callable[[Any, list[Any], Any], Any]] = {
    'product': lambda cp, x, w: x[0].T @ x[1] * 0.01 + w,
    'vector': lambda cp, x, w: (x[1].T @ (x[2] @ w[:, :1])) * 0.001 + w,
    'sum': lambda cp, x, w: w * 0.5 + x[2].sum(axis=0),
    'whole sum': lambda cp, x, w: w + (x[0] * x[1]).mean(),
    'scan': lambda cp, x, w: cp.cumsum(w, axis=0) * 0.25,
    'sort': lambda cp, x, w: cp.sort(w, axis=0) - w,
    'transform': lambda cp, x, w: cp.fft.irfft(cp.fft.rfft(w, axis=1) * 0.5, n=WIDTH, axis=1).astype('f4'),
    'square': lambda cp, x, w: cp.tanh(w @ w * 0.01),
    'elements': lambda cp, x, w: cp.where(w > 0, w * 0.5, -w) + 0.25,
    'shifted': lambda cp, x, w: w + cp.concatenate([w[1:], w[:1]]) * 0.5,
    'in place': lambda cp, x, w: x[0].__setitem__(slice(None, WIDTH), w) or x[0][:WIDTH] * 1.5,
}
CHANGES = (
    'launch',
    'relane',
    'relane timed',
    'report',
    'fuse',
    'rebind',
    'update',
    'clone',
    'measure',
    'races',
    'crowd',
)


class Recorded:
    """A program as a graph, with the arrays that it reads and those that it makes."""

    def __init__(self, cp: Any, pieces: list[list[str]], options: dict[str, Any]) -> None:
        self.cp, self.pieces, self.options = cp, pieces, options
        self.others: list[Any] = []
        self.graph, self.inputs, self.outputs = self.record()

    def record(self) -> tuple[ck.Graph, list[Any], list[Any]]:
        cp = self.cp
        rows = FEW_ROWS if current().simulated else ROWS
        inputs = [cp.ones((rows, WIDTH), 'f4') for _ in range(INPUTS)]
        with ck.capture(**self.options) as cap:
            outputs = []
            for branch in self.pieces:
                w = cp.ones((WIDTH, WIDTH), 'f4')
                for name in branch:
                    w = PIECES[name](cp, inputs, w)
                outputs.append(w)
        return cap.graph, inputs, outputs

    def launched(self, number: int) -> list[bytes]:
        """What a launch leaves, from a start that the number tells."""
        cp = self.cp
        for n, one in enumerate(self.inputs):
            one[...] = cp.sin(cp.arange(one.size, dtype='f4').reshape(one.shape) * (n + 1) + number)
        self.graph.launch()
        return [cp.asnumpy(one).tobytes() for one in (*self.outputs, *self.inputs)]

    def change(self, name: str, chance: random.Random) -> None:
        """Change the graph. It may refuse, and is as it was then."""
        cp, graph = self.cp, self.graph
        if name == 'crowd':  # memory that nobody holds is somebody else's
            self.others = [cp.full(chance.randint(1, 300_000), cp.nan, 'f4') for _ in range(12)]
        elif name == 'relane':
            graph.relane()
        elif name == 'relane timed':
            graph.relane(rounds=1)
        elif name == 'report':
            graph.relane(report=True)
        elif name == 'fuse':
            graph.fuse()
        elif name == 'rebind':
            which = chance.randrange(INPUTS)
            other = cp.empty_like(self.inputs[which])
            with suppress(ValueError):  # nobody reads it
                graph.rebind((self.inputs[which], other))
                self.inputs[which] = other
        elif name == 'update':
            other, inputs, outputs = self.record()
            graph.update(other, instantiate=True)
            self.inputs, self.outputs = inputs, outputs
        elif name == 'clone':
            self.graph = graph.clone()
            if chance.randrange(2):
                graph.close()
        elif name == 'measure':
            graph.measure(launches=1, warmup=1, by='events')
        elif name == 'races':
            assert not graph.races(), 'races'
        else:
            self.launched(chance.randrange(100))


def program(seed: int) -> tuple[list[list[str]], dict[str, Any], list[str], random.Random]:
    """The branches of a program by its seed, the options of the capture, and the changes."""
    chance = random.Random(seed)
    pieces = [[chance.choice([*PIECES]) for _ in range(chance.randint(1, 4))] for _ in range(chance.randint(1, 4))]
    changes = [chance.choice(CHANGES) for _ in range(chance.randint(1, 6))]
    return pieces, chance.choice(OPTIONS), changes, chance


def tried(cp: Any, seed: int) -> tuple[list[str], str]:
    """What became of each change, and what is wrong, or ''."""
    pieces, options, changes, chance = program(seed)
    about = f'seed {seed}: {options}, {changes}, {pieces}'
    plain, words = Recorded(cp, pieces, {}), []
    changed = Recorded(cp, pieces, options)
    try:
        for number, name in enumerate(changes):
            try:
                changed.change(name, chance)
                words.append(name)
            except ck.CaptureError as refused:
                words.append(f'{name} refused ({type(refused).__name__})')
            if chance.randrange(3) and plain.launched(number) != changed.launched(number):
                return words, f'{about}: differs after change {number}, {name}'
        if plain.launched(99) != changed.launched(99):
            return words, f'{about}: differs at the end'
    except Exception as error:
        return words, f'{about}: {type(error).__name__}: {error}'
    finally:
        plain.graph.close()
        changed.graph.close()
    return words, ''


def kind(cp: Any) -> Kind:
    """These programs, on this CuPy."""

    def run(_choices: Choices, seed: int, _number: int) -> Outcome:
        with warnings.catch_warnings():
            warnings.simplefilter('error', RuntimeWarning)  # a first launch that differs is undone, with a warning
            made, error = tried(cp, seed)
        return Outcome(error, Counter(made))

    return Kind(lambda choices: choices.below(1 << 30), run, tries=0)

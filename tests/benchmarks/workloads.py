"""The workloads by which graphs are usually judged, in CuPy: eagerly, recorded and graphed, fused and not.

Each is checked against NumPy in double precision before anything is timed. Float32 throughout, except for the conjugate
gradients, which are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import capturekit as ck
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, now

Array = NDArray[Any]
Function = Callable[..., Any]
#: What a workload leaves behind, by name; NumPy arrays once it is on the host.
Results = dict[str, Any]
Fuse = bool | Literal['fast']
FUSES: dict[str, Fuse] = {'': False, ', fused': True, ', fast': 'fast'}


class CheckFailed(Exception):
    """A result is not the reference's."""


class Absent(Exception):
    """A peer that is not installed here."""


def nothing() -> None:
    pass


@dataclass
class Way:
    """One way to run a workload: the call that is timed, and the results of the last one.

    ``wait`` waits for calls that have not reached the device yet.
    """

    call: Callable[[], Any]
    results: Callable[[], Results]
    close: Callable[[], None] = nothing
    about: Callable[[], str] = str
    wait: Callable[[], Any] = nothing


class Last:
    """Calls a function on the same arguments again and again, and keeps its last result."""

    def __init__(self, fn: Function, args: tuple[Any, ...]) -> None:
        self.fn, self.args, self.out = fn, args, None

    def __call__(self) -> None:
        self.out = self.fn(*self.args)


class Workload:
    """A function, given arrays, and a reference. Each way starts from a state of its own, and is called ``calls`` times
    for its check: a graphed function runs eagerly, is recorded, and is launched in these."""

    tolerance: float
    calls = 3

    def __init__(self, cp: Any, title: str, *given: Array) -> None:
        self.cp, self.title, self.given = cp, title, given

    def function(self, xp: Any) -> Function:
        """The function, for CuPy and mostly for NumPy."""
        raise NotImplementedError

    def results(self, _args: tuple[Any, ...], out: Any) -> Results:
        """The arrays to be compared, by the arguments and by what was returned."""
        return {str(number): one for number, one in enumerate(out if isinstance(out, tuple) else (out,))}

    def reference(self) -> Results:
        """The results after ``calls`` calls, by NumPy in double precision."""
        args = tuple(one.astype('f8') for one in self.given)
        for _ in range(self.calls):
            out = self.function(np)(*args)
        return self.results(args, out)

    def error(self, found: Results, wanted: Results) -> float:
        """How far off the results are, to be held against ``tolerance``."""
        return max(largest_error(name, found[name], wanted[name]) for name in wanted)

    def arguments(self) -> tuple[Any, ...]:
        return tuple(self.cp.asarray(one) for one in self.given)

    def ways(self) -> dict[str, Callable[[], Way]]:
        """Each way by name, not yet made; the first is ``eager``."""
        recorded = {f'graph{name}': partial(self.recorded, fuse) for name, fuse in FUSES.items()}
        graphed = {f'graphed{name}': partial(self.graphed, fuse) for name, fuse in FUSES.items()}
        return {'eager': lambda: self.eager(self.function(self.cp)), **recorded, **graphed}

    def eager(self, fn: Function) -> Way:
        last = Last(fn, self.arguments())
        return Way(last, lambda: fetched(self.results(last.args, last.out)))

    def recorded(self, fuse: Fuse) -> Way:
        fn, args = self.function(self.cp), self.arguments()
        with ck.capture(fuse=fuse) as cap:
            out = fn(*args)
        graph, about = cap.graph, f'{cap.recording.node_count} nodes'
        return Way(graph.launch, lambda: fetched(self.results(args, out)), graph.close, lambda: about)

    def graphed(self, fuse: Fuse) -> Way:
        fn = ck.graphed(self.function(self.cp), fuse=fuse)
        way = self.eager(fn)
        return Way(way.call, way.results, fn.clear, lambda: states(fn))


def largest_error(name: str, found: Array, wanted: Array) -> float:
    """The largest difference, in terms of the reference's largest value."""
    if found.shape != wanted.shape:
        raise CheckFailed(f'{name} has the shape {found.shape} and the reference {wanted.shape}')
    error = float(np.abs(found.astype('f8') - wanted).max() / np.abs(wanted).max())
    return error if np.isfinite(error) else np.inf


def check(workload: Workload, way: Way, wanted: Results) -> None:
    """Call it, and hold its results against the reference. Raises CheckFailed."""
    for _ in range(workload.calls):
        way.call()
    error = workload.error(way.results(), wanted)
    if not error <= workload.tolerance:
        raise CheckFailed(f'off by {error:.2g} from the float64 reference; {workload.tolerance:.0e} is let through')


def fetched(results: Results) -> Results:
    return {name: array.get() for name, array in results.items()}


def states(fn: Any) -> str:
    """What became of a graphed function: ``recorded``, or why not."""
    return ', '.join(f'{variant.state}{": " * bool(variant.reason)}{variant.reason}' for variant in fn.variants)


# -- GELU, the tanh form: nine elementwise operations on one array ------------------------------------------------


class Gelu(Workload):
    tolerance = 2e-6

    def __init__(self, cp: Any, shape: tuple[int, ...]) -> None:
        super().__init__(cp, f'GELU {shape}', np.random.default_rng(0).standard_normal(shape, dtype='f4'))

    def function(self, xp: Any) -> Function:
        return lambda x: 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


# -- ten steps of the heat equation: five points, in place between two plates -------------------------------------


class Stencil(Workload):
    tolerance = 1e-5
    steps = 10

    def __init__(self, cp: Any, side: int) -> None:
        plate = np.zeros((side, side), 'f4')
        plate[0] = 100
        plate[side // 3 : side // 2, side // 4 : side // 2] = 50
        super().__init__(cp, f'heat equation, {side} x {side}, {self.steps} steps', plate, plate)

    def function(self, _xp: Any) -> Function:
        def heat(u: Any, v: Any) -> None:
            for old, new in [(u, v), (v, u)] * (self.steps // 2):
                around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
                new[1:-1, 1:-1] = old[1:-1, 1:-1] + 0.2 * (around - 4 * old[1:-1, 1:-1])

        return heat

    def results(self, args: tuple[Any, ...], _out: Any) -> Results:
        return {'u': args[0]}


# -- a chain of signal processing: filtered by FFT, cut into windowed frames, and the mean power by frequency ------


class Chain(Workload):
    tolerance = 1e-5

    def __init__(self, cp: Any, channels: int, samples: int, frame: int) -> None:
        at = np.arange(samples)
        noise = np.random.default_rng(0).standard_normal((channels, samples))
        frequencies = np.fft.rfftfreq(samples)
        response = np.exp(-2j * np.pi * frequencies * 5) / (1 + (frequencies / 0.2) ** 8)
        x = noise + np.sin(at * 0.3) + np.sin(at * 2.1)
        title = f'filter, window and power, {channels} x {samples:,} samples'
        super().__init__(cp, title, x.astype('f4'), response.astype('c8'), np.hanning(frame).astype('f4'))

    def function(self, xp: Any) -> Function:
        def chain(x: Any, response: Any, window: Any) -> Any:
            spectrum = xp.fft.rfft(x)
            spectrum *= response
            y = xp.fft.irfft(spectrum, x.shape[1])
            # Half of each frame lies in the next one: frames are a view.
            hop, (by_channel, by_sample) = window.size // 2, y.strides
            shape = (x.shape[0], x.shape[1] // hop - 1, window.size)
            frames = xp.ndarray(shape, y.dtype, y.data, strides=(by_channel, hop * by_sample, by_sample))
            spectra = xp.fft.rfft(frames * window)
            return (spectra.real * spectra.real + spectra.imag * spectra.imag).mean(axis=1)

        return chain

    def reference(self) -> Results:
        x, response, window = (one.astype(kind) for one, kind in zip(self.given, ('f8', 'c16', 'f8')))
        y = np.fft.irfft(np.fft.rfft(x) * response, x.shape[1])
        frames = np.lib.stride_tricks.sliding_window_view(y, window.size, axis=1)[:, :: window.size // 2]
        return self.results((), (np.abs(np.fft.rfft(frames * window)) ** 2).mean(axis=1))


# -- a training step: two linear layers with dropout, mean squared error, SGD --------------------------------------


def split(flat: Any, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Views of consecutive pieces of a flat array."""
    parts, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(flat[at : at + size].reshape(shape))
        at += size
    return parts


class Training(Workload):
    """Gradients are written by hand, masks drawn on the device by a ``Generator``, anew at each launch. All parameters
    lie in one array, and so do the gradients, so that one update does for all."""

    #: Of the way that the parameters went, which is a small part of what they are.
    tolerance = 1e-4
    rate, dropout, scale = 0.1, 0.2, 1.25

    def __init__(self, cp: Any, batch: int, inputs: int, hidden: int, outputs: int) -> None:
        self.layers = ((inputs, hidden), (hidden,), (hidden, outputs), (outputs,))
        self.units = ((batch, hidden), (batch, outputs))
        self.drawn = batch * (hidden + outputs)
        rng = np.random.default_rng(0)
        x, t = (rng.standard_normal((batch, width), dtype='f4') for width in (inputs, outputs))
        w1, w2 = (rng.standard_normal(self.layers[k], dtype='f4') / np.sqrt(self.layers[k][0]) for k in (0, 2))
        b1, b2 = (rng.standard_normal(self.layers[k], dtype='f4') / 10 for k in (1, 3))
        title = f'training step, Linear({inputs}, {hidden}) and Linear({hidden}, {outputs}), batch {batch}'
        super().__init__(cp, title, np.concatenate([part.ravel() for part in (w1, b1, w2, b2)]).astype('f4'), x, t)

    def generator(self) -> Any:
        return self.cp.random.Generator(self.cp.random.Philox4x3210(7))

    def arguments(self) -> tuple[Any, ...]:
        return *super().arguments(), self.generator()

    def function(self, xp: Any) -> Function:
        def step(params: Any, x: Any, t: Any, rng: Any) -> Any:
            w1, b1, w2, b2 = split(params, self.layers)
            grads = xp.empty_like(params)
            dw1, db1, dw2, db2 = split(grads, self.layers)
            mask = (rng.random(self.drawn, dtype=np.float32) >= self.dropout).astype(np.float32)
            mask *= self.scale
            mask1, mask2 = split(mask, self.units)
            hidden = x @ w1
            hidden += b1
            hidden *= mask1
            difference = hidden @ w2
            difference += b2
            difference *= mask2
            difference -= t
            loss = (difference * difference).mean()
            difference *= 2 / difference.size
            difference *= mask2
            xp.matmul(hidden.T, difference, out=dw2)
            xp.sum(difference, axis=0, out=db2)
            dhidden = difference @ w2.T
            dhidden *= mask1
            xp.matmul(x.T, dhidden, out=dw1)
            xp.sum(dhidden, axis=0, out=db1)
            grads *= self.rate
            params -= grads
            return loss

        return step

    def results(self, args: tuple[Any, ...], out: Any) -> Results:
        return {'moved': args[0] - self.cp.asarray(self.given[0]), 'loss': out}

    def reference(self) -> Results:
        """With the masks that a generator of the same seed draws."""
        rng = self.generator()
        params, x, t = (array.astype('f8') for array in self.given)
        w1, b1, w2, b2 = split(params, self.layers)
        for _ in range(self.calls):
            mask = (rng.random(self.drawn, dtype=np.float32).get() >= np.float32(self.dropout)) * self.scale
            mask1, mask2 = split(mask, self.units)
            hidden = (x @ w1 + b1) * mask1
            difference = (hidden @ w2 + b2) * mask2 - t
            loss = (difference**2).mean()
            dout = 2 * difference / t.size * mask2
            dhidden = dout @ w2.T * mask1
            gradients = (x.T @ dhidden, dhidden.sum(0), hidden.T @ dout, dout.sum(0))
            params -= self.rate * np.concatenate([gradient.ravel() for gradient in gradients])
        return {'moved': params - self.given[0], 'loss': np.asarray(loss)}


# -- a small image classifier: twice convolution, ReLU and pooling, then two dense layers --------------------------


def windows(cp: Any, x: Any) -> Any:
    """Every 3 x 3 window of (channels, batch, height, width) with zeros around, as (channels * 9, pixels)."""
    channels, batch, height, width = x.shape
    padded = cp.zeros((channels, batch, height + 2, width + 2), x.dtype)
    padded[:, :, 1:-1, 1:-1] = x
    by_channel, by_image, by_row, by_column = padded.strides
    shape = (channels, 3, 3, batch, height, width)
    strides = (by_channel, by_row, by_column, by_image, by_row, by_column)
    return cp.ndarray(shape, x.dtype, padded.data, strides).reshape(channels * 9, batch * height * width)


def quarters(x: Any) -> tuple[Any, Any, Any, Any]:
    """The four pixels of each 2 x 2 field."""
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


class Classifier(Workload):
    """Images come as (batch, channels, height, width). CuPy has no convolution of its own: windows are laid out with
    strides, with the channels before the batch inside, so that each convolution is one matrix product."""

    #: TF32 would be off by more.
    tolerance = 2e-5

    def __init__(self, cp: Any, batch: int, side: int, first: int, second: int, dense: int) -> None:
        rng = np.random.default_rng(0)
        given = [rng.standard_normal((batch, 3, side, side), dtype='f4')]
        for shape in ((first, 3, 3, 3), (second, first, 3, 3), (second * (side // 4) ** 2, dense), (dense, 10)):
            inputs, outputs = (np.prod(shape[1:]), shape[0]) if len(shape) == 4 else shape
            given.append((rng.standard_normal(shape) * np.sqrt(2 / inputs)).astype('f4'))
            given.append((rng.standard_normal(outputs) / 10).astype('f4'))
        super().__init__(cp, f'image classifier, {side} x {side} pixels, batch {batch}', *given)

    def arguments(self) -> tuple[Any, ...]:
        """The images and the weights; those of convolutions as matrices."""
        x, *weights = self.given
        matrices = [w.reshape(len(w), -1) if w.ndim == 4 else w for w in weights]
        return tuple(self.cp.asarray(array) for array in (x, *matrices))

    def function(self, xp: Any) -> Function:
        def layer(x: Any, w: Any, b: Any) -> Any:
            _channels, batch, height, width = x.shape
            y = (w @ windows(xp, x)).reshape(w.shape[0], batch, height, width)
            y += b[:, None, None, None]
            xp.maximum(y, 0, out=y)
            one, two, three, four = quarters(y)
            y = xp.maximum(one, two)
            xp.maximum(y, three, out=y)
            return xp.maximum(y, four, out=y)

        def classify(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, w4: Any, b4: Any) -> Any:
            y = layer(layer(x.transpose(1, 0, 2, 3), w1, b1), w2, b2)
            y = y.transpose(1, 0, 2, 3).reshape(y.shape[1], -1) @ w3
            y += b3
            xp.maximum(y, 0, out=y)
            y = y @ w4
            y += b4
            return y

        return classify

    def reference(self) -> Results:
        x, w1, b1, w2, b2, w3, b3, w4, b4 = (one.astype('f8') for one in self.given)
        for w, b in ((w1, b1), (w2, b2)):
            side = x.shape[2]
            padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            y = sum(
                np.einsum('oc,nchw->nohw', w[:, :, i, j], padded[:, :, i : i + side, j : j + side], optimize=True)
                for i in range(3)
                for j in range(3)
            )
            y = np.maximum(y + b[:, None, None], 0)
            x = np.maximum.reduce(quarters(y))
        hidden = np.maximum(x.reshape(len(x), -1) @ w3 + b3, 0)
        return self.results((), hidden @ w4 + b4)


# -- conjugate gradients for Poisson's equation on a square --------------------------------------------------------

#: The most steps, and how much smaller the residual has to become.
MOST, GOAL = 5_000, 1e-6


class State:
    """What one step hands to the next, all changed in place; the direction ``p`` has zeros around."""

    def __init__(self, b: Any, make: Callable[..., Any]) -> None:
        self.x, self.r, self.q = (make(b.shape) for _ in range(3))
        self.padded = make((b.shape[0] + 2, b.shape[1] + 2))
        self.p = self.padded[1:-1, 1:-1]
        padded = self.padded
        self.beside = padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]
        self.rr, self.goal = make(()), make(())

    def start(self, xp: Any, b: Any) -> None:
        self.x[...] = 0
        self.r[...] = b
        self.p[...] = b
        self.rr[...] = xp.sum(b * b)
        self.goal[...] = self.rr * GOAL**2

    def arrays(self) -> tuple[Any, ...]:
        return self.x, self.r, self.q, self.padded, self.rr, self.goal


def laplacian(q: Any, p: Any, up: Any, down: Any, left: Any, right: Any) -> Any:
    """A p into q; returns p * q."""
    q[...] = 4 * p - up - down - left - right
    return p * q


def descend(x: Any, r: Any, p: Any, q: Any, rr: Any, pq: Any) -> Any:
    """Along the direction; returns r * r."""
    alpha = rr / pq
    x += alpha * p
    r -= alpha * q
    return r * r


def turn(p: Any, r: Any, new: Any, rr: Any) -> None:
    """The next direction."""
    p[...] = r + new / rr * p


def step_of_gradients(xp: Any, s: State) -> None:
    pq = xp.sum(laplacian(s.q, s.p, *s.beside))
    new = xp.sum(descend(s.x, s.r, s.p, s.q, s.rr, pq))
    turn(s.p, s.r, new, s.rr)
    s.rr[...] = new


def right_side(side: int) -> Array:
    at = np.arange(side)
    return np.sin(at[:, None] * 0.7) * np.cos(at * 0.3) + 0.1


class Fixed(Workload):
    """A number of steps."""

    tolerance = 1e-8

    def __init__(self, cp: Any, side: int, count: int) -> None:
        super().__init__(cp, f'conjugate gradients, {side} x {side}, {count} steps', right_side(side))
        self.count = count

    def function(self, xp: Any) -> Function:
        def solve(b: Any) -> Any:
            state = State(b, xp.zeros)
            state.start(xp, b)
            for _ in range(self.count):
                step_of_gradients(xp, state)
            return state.x

        return solve


class Converged(Workload):
    """To convergence. Eagerly, and where a step is graphed, the host asks after each step; in a graph the device does.

    It is judged by its residual, which NumPy works out: roundings decide after which step it is small enough.
    """

    tolerance = 1.1 * GOAL

    def __init__(self, cp: Any, side: int) -> None:
        super().__init__(cp, f'conjugate gradients, {side} x {side}, to convergence', right_side(side))

    def reference(self) -> Results:
        return {}

    def error(self, found: Results, wanted: Results) -> float:
        (b,), p = self.given, np.pad(found['x'].astype('f8'), 1)
        q = np.empty_like(b)
        laplacian(q, p[1:-1, 1:-1], p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:])
        return float(np.linalg.norm(b - q) / np.linalg.norm(b))

    def ways(self) -> dict[str, Callable[[], Way]]:
        return {
            'eager': lambda: self.by_the_host(False), 'graph': self.by_the_device,
            'graphed': lambda: self.by_the_host(True),
        }  # fmt: skip

    def by_the_host(self, graphed: bool) -> Way:
        (b,) = self.arguments()
        cp, state = self.cp, State(b, self.cp.zeros)

        def plain_step() -> Any:
            step_of_gradients(cp, state)
            return state.rr > state.goal

        graphed_step = ck.graphed(plain_step)
        step, taken = graphed_step if graphed else plain_step, [0]

        def solve() -> None:
            state.start(cp, b)
            taken[0] = 1
            while step() and taken[0] < MOST:
                taken[0] += 1

        def about() -> str:
            return f'{taken[0]} steps{", one step " + states(graphed_step) if graphed else ""}'

        return Way(solve, lambda: fetched({'x': state.x}), graphed_step.clear, about)

    def by_the_device(self) -> Way:
        cp, (b,) = self.cp, self.arguments()
        with ck.capture() as cap:
            state, going = State(b, cp.zeros), cp.ones((), '?')
            state.start(cp, b)
            going.fill(True)
            with cap.while_(going, limit=MOST) as loop:
                step_of_gradients(cp, state)
                cp.greater(state.rr, state.goal, out=going)
        results, about = lambda: fetched({'x': state.x}), lambda: f'{int(loop.passes)} steps in one launch'
        return Way(cap.graph.launch, results, cap.graph.close, about)


Parts = dict[str, Callable[[], Iterator[Workload]]]


def parts(cp: Any, small: bool) -> Parts:
    """The workloads by name, each made when its turn comes; ``small``: sizes for the simulated device."""
    shapes = ((1, 3, 8, 8), (2, 3, 8, 8)) if small else ((1, 3, 224, 224), (32, 3, 224, 224))
    image = (8, 4, 6, 12) if small else (32, 32, 64, 128)
    side, steps = (8, 6) if small else (256, 50)
    return {
        'gelu': lambda: (Gelu(cp, shape) for shape in shapes),
        'training': lambda: iter([Training(cp, *((4, 8, 16, 4) if small else (32, 128, 256, 16)))]),
        'classifier': lambda: (Classifier(cp, batch, *image) for batch in ((1, 2) if small else (1, 32))),
        'stencil': lambda: (Stencil(cp, plate) for plate in ((12,) if small else (256, 2048))),
        'dsp': lambda: iter([Chain(cp, *((2, 64, 16) if small else (16, 1 << 15, 1024)))]),
        'solver': lambda: iter([Fixed(cp, side, steps), Converged(cp, side)]),
    }


# -- the workloads as lines ----------------------------------------------------------------------------------------

ROUNDS, MOST_CALLS = 15, 2_000
#: One timing takes at least this long, in seconds: calls are repeated until it does.
LEAST = 4e-3
#: Calls before the first timing: importing the other libraries may have changed what a recording depends on.
WARM = 4
#: Further ratios: this way against that one.
AGAINST = (
    ('graph, fused', 'graph'), ('graph, fast', 'graph'), ('graphed', 'graph'), ('graphed, fused', 'torch compile'),
    ('graphed, fused', 'jax'),
)  # fmt: skip


def lines(cp: Any, workload: Workload, timed: bool = True) -> Iterator[Line]:
    """Check every way of a workload, then time those that passed: a line for each, and for each further ratio.

    A way that fails is a line with an error, and one that is not here says so; both have no ratio.
    """
    good: dict[str, Way] = {}
    bad: list[Line] = []
    made: list[Way] = []
    try:
        wanted = workload.reference()
        for name, make in workload.ways().items():
            try:
                made.append(way := make())
                check(workload, way, wanted)
                good[name] = way
            except Absent as absent:
                bad.append(line(workload, {}, name, note=f'absent: {absent}'))
            except Exception as error:
                bad.append(line(workload, {}, name, error=f'{type(error).__name__}: {error}'.splitlines()[0]))
        found = compared(cp, good) if timed and 'eager' in good else {}
        for name, way in good.items():
            yield line(workload, found, name, note=f'checked; {way.about()}'.removesuffix('; '))
        yield from bad
        for name, against in AGAINST:
            if name in found and against in found:
                yield line(workload, found, name, against)
    finally:
        for way in made:
            way.close()


def line(workload: Workload, found: dict[str, float], name: str, against: str = 'eager', **about: str) -> Line:
    """One way against another, if there are times; the eager way's own line has the medians of all."""
    if name == against:
        return Line(f'{workload.title}: {name}', medians=found, **about)
    title = f'{workload.title}: {name} / {against}'
    if not found:
        return Line(title, **about)
    return Line(title, found[name] / found[against], medians={key: found[key] for key in (name, against)}, **about)


def compared(cp: Any, ways: dict[str, Way]) -> dict[str, float]:
    """Microseconds of a call of each way, the device's work included: the medians of rounds taken in turn."""
    with no_garbage_collection():
        return medians(in_turn(ROUNDS, {name: batched(cp, way) for name, way in ways.items()}))


def batched(cp: Any, way: Way) -> Callable[[], float]:
    """A function that returns the seconds of one call: of so many that they take some milliseconds together."""

    def run(count: int) -> float:
        cp.cuda.runtime.deviceSynchronize()
        start = now()
        for _ in range(count):
            way.call()
        way.wait()
        cp.cuda.runtime.deviceSynchronize()
        return now() - start

    count = 1
    run(WARM)
    while run(count) < LEAST and count < MOST_CALLS:
        count *= 2
    return lambda: run(count) / count

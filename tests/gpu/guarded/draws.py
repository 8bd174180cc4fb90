"""Rows: random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.gpu.guarded.scene import (
    COUNT,
    CURAND,
    MODES,
    Call,
    Check,
    Scene,
    cp,
    curand,
    equal,
    escaped,
    in_lane,
    keep,
    loaded,
    row,
    unsupported,
)
from tests.gpu.guarded.scene import CURAND as CR

#: function -> what it is given after the generator, the address and the count
DRAWS: dict[str, tuple[float, ...]] = {
    'generate': (),
    'generateLongLong': (),
    'generateUniform': (),
    'generateUniformDouble': (),
    'generateNormal': (1.0, 2.0),
    'generateNormalDouble': (1.0, 2.0),
    'generateLogNormal': (0.0, 0.5),
    'generateLogNormalDouble': (0.0, 0.5),
    'generatePoisson': (4.0,),
}
#: (function, call, a method of ``RandomState`` that draws by it)
METHODS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ('generate', 'tomaxint()', lambda state: state.tomaxint(COUNT)),
    ('generateUniform', 'random_sample(), float32', lambda state: state.random_sample(COUNT, 'f')),
    ('generateUniformDouble', 'random_sample()', lambda state: state.random_sample(COUNT)),
    ('generateNormal', 'normal(), float32', lambda state: state.normal(1.0, 2.0, COUNT, 'f')),
    ('generateNormalDouble', 'normal()', lambda state: state.normal(1.0, 2.0, COUNT)),
    ('generateNormalDouble', 'normal(), an odd count', lambda state: state.normal(1.0, 2.0, COUNT - 1)),
    ('generateLogNormal', 'lognormal(), float32', lambda state: state.lognormal(0.0, 0.5, COUNT, 'f')),
    ('generateLogNormalDouble', 'lognormal()', lambda state: state.lognormal(0.0, 0.5, COUNT)),
)


def start_again(s: Scene) -> None:
    """From now on the sources of the captures and their twins give the same numbers."""
    if loaded(CURAND):
        s.state.seed(11)
        s.twin.seed(11)
        for generator in filter(None, (s.quasi, s.quasi_twin)):
            curand.setGeneratorOffset(generator, 0)
    s.bits_twin._state[...] = s.bits._state


def first_kept(s: Scene) -> Any:
    return s.kept[0].get()


def like_eager(eager: Call, got: Call = first_kept, *, fed: bool = True, same: bool = False) -> Check:
    """Each launch gives what the same call, made eagerly, gives next.

    ``fed``: by the host, which is noted. ``same``: these are the same numbers every time.
    """

    def check(s: Scene) -> bool:
        start_again(s)
        found = []
        for _ in range(3):
            s.cap.graph.launch()
            found.append(np.array(got(s)))
            np.testing.assert_allclose(found[-1], cp.asnumpy(eager(s)), rtol=1e-12)
        told = any('by the host at every launch' in step.text for step in s.cap.recording.steps)
        again = [np.array_equal(a, b) for a, b in itertools.pairwise(found)]
        return told == fed and again == [same, same]

    return check


def curand_call(s: Scene, name: str, array: Any, eager: bool = False) -> None:
    """Draw to where an array lies, with the captures' generator or its twin."""
    if name == 'generateLongLong':  # cuRAND draws 64 bits by its quasi-random generators only
        generator = s.quasi_twin if eager else s.quasi
    else:
        generator = (s.twin if eager else s.state)._generator
    getattr(curand, name)(generator, array.data.ptr, COUNT, *DRAWS[name])


def drawn_eagerly(s: Scene, name: str) -> Any:
    array = cp.zeros(COUNT)
    curand_call(s, name, array, eager=True)
    return array.get().view('u1')


for name in DRAWS:
    row(
        f'{CR}.{name}', 'by handles', lambda s, f=name: curand_call(s, f, s.scratch),
        check=like_eager(lambda s, f=name: drawn_eagerly(s, f), lambda s: s.scratch[:COUNT].get().view('u1')),
    )  # fmt: skip
for name, called, method in METHODS:
    row(
        f'{CR}.{name}', called, lambda s, of=method: keep(s, of(s.state)),
        check=like_eager(lambda s, of=method: of(s.twin)),
    )  # fmt: skip
U = f'{CR}.generateUniformDouble'
row(
    U, 'random_sample(), lane', lambda s: in_lane(s, lambda s: keep(s, s.state.random_sample(COUNT))),
    check=like_eager(lambda s: s.twin.random_sample(COUNT)),
)  # fmt: skip
row(
    U, 'random_sample(), twice', lambda s: keep(s, s.state.random_sample(COUNT) + s.state.random_sample(COUNT)),
    check=like_eager(lambda s: s.twin.random_sample(COUNT) + s.twin.random_sample(COUNT)),
)  # fmt: skip
for mode in MODES:
    row(
        U, 'random_sample()', lambda s: keep(s, s.state.random_sample(COUNT)), mode=mode,
        check=like_eager(lambda s: s.twin.random_sample(COUNT)),
    )  # fmt: skip


def draw_outside(s: Scene, draw: Callable[[], Any]) -> None:
    with s.outside:
        s.kept.append(draw())


row(U, 'random_sample(), outside', lambda s: draw_outside(s, lambda: s.state.random_sample(COUNT)), escaped)
row(
    U, 'by handles, outside',
    lambda s: draw_outside(s, lambda: curand_call(s, 'generateUniformDouble', s.scratch)), escaped,
)  # fmt: skip

RS = 'cupy.random._generator.RandomState'


def seeded_draw(s: Scene) -> None:
    s.state.seed(5)
    s.kept.append(s.state.random_sample(COUNT))


def seeded_draw_eagerly(s: Scene) -> Any:
    s.twin.seed(5)
    return s.twin.random_sample(COUNT)


row(
    f'{RS}._get_seed', 'gamma()', lambda s: keep(s, s.state.gamma(2.0, 3.0, COUNT)), needs=CR,
    check=like_eager(lambda s: s.twin.gamma(2.0, 3.0, COUNT)),
)  # fmt: skip
row(
    f'{RS}._get_seed', 'poisson(), lane', needs=CR,
    run=lambda s: in_lane(s, lambda s: keep(s, s.state.poisson(9.0, COUNT))),
    check=like_eager(lambda s: s.twin.poisson(9.0, COUNT)),
)  # fmt: skip
row(
    f'{RS}.choice', 'without replacement', lambda s: keep(s, s.state.choice(16, 3, replace=False)), needs=CR,
    check=like_eager(lambda s: s.twin.choice(16, 3, replace=False)),
)  # fmt: skip
row(
    f'{RS}.choice', 'without replacement, outside',
    lambda s: draw_outside(s, lambda: s.state.choice(16, 3, replace=False)), escaped, needs=CR,
)  # fmt: skip
row(f'{RS}._get_seed', 'gamma(), outside', lambda s: draw_outside(s, lambda: s.state.gamma(2.0, 3.0, COUNT)), escaped)
row(f'{RS}.seed', 'and a draw', seeded_draw, needs=CR, check=like_eager(seeded_draw_eagerly, same=True))
row(
    f'{RS}.seed', 'alone: every launch seeds', lambda s: s.state.seed(5), needs=CR,
    check=like_eager(seeded_draw_eagerly, lambda s: s.state.random_sample(COUNT).get(), same=True),
)  # fmt: skip

B = 'cupy.random._bit_generator.BitGenerator.__init__'


def philox() -> Any:
    return cp.random.Generator(cp.random.Philox4x3210(3, size=256))


row(B, 'Philox4x3210() without a seed', lambda s: cp.random.Philox4x3210(), unsupported)
row(B, 'default_rng() without a seed', lambda s: cp.random.default_rng(), unsupported)
row(
    B, 'with a seed: every launch starts from it', lambda s: keep(s, philox().random(COUNT)),
    check=like_eager(lambda s: philox().random(COUNT), fed=False, same=True),
)  # fmt: skip

Q = 'cupy.random._bit_generator._cuRANDGenerator.state'
row(Q, 'called by hand', lambda s: equal(s.bits.state(), s.bits._state.data.ptr))
row(
    Q, 'Generator.random()', lambda s: keep(s, s.generator.random(COUNT)),
    check=like_eager(lambda s: s.generator_twin.random(COUNT), fed=False),
)  # fmt: skip
row(
    Q, 'Generator.random(), lane', lambda s: in_lane(s, lambda s: keep(s, s.generator.random(COUNT))),
    check=like_eager(lambda s: s.generator_twin.random(COUNT), fed=False),
)  # fmt: skip

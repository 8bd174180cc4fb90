"""Random numbers of the stand-in: drawn by the functions and with the seeds that CuPy draws by, at the same times."""

from __future__ import annotations

import gc
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.captured import simulated
from tests.simulated.standin import capture


@pytest.fixture
def curand(sim: Any) -> Any:
    return importlib.import_module('cupy_backends.cuda.libs.curand')


#: What a method draws by: a function of cuRAND, or a kernel with a seed of so many numbers.
DRAWS = {
    'random_sample(4)': 'generateUniformDouble', "random_sample((2, 2), 'f')": 'generateUniform',
    'rand(3)': 'generateUniformDouble', 'uniform(1, 2, 3)': 'generateUniformDouble',
    'normal(1, 2, 3)': 'generateNormalDouble', "normal(1, 2, 4, 'f')": 'generateNormal',
    'randn(3)': 'generateNormalDouble', "standard_normal((3, 3), 'f')": 'generateNormal',
    'lognormal(size=3)': 'generateLogNormalDouble', "lognormal(size=4, dtype='f')": 'generateLogNormal',
    'randint(0, 8, 5)': 'generate', 'choice(16, 3)': 'generate', 'permutation(6)': 'generate',
    'choice(2, 3, p=[0.5, 0.5])': 'generateUniformDouble', 'choice(9, 3, replace=False)': 'seed 24',
    'exponential(2.0, 3)': 'generateUniformDouble', 'poisson(4.0, 3)': 'seed 3', 'gamma(2.0, 3.0, (2, 3))': 'seed 6',
    'beta(1.0, 2.0, 2)': 'seed 2', 'binomial(5, 0.5)': 'seed 1', 'logistic(size=3)': 'seed 3',
    'dirichlet([1.0, 2.0], 2)': 'seed 4',
}  # fmt: skip


@pytest.mark.parametrize('call', DRAWS)
def test_methods_draw_by_what_cupys_draw_by(sim: Any, curand: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    kind, seen = sim.random._generator.RandomState, []
    expected = eval(f'r.{call}', {'r': kind(7)}).tolist()

    def told(holder: Any, name: str, text: Callable[..., str]) -> None:
        real = getattr(holder, name)

        def replaced(*args: Any) -> Any:
            seen.append(text(*args))
            return real(*args)

        monkeypatch.setattr(holder, name, replaced)

    state = kind(7)
    for name in [n for n in vars(curand) if n.startswith('generate')]:
        told(curand, name, lambda generator, *_, name=name: name if generator == state._generator else 'another')
    told(kind, '_get_seed', lambda _state, size: f'seed {size}')
    assert eval(f'r.{call}', {'r': state}).tolist() == expected
    assert seen == [DRAWS[call]]


def test_a_seed_gives_the_same_numbers_again(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def some() -> list[Any]:
        r = sim.random
        drawn = r.rand(3), r.randn(2, 3), r.randint(10, size=5), r.gamma(2.0, size=3), r.permutation(5)
        return [d.tolist() for d in (*drawn, r.poisson(3.0, 4))]

    monkeypatch.setenv('CUPY_SEED', '11')
    first, second = some(), some()
    assert all(a != b for a, b in zip(first, second))
    sim.random.seed(11)
    assert [some(), some()] == [first, second]
    state, before = sim.random.RandomState(11), sim.random.get_random_state()
    sim.random.set_random_state(state)
    assert sim.random.get_random_state() is state
    assert some() == first
    with pytest.raises(TypeError, match='must be an instance of RandomState'):
        sim.random.set_random_state(None)
    sim.random.set_random_state(before)
    sim.random.reset_states()
    assert sim.random.get_random_state() is not before


def test_seeds_are_checked_as_cupy_does(sim: Any) -> None:
    state = sim.random.RandomState(np.array([1, 2]))
    assert state.rand(2).tolist() == sim.random.RandomState(np.array([1, 2])).rand(2).tolist()
    assert sim.random.RandomState(True)._rk_seed == 1
    assert sim.random.RandomState()._rk_seed != sim.random.RandomState()._rk_seed
    with pytest.raises(TypeError, match='Seed must be an integer'):
        state.seed(1.5)
    for wrong in (-1, 1 << 64):
        with pytest.raises((ValueError, TypeError)):
            state.seed(wrong)
    state.seed((1 << 64) - 1)
    assert [state._get_seed(5), state._get_seed(1)] == [(1 << 64) - 1, 5]


#: Distributions by NumPy's name for them, with parameters that both take.
DISTRIBUTIONS: dict[str, tuple[float, ...]] = {
    'beta': (1.0, 3.0), 'binomial': (10, 0.3), 'chisquare': (3.0,), 'exponential': (2.0,), 'gamma': (2.0, 3.0),
    'geometric': (0.25,), 'gumbel': (0.0, 1.0), 'laplace': (2.0, 1.0), 'logistic': (1.0, 1.0), 'lognormal': (0.0, 0.5),
    'normal': (2.0, 3.0), 'poisson': (4.0,), 'power': (2.0,), 'randint': (0, 10), 'rayleigh': (1.0,),
    'triangular': (0, 1, 5), 'uniform': (-1.0, 3.0), 'weibull': (1.0,),
}  # fmt: skip


def test_the_numbers_are_of_their_distributions(sim: Any) -> None:
    r, numpys, n = sim.random.RandomState(1), np.random.RandomState(1), 40_000
    means: dict[str, tuple[float, Any]] = {
        name: (getattr(numpys, name)(*given, size=n).mean(), getattr(r, name)(*given, size=n))
        for name, given in DISTRIBUTIONS.items()
    }
    means |= {
        'randint of 64 bits': (0.5, r.randint(3 << 60, size=n).astype(float) / (3 << 60)),
        'randint of arrays': (3, r.randint(sim.zeros(n, 'i8'), sim.full(n, 7, 'i8'))),
        'randint of small arrays': (3, r.randint(sim.zeros(n, 'i4'), sim.full(n, 7, 'i4'))),
        'choice': (1.6, r.choice(3, n, p=[0.1, 0.2, 0.7])),
    }
    for name, (mean, drawn) in means.items():
        assert abs(float(drawn.mean()) - mean) < 0.05 * max(1, mean) + 0.02, name
    assert r.randint(-5, 5, (2, 3), 'i1').dtype == np.int8
    assert sorted(r.permutation(50).tolist()) == list(range(50))
    assert len(set(r.choice(50, 20, replace=False).tolist())) == 20
    x = sim.arange(30).reshape(10, 3)
    r.shuffle(x)
    assert sorted(x.tolist()) == np.arange(30).reshape(10, 3).tolist()
    assert r.permutation(x).shape == x.shape


def test_a_capture_refuses_what_cupy_refuses(sim: Any, side: Any, curand: Any) -> None:
    """And where cuRAND is let record, as capturekit does it, each launch draws."""
    state, same, a = sim.random.RandomState(0), sim.random.RandomState(0), sim.ones(3)

    def refused() -> None:
        for draw in (lambda: sim.random.rand(3), lambda: state.normal(a), lambda: state.permutation(3)):
            with pytest.raises(NotImplementedError, match='calling cuRAND API during stream capture'):
                draw()
        with pytest.raises(RuntimeError, match='D2H transfers are disallowed'):
            state.exponential(a)

    _, graph = capture(side, refused)
    graph.launch()
    assert state.rand(3).tolist() == same.rand(3).tolist()
    curand.streamIsCapturing = lambda stream: False
    x, graph = capture(side, lambda: state.rand(4))
    for _ in range(3):
        graph.launch(side)
        assert x.tolist() == same.rand(4).tolist()
    assert state.rand(2).tolist() == same.rand(2).tolist()


def test_a_recorded_kernel_repeats_its_seed(sim: Any, side: Any) -> None:
    """Also one that lies on the device and is changed between the launches."""
    state, same = sim.random.RandomState(3), sim.random.RandomState(3)
    x, graph = capture(side, lambda: state.gamma(2.0, size=4))
    first = same.gamma(2.0, size=4).tolist()
    for _ in range(2):
        graph.launch(side)
        assert x.tolist() == first
    seed = sim.array(0, dtype=np.uint64)
    state._get_seed = lambda size: seed
    drawn, graph = capture(
        side, lambda: (state.gamma(2.0, size=4), state.beta(1.0, 2.0, 4), state.binomial(9, sim.full(4, 0.5)))
    )
    for number in (3, 99, (1 << 64) - 2):
        seed[...] = number
        graph.launch(side)
        same._get_seed = lambda size, number=number: number
        expected = same.gamma(2.0, size=4), same.beta(1.0, 2.0, 4), same.binomial(9, sim.full(4, 0.5))
        assert [d.tolist() for d in drawn] == [e.tolist() for e in expected]


def test_curand_itself(sim: Any, side: Any, curand: Any) -> None:
    g = curand.createGenerator(curand.CURAND_RNG_PSEUDO_DEFAULT)
    curand.setPseudoRandomGeneratorSeed(g, 4)
    curand.setStream(g, side.ptr)
    words, longs, counts, normal = sim.zeros(5, 'u4'), sim.zeros(5, 'u8'), sim.zeros(1000, 'u4'), sim.zeros(4)
    curand.generate(g, words.data.ptr, 5)
    curand.generateLongLong(g, longs.data.ptr, 5)
    curand.generatePoisson(g, counts.data.ptr, 1000, 3.0)
    assert len(set(words.tolist())) == len(set(longs.tolist())) == 5
    assert max(longs.tolist()) > 1 << 32
    assert 2 < float(counts.mean()) < 4
    first = words.tolist()
    for offset, again in ((0, True), (8, False)):
        curand.setGeneratorOffset(g, offset)
        curand.generate(g, words.data.ptr, 5)
        assert (words.tolist() == first) is again
    curand.generateNormalDouble(g, normal.data.ptr, 4, 0.1, 0)
    assert normal.tolist() == [float(np.float32(0.1))] * 4  # CuPy hands the mean on as a C float
    for name in ('Normal', 'NormalDouble', 'LogNormal', 'LogNormalDouble'):
        with pytest.raises(ValueError, match=f'curandGenerate{name} can only generate even number'):
            getattr(curand, f'generate{name}')(g, normal.data.ptr, 3, 0, 1)
    curand.destroyGenerator(g)
    for call in (curand.destroyGenerator, lambda g: curand.generate(g, words.data.ptr, 5)):
        with pytest.raises(curand.CURANDError, match='CURAND_STATUS'):
            call(g)
    with pytest.raises(curand.CURANDError, match='CURAND_STATUS') as info:
        curand.createGenerator(3)
    assert pickle.loads(pickle.dumps(info.value)).status == 103


def test_generators_go_with_their_states(sim: Any, curand: Any) -> None:
    state = sim.random.RandomState(0, curand.CURAND_RNG_PSEUDO_MT19937)
    handle = state._generator
    curand.setGeneratorOffset(handle, 2)
    del state
    gc.collect()
    with pytest.raises(curand.CURANDError, match='NOT_INITIALIZED'):
        curand.setGeneratorOffset(handle, 2)


@pytest.mark.parametrize('call', ['svd(a)', 'eigh(a)', 'eigvalsh(a)', 'lstsq(a, a[0])'])
def test_solvers_that_wait_lose_a_capture(sim: Any, side: Any, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """As cuSOLVER's do inside. They are found by their names, which capturekit replaces."""
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    solve: Callable[[Any, Any], Any] = eval(f'lambda linalg, a: linalg.{call}')
    a = sim.asarray(matrix)
    found, wanted = solve(sim.linalg, a), solve(np.linalg, matrix)
    for ours, theirs in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, wanted))):
        np.testing.assert_allclose(ours.get(), theirs)
    assert type(found) in (tuple, sim.ndarray)
    cusolver = importlib.import_module('cupy_backends.cuda.libs.cusolver')
    with side:
        side.begin_capture()
        with pytest.raises(NotImplementedError, match='calling cuSOLVER API during stream capture'):
            solve(sim.linalg, a)
        side.end_capture()
        monkeypatch.setattr(cusolver, 'streamIsCapturing', lambda stream: False)
        side.begin_capture()
        with pytest.raises(sim.cuda.runtime.CUDARuntimeError, match='StreamCaptureUnsupported'):
            solve(sim.linalg, a)
        with pytest.raises(sim.cuda.runtime.CUDARuntimeError, match='StreamCaptureInvalidated'):
            side.end_capture()
    monkeypatch.setattr(sim.linalg, call.partition('(')[0], lambda *args: 'replaced')
    assert solve(sim.linalg, a) == 'replaced'


def test_a_draw_with_another_device_current() -> None:
    """Its kernel reads the generator's state, which only a peer reaches (measured on two H100s, 2026-11-26)."""
    with simulated(devices=2) as cp:
        curand = importlib.import_module('cupy_backends.cuda.libs.curand')
        with cp.cuda.Device(1):
            one, same = cp.random.RandomState(3), cp.random.RandomState(3)
            out, wanted = cp.zeros(4), same.random_sample(4)
        with pytest.raises(curand.CURANDError, match='LAUNCH_FAILURE'):
            curand.generateUniformDouble(one._generator, out.data.ptr, 4)
        cp.cuda.runtime.deviceEnablePeerAccess(1)
        curand.generateUniformDouble(one._generator, out.data.ptr, 4)
        for device in (0, 1):
            cp.cuda.Device(device).synchronize()
        assert out.get().tolist() == wanted.get().tolist()

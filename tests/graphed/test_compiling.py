"""A first run that comes to CuPy's compiler: what the compiler reads is not compared, and why nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

import capturekit as ck
from capturekit import simulated
from capturekit.graphed.compiling import NoCompiler, compiler_code, remembers
from capturekit.model.errors import UnsupportedCallError

#: A compiler as CuPy has it: many names in several modules, under one function.
SOURCE = """
import tempfile

def _compile_module_with_cache(source, made):
    return _with_cache(source, made)

def _with_cache(source, made):
    with tempfile.TemporaryDirectory():
        return made(_preprocess(source))

def _preprocess(source):
    return source.encode().decode()
"""


@pytest.fixture
def compiler(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The simulated CuPy has no compiler; here it gets one, in a file of its own."""
    module = ModuleType('cupy.cuda.compiler')
    file = str(Path(cast(str, simulated.__file__)).with_name('compiler.py'))
    exec(compile(SOURCE, file, 'exec'), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sim.cuda, 'compiler', module, raising=False)
    return module


def gives(fn: Any, sim: Any, factor: float, times: int = 3) -> None:
    for _ in range(times):
        assert fn(sim.ones(4)).get().tolist() == [factor] * 4


def kernel_of(sim: Any, compiler: Any) -> Callable[[str], Any]:
    """What makes a kernel of CuPy's: it is compiled when it is first used, and then remembered."""
    made: Callable[[str], Any] = sim.memoize()(lambda source: compiler._compile_module_with_cache(source, str))
    return made


def test_what_the_compiler_names_is_not_compared(sim: Any, compiler: Any) -> None:
    kernel = kernel_of(sim, compiler)

    def work(x: Any) -> Any:
        kernel('a')
        return x * 2

    fn = ck.graphed(work)
    for n in range(4):
        assert fn(sim.full(4, float(n))).get().tolist() == [2.0 * n] * 4
    compiler._preprocess = compiler._with_cache = None
    gives(fn, sim, 2.0, 1)
    (variant,) = fn.variants
    assert variant.state == 'recorded' and variant.launches >= 3


def test_forgotten_kernels_are_a_change(sim: Any, compiler: Any) -> None:
    """What is compiled anew may be something else, so that the function runs eagerly then."""
    kernel = kernel_of(sim, compiler)

    def work(x: Any) -> Any:
        return x * len(kernel('ab'))

    fn = ck.graphed(work)
    gives(fn, sim, 2.0)
    compiler._preprocess = lambda source: 'abc'
    gives(fn, sim, 2.0, 1)
    sim.clear_memo()
    gives(fn, sim, 3.0)
    assert len(fn.variants) == 2


@pytest.mark.parametrize('by', ['name', 'another name'])
def test_who_compiles_at_each_call_stays_eager(sim: Any, compiler: Any, by: str) -> None:
    alias = compiler._compile_module_with_cache

    def work(x: Any) -> Any:
        compiles = compiler._compile_module_with_cache if by == 'name' else alias
        return x * len(compiles('ab', str))

    fn = ck.graphed(work)
    gives(fn, sim, 2.0)
    compiler._preprocess = lambda source: 'abc'
    gives(fn, sim, 3.0)
    assert {variant.state for variant in fn.variants} == {'eager'}


def test_a_kernel_of_the_recording_alone_is_made_once(sim: Any, compiler: Any) -> None:
    kernel = kernel_of(sim, compiler)

    def work(x: Any) -> Any:
        kernel('recorded' if sim.cuda.get_current_stream().is_capturing() else 'eager')
        return x * 2

    fn = ck.graphed(work)
    for n in range(6):
        assert fn(sim.full(4, float(n))).get().tolist() == [2.0 * n] * 4
    (variant,) = fn.variants
    assert variant.state == 'recorded' and variant.launches == 4


def test_code_in_the_place_of_the_compilers_is_followed(sim: Any, compiler: Any) -> None:
    kernel, options = kernel_of(sim, compiler), ['-O3']
    compiler._preprocess = lambda source: source + options[0]

    def work(x: Any) -> Any:
        return x * len(kernel('ab'))

    fn = ck.graphed(work)
    gives(fn, sim, 5.0)
    options[0] = ''
    gives(fn, sim, 5.0, 1)  # CuPy remembers the kernel
    sim.clear_memo()
    gives(fn, sim, 2.0)


@pytest.mark.parametrize('source', ['a', None], ids=['compiled', 'refused'])
def test_what_runs_after_the_compiler_is_followed(sim: Any, compiler: Any, source: Any) -> None:
    kernel, scale = kernel_of(sim, compiler), [2.0]

    def work(x: Any) -> Any:
        try:
            kernel(source)
        except AttributeError:
            return x * scale[0]
        return x * scale[0]

    fn = ck.graphed(work)
    gives(fn, sim, 2.0)
    scale[0] = 4.0
    gives(fn, sim, 4.0, 1)


def test_a_compiler_of_the_users_is_none_of_cupys(compiler: Any) -> None:
    assert compiler_code() is compiler._compile_module_with_cache.__code__
    compiler._compile_module_with_cache = lambda *_: None
    assert compiler_code() is None


def test_what_cupy_remembers_is_asked_for_once(sim: Any) -> None:
    first, second = remembers(), remembers()
    assert first() and second()
    sim.clear_memo()
    assert not first() and not second() and remembers()()


def test_a_profiler_goes_on_around_a_recording(compiler: Any) -> None:
    seen: list[str] = []
    sys.setprofile(lambda frame, event, _argument: seen.append(frame.f_code.co_name) if event == 'call' else None)
    mine = sys.getprofile()
    try:
        with NoCompiler(compiler_code(), frozenset('a')):
            compiler._preprocess('a')
            compiler._compile_module_with_cache('b', str)
        assert sys.getprofile() is mine
        with pytest.raises(UnsupportedCallError, match='compiles again'), NoCompiler(compiler_code(), frozenset('a')):
            compiler._compile_module_with_cache('a', str)
    finally:
        sys.setprofile(None)
    assert '_preprocess' in seen and '_with_cache' in seen


#: The real ``cupy.memoize`` is written in C, so that what it remembers can't be followed. It needs no GPU.
MEMOIZED = """
import sys
import cupy
memoize, clear_memo = cupy.memoize, cupy.clear_memo
for name in [name for name in sys.modules if name.partition('.')[0] in ('cupy', 'cupyx')]:
    del sys.modules[name]

import capturekit as ck
from capturekit import simulated

simulated.install()
cp = sys.modules['cupy']
cp.memoize, cp.clear_memo = memoize, clear_memo  # that which capturekit asks, too
table = {'rate': 2.0}
rate = memoize()(lambda: table['rate'])
graphed = ck.graphed(lambda x: x * rate())
found = []
for call in range(12):
    if call == 4:
        table['rate'] = 3.0
    if call == 8:
        clear_memo()
    found.append(float(graphed(cp.ones(2))[0]))
assert found == [2.0] * 8 + [3.0] * 4, found
assert sum(variant.launches for variant in graphed.variants) >= 4
"""


def test_what_the_real_cupy_remembers_counts_until_it_is_cleared() -> None:
    pytest.importorskip('cupy', reason='CuPy is not installed')
    subprocess.run([sys.executable, '-c', MEMOIZED], check=True, timeout=120)

"""The stand-in's names and signatures against real CuPy's, read from CuPy in another process.

Real CuPy imports on a machine without a GPU. The stand-in is CuPy 14.2's; what 14.0 and 14.1 have otherwise is listed.
Other versions are skipped.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

from capturekit.simulated.cupy.surface import ABSENT
from capturekit.simulated.device.constants import CONSTANTS, ERRORS
from tests.captured import simulated

#: Prints, as JSON, what CuPy exports: name -> [kind, parameters or None].
DUMP = r"""
import inspect, json, re, sys, warnings
warnings.simplefilter('ignore')
import cupy, cupyx, cupyx.profiler
from cupy.random import _generator_api

def parameters(f):
    'Name and whether it may be left out; extension modules have them in the first line of the docstring.'
    try:
        return [[p.name, p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
                for p in inspect.signature(f).parameters.values()]
    except (TypeError, ValueError):
        first = str(getattr(f, '__doc__', None) or '').strip().partition('\n')[0]
    match = re.fullmatch(r'[\w.]+\((.*)\)(?: -> .*)?', first)
    if match is None or ('[' in match[1] and '=' not in match[1]):
        return None
    parts = [part.partition('=') for part in re.split(r',(?![^()]*\))', match[1]) if part.strip()]
    named = [(name.split()[-1].lstrip('\\'), equals) for name, equals, _default in parts]
    return [[name.lstrip('*'), bool(equals) or name[0] == '*'] for name, equals in named if name.strip('*/')]

def dump(prefix, holder):
    for name in dir(holder):
        try:
            value = getattr(holder, name)
        except Exception:
            continue
        kind, what = type(value).__name__, None
        if kind in ('ufunc', '_GUFunc'):
            kind, what = 'ufunc', [value.nin, value.nout] if hasattr(value, 'nin') else None
        elif callable(value):
            kind, what = 'class' if isinstance(value, type) else 'function', parameters(value)
        if not name.startswith('_'):
            out[f'{prefix}.{name}'] = [kind, what]

out = {}
dump('Generator', _generator_api.Generator)
for path in '''
    cupy cupy.linalg cupy.fft cupy.random cupy.cuda cupy.cuda.runtime cupy.cuda.stream cupy.cuda.memory
    cupy.cuda.pinned_memory cupy.cuda.device cupyx cupyx.profiler cupy.ndarray cupy.cuda.Stream cupy.cuda.ExternalStream
    cupy.cuda.Event cupy.cuda.Device cupy.cuda.Graph cupy.cuda.MemoryPool cupy.cuda.PinnedMemoryPool
    cupy.cuda.MemoryPointer cupy.cuda.MemoryHook cupy.random.RandomState
'''.split():
    dump(path, eval(path))
runtime = cupy.cuda.runtime
print(json.dumps({
    'version': cupy.__version__,
    'names': out,
    'constants': {n: getattr(runtime, n) for n in dir(runtime) if type(getattr(runtime, n)) is int},
    'errors': {str(c): str(runtime.CUDARuntimeError(c)) for c in json.loads(sys.argv[1])},
}))
"""

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: Parameters that the stand-in writes differently, where no program can see it.
EXEMPT = {
    'cupy.get_array_module', 'cupy.cuda.MemoryAsyncPool', 'cupy.cuda.stream.get_current_stream',
    'cupy.cuda.memory.PooledMemory', 'cupy.ufunc',
}  # fmt: skip

#: What became as in the stand-in later than with 14.0: the version with which it did.
SINCE = {
    'cupy.isdtype': (14, 1), 'cupy.matrix_transpose': (14, 1), 'cupy.linalg.matrix_transpose': (14, 1),
    'cupy.make_aligned_dtype': (14, 1), 'cupy.cumulative_prod': (14, 2), 'cupy.cumulative_sum': (14, 2),
    'cupy.reshape': (14, 2), 'cupy.ndarray.reshape': (14, 2), 'cupy.cuda.runtime.pointerGetMemoryType': (14, 2),
}  # fmt: skip


def later(real: dict[str, Any]) -> set[str]:
    """What this CuPy has otherwise than the stand-in."""
    version = tuple(int(part) for part in real['version'].split('.')[:2])
    return {path for path, since in SINCE.items() if version < since}


@pytest.fixture(scope='module')
def real() -> dict[str, Any]:
    if importlib.util.find_spec('cupy') is None:
        pytest.skip('needs CuPy, without a GPU')
    codes = json.dumps(sorted(ERRORS))
    done = subprocess.run([sys.executable, '-c', DUMP, codes], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if not found['version'].startswith('14.'):
        pytest.skip(f'written for CuPy 14, this is {found["version"]}')
    return found


@pytest.fixture(scope='module')
def modules() -> dict[str, Any]:
    with simulated():
        return {name: module for name, module in sys.modules.items() if name.startswith('cupy')}


def _find(modules: dict[str, Any], path: str) -> Any:
    if path.startswith('Generator.'):
        return getattr(modules['cupy.random'].Generator, path.partition('.')[2], None)
    owner, _, name = path.rpartition('.')
    if owner in modules:
        return vars(modules[owner]).get(name)
    cls = _find(modules, owner)
    return None if cls is None else getattr(cls, name, None)


def test_parameters_are_those_of_cupy(real: dict[str, Any], modules: dict[str, Any]) -> None:
    wrong, compared, exempt = {}, 0, EXEMPT | later(real)
    for path, (kind, wanted) in real['names'].items():
        value = _find(modules, path)
        if getattr(value, '__name__', '') == 'refuse':
            continue  # a call that the guard judges, and the stand-in has not
        if value is None or wanted is None or kind not in ('function', 'class') or path in exempt:
            continue
        if kind == 'class' and issubclass(value, BaseException):
            continue
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):
            continue
        compared += 1
        ours = [[p.name, p.default is not p.empty or p.kind in VARIABLE] for p in signature.parameters.values()]
        ours, theirs = ([p for p in some if p[0] not in ('self', 'cls')] for some in (ours, wanted))
        if ours != theirs:
            wrong[path] = f'{ours} instead of {theirs}'
    assert not wrong, '\n'.join(f'{k}: {v}' for k, v in wrong.items())
    assert compared > 500


def test_ufuncs_have_the_same_number_of_operands(real: dict[str, Any], modules: dict[str, Any]) -> None:
    ufuncs = {p: n for p, (kind, n) in real['names'].items() if kind == 'ufunc' and n and p.startswith('cupy.')}
    for path, (nin, nout) in ufuncs.items():
        value = _find(modules, path)
        assert (value.nin, value.nout) == (nin, nout), path
    assert len(ufuncs) > 90


def test_modules_have_cupys_names_and_no_others(real: dict[str, Any], modules: dict[str, Any]) -> None:
    """What ``cupy`` itself lacks is known by name."""
    later_names, theirs = {path.rpartition('.')[2] for path in later(real)}, dict[str, set[str]]()
    for path in {*real['names'], *later(real)}:
        theirs.setdefault(path.rpartition('.')[0], set()).add(path.rpartition('.')[2])
    ours = {name: {n for n in vars(module) if not n.startswith('_')} for name, module in modules.items()}
    inner = set('testing jit nvtx profiler exceptions Generator curand nccl scipy cusparse cufft'.split())
    for module in ('cupy', 'cupy.linalg', 'cupy.fft', 'cupy.random', 'cupy.cuda', 'cupy.cuda.runtime', 'cupyx'):
        assert ours[module] <= theirs[module] | inner, module
    features = {path.rpartition('.')[2] for path, (kind, _) in real['names'].items() if kind == '_Feature'}
    assert theirs['cupy'] - ours['cupy'] - features - later_names == ABSENT - later_names


def test_every_method_is_there(real: dict[str, Any], modules: dict[str, Any]) -> None:
    for path in real['names']:
        if path.startswith(('cupy.ndarray.', 'cupy.cuda.Stream.', 'cupy.cuda.Event.')):
            owner, _, name = path.rpartition('.')
            assert hasattr(_find(modules, owner), name) or name in ('data', 'dtype', 'size', 'base'), path


def test_constants_and_error_texts_are_cudas(real: dict[str, Any]) -> None:
    assert CONSTANTS.items() <= real['constants'].items()
    for code, (name, text) in ERRORS.items():
        assert real['errors'][str(code)] == f'{name}: {text}'

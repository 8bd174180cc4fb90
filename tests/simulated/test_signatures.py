"""The stand-in's names and signatures against real CuPy's, read from CuPy in another process.

Real CuPy imports on a machine without a GPU. The stand-in is CuPy 14.2's; what 14.0 and 14.1 have otherwise is listed.
Other versions are skipped.
"""

from __future__ import annotations

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
import importlib, inspect, json, re, sys, warnings
warnings.simplefilter('ignore')
import cupy, cupyx

def split(text):
    depth, part, parts = 0, '', []
    for c in text:
        depth += (c in '([{') - (c in ')]}')
        if c == ',' and not depth:
            parts.append(part); part = ''
        else:
            part += c
    return [p.strip() for p in (*parts, part) if p.strip()]

def parameters(f):
    try:
        found = []
        for p in inspect.signature(f).parameters.values():
            found.append([p.name, p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)])
        return found
    except (TypeError, ValueError):
        pass
    first = (getattr(f, '__doc__', None) or '').strip().split('\n')[0]
    match = re.match(r'[\w.]+\((.*)\)( -> .*)?$', first)
    if not match or '[' in match[1] and '=' not in match[1]:
        return None
    found = []
    for p in split(match[1]):
        if p in ('/', '*', r'\*'):
            continue
        name, _, default = p.partition('=')
        found.append([name.split()[-1].lstrip('*'), bool(default) or p.startswith('*')])
    return found

def dump(prefix, module):
    for name in dir(module):
        if name.startswith('_'):
            continue
        try:
            value = getattr(module, name)
        except Exception:
            continue
        kind = type(value).__name__
        if isinstance(value, type):
            kind = 'class'
        elif kind in ('ufunc', '_GUFunc'):
            kind = 'ufunc'
        elif callable(value):
            kind = 'function'
        if kind == 'ufunc':
            what = [value.nin, value.nout] if hasattr(value, 'nin') else None
        else:
            what = parameters(value) if callable(value) and kind != 'module' else None
        out[f'{prefix}.{name}'] = [kind, what]

out = {}
for name in ('cupy', 'cupy.linalg', 'cupy.fft', 'cupy.random', 'cupy.cuda', 'cupy.cuda.runtime', 'cupy.cuda.stream',
             'cupy.cuda.memory', 'cupy.cuda.pinned_memory', 'cupy.cuda.device', 'cupyx', 'cupyx.profiler'):
    dump(name, importlib.import_module(name) if name != 'cupy.cuda.runtime' else cupy.cuda.runtime)
for cls in ('cupy.ndarray', 'cupy.cuda.Stream', 'cupy.cuda.ExternalStream', 'cupy.cuda.Event', 'cupy.cuda.Device',
            'cupy.cuda.Graph', 'cupy.cuda.MemoryPool', 'cupy.cuda.PinnedMemoryPool', 'cupy.cuda.MemoryPointer',
            'cupy.cuda.MemoryHook', 'cupy.random.RandomState'):
    dump(cls, eval(cls))
dump('Generator', importlib.import_module('cupy.random._generator_api').Generator)
runtime = cupy.cuda.runtime
print(json.dumps({
    'version': cupy.__version__,
    'names': out,
    'constants': {n: getattr(runtime, n) for n in dir(runtime) if type(getattr(runtime, n)) is int},
    'errors': {str(c): str(runtime.CUDARuntimeError(c)) for c in json.loads(sys.argv[1])},
    'refusals': {},
}))
"""

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
    codes = json.dumps(sorted(ERRORS))
    done = subprocess.run([sys.executable, '-c', DUMP, codes], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip('real CuPy cannot be imported: ' + (done.stderr.strip().splitlines() or ['?'])[-1])
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


def _parameters(value: Any) -> list[list[Any]] | None:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [[p.name, p.default is not p.empty or p.kind in optional] for p in signature.parameters.values()]


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
        ours = _parameters(value)
        if ours is None or not callable(value):
            continue
        compared += 1
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


def test_what_is_missing_is_known_by_name(real: dict[str, Any], modules: dict[str, Any]) -> None:
    there = {p.rpartition('.')[2]: k for p, (k, _) in real['names'].items() if p.rpartition('.')[0] == 'cupy'}
    missing = {n for n, kind in there.items() if kind != '_Feature' and n not in vars(modules['cupy'])}
    otherwise = {path.rpartition('.')[2] for path in later(real)}
    assert missing - otherwise == ABSENT - otherwise


def test_nothing_is_exported_that_cupy_lacks(real: dict[str, Any], modules: dict[str, Any]) -> None:
    for module in ('cupy', 'cupy.linalg', 'cupy.fft', 'cupy.random', 'cupy.cuda', 'cupy.cuda.runtime', 'cupyx'):
        ours = {n for n in vars(modules[module]) if not n.startswith('_')}
        theirs = {p.rpartition('.')[2] for p in {*real['names'], *later(real)} if p.rpartition('.')[0] == module}
        inner = set('testing jit nvtx profiler exceptions Generator curand nccl scipy cusparse cufft'.split())
        assert ours <= theirs | inner, module


def test_every_method_is_there(real: dict[str, Any], modules: dict[str, Any]) -> None:
    for path in real['names']:
        if path.startswith(('cupy.ndarray.', 'cupy.cuda.Stream.', 'cupy.cuda.Event.')):
            owner, _, name = path.rpartition('.')
            assert hasattr(_find(modules, owner), name) or name in ('data', 'dtype', 'size', 'base'), path


def test_constants_and_error_texts_are_cudas(real: dict[str, Any]) -> None:
    assert CONSTANTS.items() <= real['constants'].items()
    for code, (name, text) in ERRORS.items():
        assert real['errors'][str(code)] == f'{name}: {text}'

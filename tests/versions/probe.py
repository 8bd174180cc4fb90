"""What holds in this environment of what capturekit relies on; ``python -m tests.versions.probe`` prints it as JSON.

It needs CuPy and cuda-bindings, and neither a GPU nor a driver.
"""

from __future__ import annotations

import ast
import inspect
import json
import platform
import re
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / 'capturekit'


def findings() -> dict[str, Any]:
    """Everything, as plain data."""
    loaded_early = _library_modules()
    from tests.versions.seams import seams

    return {
        'environment': environment(),
        'names': names(),
        'replaced': replaced(),
        'signatures': signatures(),
        'used': used(),
        'seams': seams(loaded_early),
        'verbs': verbs(),
    }


def environment() -> dict[str, str]:
    """The versions that this holds for: as a row of the table names them."""
    from capturekit.model.versions import installed

    found = installed()
    cupy = next((name for name in found if name.startswith('cupy')), 'cupy')
    return {
        'python': '.'.join(platform.python_version_tuple()[:2]),
        'cupy': f'{cupy} {found.get(cupy, "")}'.strip(),
        'cuda-bindings': found.get('cuda-bindings', ''),
        'numpy': found['numpy'],
    }


def why_not() -> str:
    """Why this machine is no place to fill the table, as one with a driver or CUDA's libraries is; '' where it is."""
    import ctypes
    import importlib

    try:
        ctypes.CDLL('libcuda.so.1')
        return 'there is a driver here: the table is made without one'
    except OSError:
        pass
    try:
        importlib.import_module('cupy_backends.cuda.libs.curand')
        return "CUDA's libraries are here: the table is made without them"
    except ImportError:
        return ''


def _library_modules() -> list[str]:
    """CuPy's modules for CUDA's libraries that ``import cupy`` has loaded."""
    import cupy  # noqa: F401

    return sorted(name for name in sys.modules if name.startswith('cupy_backends.cuda.libs.cu'))


# -- the interception table -----------------------------------------------------------------------------------


def names() -> dict[str, Any]:
    """The rows of the interception table that this CuPy has, by the doctor's judgement."""
    from capturekit.cli.doctor import names_present

    found = names_present({'cupy': {}})
    unseen = [name for name, why in found['optional'].items() if _is_a_library_away(why)]
    absent = sorted(found['optional'].keys() - set(unseen)) + [name for name in unseen if not _in_its_file(name)]
    there = found['entries'] - len(found['missing']) - len(found['optional'])
    written = len(found['optional']) - len(absent)
    return {'there': there, 'written': written, 'absent': sorted(absent), 'missing': found['missing']}


def _is_a_library_away(why: str) -> bool:
    """Whether a module was found, and failed to load, for want of one of CUDA's libraries."""
    return why.startswith('ImportError: ') and 'is a module' not in why


def _in_its_file(name: str) -> bool:
    """Whether the files of a module that can't be loaded here have a function of that name."""
    import cupy

    holder, _dot, function = name.rpartition('.')
    stem = Path(cupy.__file__).parents[1].joinpath(*holder.split('.'))
    if not stem.parent.is_dir():  # a class of the module
        stem = stem.parent
    sources = [*stem.parent.glob(f'{stem.name}.py'), *stem.rglob('*.py')]
    compiled = stem.parent.glob(f'{stem.name}.*.so')
    return any(re.search(rf'^def {function}\(', path.read_text(), re.M) for path in sources) or any(
        re.search(rf'\b{function}\b'.encode(), path.read_bytes()) for path in compiled
    )


def replaced() -> dict[str, Any]:
    """How many names can be replaced and put back as they were: by the contract of tests/guard/test_entry_points.py."""
    from capturekit.guard.entry_points import ENTRIES
    from tests.guard.test_entry_names import CONTRACT, run

    said = run(CONTRACT)
    wrong = sorted({*ast.literal_eval(said['not'].partition(' ')[2]), *ast.literal_eval(said['changed'])})
    return {'count': len(ENTRIES) - len(ast.literal_eval(said['missing'])) - len(wrong), 'wrong': wrong}


def signatures() -> dict[str, Any]:
    """Whether the guard takes what CuPy's functions take, in every way of giving it, where these tell."""
    from capturekit.guard import GUARD
    from capturekit.guard.entry_points import ENTRIES
    from capturekit.guard.patching import Installation
    from capturekit.guard.signatures import signature_of

    agreeing, untold, wrong = 0, [], {}
    for entry in ENTRIES:
        slots = [] if entry.kind == 'attribute' else Installation._find(entry)
        for slot in slots[:1]:
            told = None if entry.kind == 'property' else signature_of(slot.original)
            if told is None:
                untold.append(str(entry))
                continue
            verb = attrgetter(entry.verb)(GUARD)
            before = ('call', slot.original) if entry.named else (slot.original,)
            why = refused(verb, slot.original, told, before, entry.name.startswith('__'))
            if why:
                wrong[str(entry)] = why
            else:
                agreeing += 1
    return {'agreeing': agreeing, 'untold': untold, 'wrong': wrong}


def refused(
    verb: Callable[..., Any], function: Any, told: inspect.Signature, before: tuple[Any, ...], special: bool
) -> str:
    """Why a verb would not take a call that the function takes; '' if it takes all. Operators have no keywords."""
    from capturekit.guard.signatures import in_order

    for args, kwargs in _ways(told, special):
        args, kwargs = in_order(verb, function, args, kwargs)
        try:
            inspect.signature(verb).bind(*before, *args, **kwargs)
        except TypeError as error:
            return f'{told}: {error}'
    return ''


def _ways(told: inspect.Signature, special: bool) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls of a function: all by place, only what must be given, all by name (but for ``self``), the last by name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    plain = [one for one in told.parameters.values() if one.kind in kinds]
    needed = [one for one in plain if one.default is one.empty]
    yield tuple(range(len(plain))), {}
    yield tuple(range(len(needed))), {}
    if special:
        return
    mine = 1 if plain and plain[0].name == 'self' else 0
    by_name = [one.name for one in plain if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD][mine:]
    for first in range(len(by_name)):
        count = len(plain) - len(by_name) + first
        yield tuple(range(count)), dict.fromkeys(reversed(by_name[first:]), 0)
    for name in (one.name for one in plain if one.default is not one.empty):
        if name in by_name:
            yield tuple(range(len(needed))), {name: 0}


# -- names that capturekit itself uses ------------------------------------------------------------------------


def used() -> dict[str, Any]:
    """The names of CuPy that capturekit's own code spells out, and those of them that this CuPy has not."""
    import cupy

    missing, there = {}, 0
    for chain, places in sorted(spelled_out().items()):
        found: Any = cupy
        try:
            for name in chain.split('.'):
                found = getattr(found, name)
            there += 1
        except AttributeError:
            missing[f'cupy.{chain}'] = sorted(places)
    return {'there': there, 'missing': missing}


def spelled_out() -> dict[str, set[str]]:
    """What stands behind ``cupy.``, ``cp.`` or ``platform.cupy.`` in the code, and in which files."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob('*.py')):
        if 'simulated' in path.parts or path.name == 'lessons.py':
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            chain = _chain(node)
            if chain:
                found.setdefault(chain, set()).add(path.name)
    inner = {chain.rpartition('.')[0] for chain in found}
    return {chain: places for chain, places in found.items() if chain not in inner}


def _chain(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not parts or not isinstance(node, ast.Name):
        return ''
    parts.insert(0, node.id)
    at = max((number for number, part in enumerate(parts) if part in ('cupy', 'cp', '_cupy')), default=None)
    return '' if at is None or parts[at + 1 : at + 2] == ['__capturekit_simulated__'] else '.'.join(parts[at + 1 :])


# -- cuda-bindings --------------------------------------------------------------------------------------------


class _Number(int):
    """What CUDA might answer: a handle, a number, a list with one handle."""

    def __iter__(self) -> Iterator[_Number]:
        yield self


#: What a played call answers for how many there are; everything else is its place in the answer.
_HOW_MANY = 5
#: What verbs then tell, if they know what stands where: it was moved between cuda-bindings 12 and 13.
_READ: dict[str, Any] = {
    'capture_info': "CaptureInfo(status=<CaptureStatus.ACTIVE: 1>, number=2, graph=3, dependencies=(4,))",
    'graph_edges': '[(1, 2)]', 'graph_edge_count': str(_HOW_MANY), 'graph_nodes': '[1]',
    'graph_node_count': str(_HOW_MANY), 'mem_get_info': '(1, 2)', 'end_capture': '1',
}  # fmt: skip


class Played:
    """cuda-bindings' runtime without a driver: each call is made, is to be refused by CUDA, and is answered as if not.

    What does not take its arguments raises as it would in a capture. Answers have the values that are documented.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return found if isinstance(found, type) or not callable(found) else self._playing(name, found)

    def _playing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.called.add(name)
            values = documented(function)
            try:
                length = len(function(*args))
            except RuntimeError as error:  # before 12.9 they look for the driver themselves, after the arguments
                if not re.search(r'dlopen libcuda|Function "cu\w+" not found', str(error)):
                    raise
                length = len(values)
            if length != len(values):
                raise LookupError(f'{name} answers {length} values and tells of {len(values)}: {", ".join(values)}')
            many = [value.startswith('num') for value in values]
            return (0, *(_Number(_HOW_MANY if many[place] else place) for place in range(1, length)))

        return call


def documented(function: Any) -> list[str]:
    """The values that a function's text says it returns, the error code first."""
    section = re.search(r'^( *)Returns\n\1-+\n(.*?)(?:^\1[A-Z][\w ]+\n\1-+\n|\Z)', str(function.__doc__), re.M | re.S)
    if section is None:
        raise LookupError(f'{function.__name__} does not tell what it returns')
    return re.findall(rf'^{section[1]}(\w+)', section[2], re.M)


def verbs() -> dict[str, Any]:
    """The verbs of the real device on a driver that answers everything: what takes them, and what does not.

    Those that call the driver's library by ctypes can't be tried without one, nor those that compile with CuPy.
    """
    from cuda.bindings import runtime

    from capturekit.driver.cuda import CudaDevice

    device = CudaDevice(SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(graphLaunch=None))))
    played = device.rt = Played(runtime)
    reached, driver, wrong = 0, [], {}
    for name, verb in inspect.getmembers(CudaDevice, inspect.isfunction):
        if name.startswith('_') or name in _COMPILING:
            continue
        try:
            answer = verb(device, *map(_given, list(inspect.signature(verb).parameters.values())[1:]))
            if callable(answer):
                answer(1)
            if repr(answer) != _READ.get(name, repr(answer)):
                raise AssertionError(f'it reads {answer} out of it, not {_READ[name]}')
            reached += 1
        except Exception as error:
            said = f'{type(error).__name__}: {error}'
            if "driver's library" in said:
                driver.append(name)
            else:
                wrong[name] = said
    return {'reached': reached, 'functions': len(played.called), 'driver': driver, 'wrong': wrong}


#: The verbs for fused kernels, which CuPy compiles; tests/gpu/test_fusion_gpu.py tries them.
_COMPILING = ('fuse_node', 'fused_function', 'fused_reduction', 'reduce_node')


def _given(parameter: inspect.Parameter) -> Any:
    """Something of the kind that a parameter of a verb wants."""
    from capturekit.model.rules import Mode

    kinds: dict[str, Any] = {
        'Sequence[bytes]': (b'',), 'Sequence': (1,), 'list': [1], 'Callable': int, 'Mode': Mode.RELAXED, 'str': 'if',
    }  # fmt: skip
    if parameter.name in ('grid', 'block'):
        return 1, 1, 1
    kind = str(parameter.annotation)
    return next((value for start, value in kinds.items() if kind.startswith(start)), 1)


if __name__ == '__main__':
    print(json.dumps(findings()))

"""``capturekit doctor``: versions that fit together, a GPU that answers, libraries that record, a capture that runs.

Facts first, then what they mean. :func:`ask` gathers the facts in a process of its own, stage by stage, so that a crash
or an endless wait is reported like anything else; :func:`judge` turns them, plain data, into findings.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from capturekit.cli.by_environment import NAME, wanted
from capturekit.driver.cuda import current
from capturekit.guard import GUARD, watch
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.model.counted import counted
from capturekit.model.rules import MEASURED
from capturekit.model.versions import BINDINGS, CUPY, FEATURES, PYTHON, Known, command, dotted, installed, numbers
from capturekit.recorder.capture import capture

Facts = dict[str, dict[str, Any]]

_PATIENCE = 180.0
_WIDTH = 100
#: What the other process runs: it finds the modules that this one finds, and no others.
_TELL = 'import sys; sys.path[:] = filter(None, sys.path); import capturekit.cli.doctor as d; d.tell(sys.argv[1])'
_LIBRARIES = {'cublas': 'cuBLAS', 'cusolver': 'cuSOLVER', 'curand': 'cuRAND', 'cusparse': 'cuSPARSE'}
_LESS = {
    'cublas workspace': "cuBLAS gets no workspace of the graph's",
    'modules': 'kernels that CuPy drops are not kept for the graphs that need them',
    'plans': 'plans of cuFFT that CuPy drops are not kept for the graphs that need them',
}


@dataclass(frozen=True)
class Diagnosis:
    """One line: its subject ``about``, and the finding ``text``. ``level``: 'good', 'note' or 'bad'."""

    about: str
    text: str
    level: str = 'good'


@dataclass(frozen=True)
class DoctorReport:
    """The facts, and what they mean."""

    facts: Facts

    @cached_property
    def findings(self) -> tuple[Diagnosis, ...]:
        """What the facts mean, line by line."""
        return tuple(judge(self.facts))

    @property
    def good(self) -> bool:
        """True when nothing is wrong; a machine without a GPU is not wrong."""
        return not any(finding.level == 'bad' for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The last line."""
        bad = [finding for finding in self.findings if finding.level == 'bad']
        if bad:
            more = f' (and {len(bad) - 1} more, marked !)' if len(bad) > 1 else ''
            return f'not good: {bad[0].about}: {textwrap.shorten(bad[0].text, 2 * _WIDTH, placeholder=" ...")}{more}'
        if self.facts['gpu'].get('count'):
            kept = f', which {NAME}=1 keeps scripts from' if self.facts['environment']['simulate'] else ''
            return f'good: captures are recorded and launched on the GPU{kept}'
        return 'good, without a GPU: captures are recorded and launched on the simulated device'

    def __str__(self) -> str:
        marks = {'good': '  ', 'note': '- ', 'bad': '! '}
        lines = [f'{marks[f.level]}{f.about:<14}{f.text}' for f in self.findings]
        wrapped = [textwrap.fill(line, _WIDTH, subsequent_indent=' ' * 16, break_long_words=False) for line in lines]
        return '\n'.join([*wrapped, f'verdict: {self.verdict}'])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        findings = [asdict(finding) for finding in self.findings]
        return {'good': self.good, 'verdict': self.verdict, 'findings': findings, 'facts': self.facts}


def examine() -> DoctorReport:
    """Look at this machine."""
    python = {'version': platform.python_version(), 'system': f'{platform.system()} {platform.machine()}'}
    return DoctorReport({'python': python, 'installed': installed(), **ask(), 'environment': {'simulate': wanted()}})


# -- facts ----------------------------------------------------------------------------------------------------


def ask() -> Facts:
    """Gather facts by trying things out, in a process of its own that finds the same modules as this one.

    The facts are the machine's own, also where ``CAPTUREKIT_SIMULATE`` puts the simulated device in its place.
    """
    facts: Facts = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'facts'
        command = [sys.executable, '-X', 'faulthandler', '-c', _TELL, str(path)]
        paths = {**os.environ, 'PYTHONPATH': os.pathsep.join(p or os.getcwd() for p in sys.path), NAME: '0'}
        try:
            ran = subprocess.run(command, env=paths, capture_output=True, text=True, timeout=_PATIENCE)
            ended = _ended(ran.returncode, ran.stderr)
        except subprocess.TimeoutExpired:
            ended = f'it did not end in {_PATIENCE:g} s'
        lines = path.read_text().splitlines() if path.exists() else []
    facts.update(json.loads(line) for line in lines)
    if ended:
        stage = next((stage for stage, found in facts.items() if 'under way' in found), 'start')
        facts[stage] = {'error': ended}
        facts['crash'] = {'stage': stage, 'error': ended}
    for stage in _STAGES:
        facts.setdefault(stage, {'skipped': 'the process had ended before'})
    return facts


def _ended(status: int, said: str) -> str:
    """How a process ended, in words; '' if as it should."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if status < 0:
        return f'the process was killed by {signal.Signals(-status).name}: {" ".join(lines[:3])}'
    return f'the process ended with status {status}: {"".join(lines[-1:])}' if status else ''


def tell(path: str) -> None:
    """Gather the facts of :func:`ask` in this process, and write each stage as it begins and as it ends."""
    facts: Facts = {}
    with open(path, 'w') as file:
        for name, stage in _STAGES.items():
            print(json.dumps([name, {'under way': True}]), file=file, flush=True)
            try:
                facts[name] = stage(facts)
            except Exception as error:
                facts[name] = {'error': said_of(error)}
            print(json.dumps([name, facts[name]]), file=file, flush=True)


def said_of(error: BaseException) -> str:
    """An exception on one line, with what it came from and its notes."""
    came = error.__cause__
    notes = ''.join(f'; {note}' for note in getattr(error, '__notes__', ()))
    more = f' (from {said_of(came)})' if came is not None and str(came) not in str(error) else ''
    return ' '.join(f'{type(error).__name__}: {error}{notes}{more}'.split())


def _driver(_facts: Facts) -> dict[str, Any]:
    library = ctypes.CDLL('nvcuda.dll' if sys.platform == 'win32' else 'libcuda.so.1')
    version, count = ctypes.c_int(), ctypes.c_int()
    for call, argument in (
        (library.cuDriverGetVersion, ctypes.byref(version)),
        (library.cuInit, ctypes.c_uint(0)),
        (library.cuDeviceGetCount, ctypes.byref(count)),
    ):
        code = int(call(argument))
        if code:
            return {'version': version.value, 'gpus': 0, 'error': f'{call.__name__} says {code}'}
    return {'version': version.value, 'gpus': count.value}


def _cupy(_facts: Facts) -> dict[str, Any]:
    cupy = import_module('cupy')
    runtime = getattr(cupy.cuda.runtime, 'runtimeGetVersion', None)
    return {'version': str(cupy.__version__), 'runtime': None if runtime is None else int(runtime())}


def _bindings(_facts: Facts) -> dict[str, Any]:
    import_module('cuda.bindings.runtime')
    return {'version': str(import_module('cuda.bindings').__version__)}


def _gpu(facts: Facts) -> dict[str, Any]:
    if 'error' in facts['cupy']:
        return {'count': 0, 'skipped': 'without CuPy'}
    cupy = import_module('cupy')
    count = int(cupy.cuda.runtime.getDeviceCount())
    if not count:
        return {'count': 0}
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    compute = f'{properties["major"]}.{properties["minor"]}'
    memory = int(properties['totalGlobalMem'])
    return {'count': count, 'name': properties['name'].decode(), 'compute': compute, 'bytes': memory}


def _libraries(facts: Facts) -> dict[str, Any]:
    if 'error' in facts['cupy']:
        return {'skipped': 'without CuPy'}
    with watch():
        late = dict(GUARD.libraries.late)
    UNLOADING.hold(current()).release()
    return {'late': late, 'unable': dict(UNLOADING.unable)}


def _capture(facts: Facts) -> dict[str, Any]:
    """A capture with a fork and a join, launched twice; on the simulated device where there is no GPU."""
    if facts['gpu'].get('count'):
        return {'on': 'the GPU', **small_capture()}
    from capturekit.simulated import SimulatedDevice, install, uninstall

    install(SimulatedDevice())
    try:
        return {'on': 'the simulated device', **small_capture()}
    finally:
        uninstall()


def small_capture() -> dict[str, Any]:
    cupy = current().cupy
    x = cupy.arange(8.0)
    with capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                a = x * 2
            with right:
                b = x + 1
        y = a + b
    for step in (0, 1):
        x += step
        cap.graph.launch()
        cupy.cuda.get_current_stream().synchronize()
        if not cupy.array_equal(y, x * 3 + 1):
            return {'nodes': cap.recording.node_count, 'error': f'launch {step + 1} gave {y}, wanted {x * 3 + 1}'}
    return {'nodes': cap.recording.node_count}


_STAGES: dict[str, Callable[[Facts], dict[str, Any]]] = {
    'driver': _driver, 'cupy': _cupy, 'bindings': _bindings, 'gpu': _gpu, 'libraries': _libraries, 'capture': _capture,
}  # fmt: skip


# -- what they mean -------------------------------------------------------------------------------------------


def judge(facts: Facts) -> Iterator[Diagnosis]:
    """What the facts mean, line by line."""
    yield Diagnosis('Python', f'{facts["python"]["version"]}, {facts["python"]["system"]}')
    yield from _of_version(PYTHON, facts['python']['version'], facts)
    for feature in FEATURES:
        if numbers(facts['python']['version']) < feature.since:
            text = f'a feature of {dotted(feature.since)} is missing: {feature.what} {feature.before}'
            yield Diagnosis('Python', text, 'note')
    yield Diagnosis('NumPy', facts['installed'].get('numpy', 'of no distribution'))
    for stage, finder in _FINDERS.items():
        if 'skipped' not in facts[stage] or stage == 'gpu':
            yield from finder(facts)
    if 'crash' in facts:
        yield Diagnosis('crash', f'while looking at: {facts["crash"]["stage"]}: {facts["crash"]["error"]}', 'bad')


def _has_gpu(facts: Facts) -> bool:
    """Whether there is a GPU, for CuPy or for the driver alone."""
    return bool(facts['gpu'].get('count') or facts['driver'].get('gpus'))


def _of_driver(facts: Facts) -> Iterator[Diagnosis]:
    version, runtime = facts['driver'].get('version'), facts['cupy'].get('runtime')
    if not version:
        yield Diagnosis('driver', f'none: {facts["driver"].get("error", "it reports no version")}', 'note')
        return
    cuda = f'for CUDA {cuda_text(version)}'
    yield Diagnosis('driver', cuda)
    if runtime and version // 1000 < runtime // 1000:
        text = f'{cuda} is too old for the runtime, CUDA {cuda_text(runtime)}: update it, or install the CuPy made for'
        yield Diagnosis('driver', f'{text} CUDA {version // 1000}', 'bad')
    elif runtime and version < runtime:
        text = f'is older than the runtime, CUDA {cuda_text(runtime)}, of the same major version: what is'
        yield Diagnosis('driver', f'{text} newer in CUDA than the driver fails when it is used', 'note')
    if version not in {one.cuda for one in MEASURED}:
        tried = ', '.join(f'{one.driver} (CUDA {cuda_text(one.cuda)}, {one.device})' for one in MEASURED)
        text = f'the rules of captures were not measured on one {cuda}, only on {tried}'
        yield Diagnosis('driver', f'{text}; tests/gpu/measure_rules.py shows what differs', 'note')


def _of_gpu(facts: Facts) -> Iterator[Diagnosis]:
    driver, gpu = facts['driver'], facts['gpu']
    if gpu.get('count'):
        size = f'{gpu["bytes"] / 2**30:.0f} GiB, compute capability {gpu["compute"]}'
        more = '' if gpu['count'] == 1 else f'; {gpu["count"]} in all'
        yield Diagnosis('GPU', f'{gpu["name"]}, {size}{more}')
    elif driver.get('gpus'):
        yield Diagnosis('GPU', f'the driver has {driver["gpus"]}, and CuPy reaches none: {_why(gpu)}', 'bad')
    else:
        yield Diagnosis('GPU', f'none: {_why(driver if "skipped" in gpu else gpu)}', 'note')


def _why(found: dict[str, Any]) -> str:
    return str(found.get('error') or found.get('skipped') or 'none is counted')


def _of_version(known: Known, version: str, facts: Facts) -> Iterator[Diagnosis]:
    if known.too_old(version):
        needs = f'capturekit needs {dotted(known.least)} or newer (tried: {known}): {command(facts["installed"])}'
        yield Diagnosis(known.name, f'{version} is too old: {needs}', 'bad')
    elif known.newer(version):
        text = f'{version} is newer than what capturekit was tried with: {known}'
        yield Diagnosis(known.name, text, 'note')


def _of_cupy(facts: Facts) -> Iterator[Diagnosis]:
    cupy, found = facts['cupy'], facts['installed']
    sources = [name for name in found if name.startswith('cupy')]
    told = ', '.join(f'{name} {found[name]}' for name in sources) or 'of no distribution'
    if 'error' in cupy:
        level = 'bad' if sources or _has_gpu(facts) or not cupy['error'].startswith('ModuleNotFound') else 'note'
        hint = '' if sources else ": pip install 'capturekit[cuda13]' (or [cuda12])"
        yield Diagnosis('CuPy', f'can not be imported ({told}): {cupy["error"]}{hint}', level)
    else:
        runtime = f', CUDA runtime {cuda_text(cupy["runtime"])}' if cupy['runtime'] else ''
        yield Diagnosis('CuPy', f'{cupy["version"]} ({told}){runtime}')
        yield from _of_version(CUPY, cupy['version'], facts)
    if len(sources) > 1:
        yield Diagnosis('CuPy', f'more than one is installed, which overwrite each other: {told}: keep one', 'bad')
    if any(name.startswith('cupy-rocm') for name in sources):
        yield Diagnosis('CuPy', 'is made for ROCm: capturekit records CUDA graphs', 'bad')


def _of_bindings(facts: Facts) -> Iterator[Diagnosis]:
    bindings = facts['bindings']
    cupys = _cupy_cuda(facts)
    if 'error' in bindings:
        level = 'bad' if cupys or _has_gpu(facts) else 'note'
        hint = f"pip install 'capturekit[cuda{cupys or 13}]'"
        yield Diagnosis('cuda-bindings', f'can not be imported: {bindings["error"]}: {hint}', level)
        return
    yield Diagnosis('cuda-bindings', bindings['version'])
    yield from _of_version(BINDINGS, bindings['version'], facts)
    made_for = numbers(bindings['version'])[0]
    if cupys and made_for != cupys:
        text = f"is of CUDA {made_for} and CuPy of CUDA {cupys}: pip install 'capturekit[cuda{cupys}]'"
        yield Diagnosis('cuda-bindings', text, 'bad')


def _cupy_cuda(facts: Facts) -> int | None:
    """The major version of CUDA that CuPy is made for: by its runtime, or by its distribution's name."""
    runtime = facts['cupy'].get('runtime')
    if runtime:
        return int(runtime) // 1000
    found = [re.fullmatch(r'cupy-cuda(\d+)x', name) for name in facts['installed']]
    return next((int(match[1]) for match in found if match), None)


def _of_libraries(facts: Facts) -> Iterator[Diagnosis]:
    found = facts['libraries']
    level = 'bad' if facts['gpu'].get('count') else 'note'
    if 'error' in found:
        yield Diagnosis('libraries', found['error'], level)
        return
    able = [name for key, name in _LIBRARIES.items() if key not in found['late']]
    if able:
        yield Diagnosis('libraries', f'{", ".join(able)} can record')
    for key, reason in {**found['late'], **found['unable']}.items():
        text = f'{_LIBRARIES[key]} can not record' if key in _LIBRARIES else _LESS.get(key, key)
        yield Diagnosis('libraries', f'{text}: {reason}', level)


def _of_capture(facts: Facts) -> Iterator[Diagnosis]:
    found = facts['capture']
    if 'error' in found:
        yield Diagnosis('capture', found['error'], 'bad')
    else:
        nodes = counted(found['nodes'], 'node')
        yield Diagnosis('capture', f'{nodes} recorded and launched on {found["on"]}, with the right result')
    if facts['environment']['simulate']:
        use = f'scripts run on the simulated device, because {NAME}=1 is set; {NAME}=0 lets them use a GPU'
        yield Diagnosis('run', use, 'note')
    elif facts['gpu'].get('count'):
        use = '`run` uses the GPU; the simulated device is for `run --simulate` and for tests'
        yield Diagnosis('run', use)
    else:
        use = 'scripts run on the simulated device: the rules are the same, NumPy computes, and times mean nothing'
        yield Diagnosis('run', use, 'note')


_FINDERS: dict[str, Callable[[Facts], Iterator[Diagnosis]]] = {
    'driver': _of_driver, 'gpu': _of_gpu, 'cupy': _of_cupy, 'bindings': _of_bindings,
    'libraries': _of_libraries, 'capture': _of_capture,
}  # fmt: skip


def cuda_text(version: int) -> str:
    return f'{version // 1000}.{version % 1000 // 10}'


# -- the command ----------------------------------------------------------------------------------------------

_DESCRIPTION = """\
Look at this machine: GPU, driver, CuPy, cuda-bindings, Python; versions that do not fit together; whether CuPy's
libraries can be recorded. A small capture is made and launched, in a process of its own: on the GPU, or where there is
none on the simulated device. The last line is the verdict; the exit status is 0 if it is good and 1 if not.
"""


def add(commands: Any) -> None:
    """Add ``doctor`` to the commands."""
    told = 'say what this machine can do, and what does not fit together'
    parser = commands.add_parser('doctor', help=told, description=_DESCRIPTION)
    facts = 'print JSON: the verdict, the findings and the facts behind them'
    parser.add_argument('--json', action='store_true', help=facts)
    parser.set_defaults(go=_go)


def _go(given: argparse.Namespace) -> int:
    report = examine()
    print(json.dumps(report.to_json(), indent=1) if given.json else report)
    return 0 if report.good else 1

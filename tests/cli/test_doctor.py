"""``capturekit doctor``: what does not fit together is said, with reasons; nothing needs CuPy, nothing kills it."""

from __future__ import annotations

import copy
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from capturekit.cli import doctor
from capturekit.model.versions import CUPY
from tests.command import ROOT, started
from tests.test_import import BLOCK

#: A machine on which all is well.
GOOD: doctor.Facts = {
    'python': {'version': '3.12.1', 'system': 'Linux x86_64'},
    'installed': {'cuda-bindings': '13.3.1', 'cupy-cuda13x': '14.2.0', 'numpy': '2.5.5'},
    'driver': {'version': 13000, 'gpus': 1},
    'cupy': {'version': '14.2.0', 'runtime': 13000},
    'bindings': {'version': '13.3.1'},
    'gpu': {'count': 1, 'name': 'NVIDIA H200', 'compute': '9.0', 'bytes': 150 << 30},
    'libraries': {'late': {}, 'unable': {}},
    'capture': {'nodes': 3, 'on': 'the GPU'},
    'environment': {'simulate': False},
}
NO_GPU = {'driver': {'error': 'OSError: libcuda.so.1'}, 'gpu': {'count': 0}, 'capture': {'nodes': 3, 'on': 'the sim'}}


NO_CUPY = {'error': "ModuleNotFoundError: No module named 'cupy'"}
#: What CuPy is, where the runtimes of CuPy and of cuda-bindings are of two versions of CUDA.
OF_TWO = "is of CUDA 13 and CuPy of CUDA 12: pip install 'capturekit[cuda12]'"


def named(installed: dict[str, str]) -> dict[str, str]:
    return {name.replace('_', '-'): version for name, version in installed.items()}


def cupy(runtime: int | None, version: str = '14.2.0', **installed: str) -> doctor.Facts:
    """CuPy of a version, for a runtime, and the distributions that are installed if these are others."""
    facts: doctor.Facts = {'cupy': {'version': version, 'runtime': runtime}}
    return facts | {'installed': named(installed)} if installed else facts


def bindings(version: str) -> doctor.Facts:
    return {'bindings': {'version': version}}


def driver(version: int) -> doctor.Facts:
    return {'driver': {'version': version, 'gpus': 1}}


def judged(**changes: Any) -> doctor.DoctorReport:
    facts = copy.deepcopy(GOOD)
    facts.update(changes)
    return doctor.DoctorReport(facts)


def about(report: doctor.DoctorReport, level: str) -> list[str]:
    return [f'{finding.about}: {finding.text}' for finding in report.findings if finding.level == level]


# -- what the facts mean --------------------------------------------------------------------------------------


def test_a_good_machine() -> None:
    report = judged()
    assert report.good
    assert about(report, 'bad') == about(report, 'note') == []
    assert str(report).splitlines()[-1] == 'verdict: good: captures are recorded and launched on the GPU'
    assert '150 GiB, compute capability 9.0' in str(report)
    assert 'cuBLAS, cuSOLVER, cuRAND, cuSPARSE can record' in str(report)


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        (cupy(12090, cupy_cuda12x='14.2.0'), f'cuda-bindings: {OF_TWO}'),
        (cupy(None, cupy_cuda12x='14.2.0'), f'cuda-bindings: {OF_TWO}'),
        (cupy(12090) | bindings('12.6.0'), 'cuda-bindings: 12.6.0 is too old: capturekit needs 12.8 or newer'),
        ({'bindings': {'error': 'ModuleNotFoundError: no cuda'}}, 'cuda-bindings: can not be imported: ModuleNotFound'),
        (cupy(13000, '13.6.0'), 'CuPy: 13.6.0 is too old: capturekit needs 14 or newer'),
        (cupy(13000, cupy='14.0.0', cupy_cuda13x='14.2.0'), 'CuPy: more than one is installed, which overwrite each '),
        (cupy(13000, cupy_rocm_7_0='14.0.0'), 'CuPy: is made for ROCm'),
        ({'cupy': NO_CUPY, 'installed': {}}, 'CuPy: can not be imported (of no distribution): ModuleNotFoundError'),
        (driver(12080), 'driver: for CUDA 12.8 is too old for the runtime, CUDA 13.0: update it, or install the CuPy '),
        ({'gpu': {'error': 'Insufficient'}}, 'GPU: the driver has 1, and CuPy reaches none: Insufficient'),
        ({'libraries': {'late': {'cublas': 'loaded'}, 'unable': {}}}, 'libraries: cuBLAS can not record: loaded'),
        ({'libraries': {'late': {}, 'unable': {'plans': 'no libcufft'}}}, 'libraries: plans of cuFFT that CuPy drops'),
        ({'libraries': {'error': 'OSError: no'}}, 'libraries: OSError: no'),
        ({'capture': {'error': 'HostReadError: ...'}}, 'capture: HostReadError: ...'),
        ({'crash': {'stage': 'capture', 'error': 'killed'}}, 'crash: while looking at: capture: killed'),
        (
            cupy(12090, '13.6.0', cuda_bindings='12.9.0', cupy_cuda12x='13.6.0') | bindings('12.9.0'),
            f"CuPy: 13.6.0 is too old: capturekit needs 14 or newer (tried: {CUPY}): pip install 'capturekit[cuda12]'",
        ),
    ],
)
def test_what_does_not_fit_is_bad(changes: dict[str, Any], said: str) -> None:
    report = judged(**changes)
    assert not report.good
    bad = about(report, 'bad')
    assert any(text.startswith(said) for text in bad), bad
    assert report.verdict.startswith(f'not good: {bad[0].partition(":")[0]}')
    assert '\n' not in report.verdict
    assert str(report).count('\n! ') == len(bad) and max(map(len, str(report).splitlines()[:-1])) <= 100


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        (cupy(13020), 'driver: is older than the runtime, CUDA 13.2, of'),
        (
            driver(12090) | cupy(12090) | bindings('12.9.0'),
            'driver: the rules of captures were not measured on one for CUDA 12.9, only on 580.159.04 (CUDA 13.0, ',
        ),
        (
            NO_GPU | {'libraries': {'late': {'cublas': 'no libcublas.so'}, 'unable': {}}},
            'libraries: cuBLAS can not record: no libcublas.so',
        ),
        (cupy(13000, '15.0.0'), 'CuPy: 15.0.0 is newer than what'),
        (bindings('13.6.1'), 'cuda-bindings: 13.6.1 is newer than what'),
        ({'python': {'version': '3.15.0', 'system': 'Linux'}}, 'Python: 3.15.0 is newer than what'),
    ],
)
def test_what_may_do_is_a_note(changes: dict[str, Any], said: str) -> None:
    report = judged(**changes)
    assert report.good and [text for text in about(report, 'note') if text.startswith(said)], str(report)


def test_without_cupy_and_gpu_all_is_good() -> None:
    skipped = {'skipped': 'without CuPy'}
    absent = {'cupy': NO_CUPY, 'bindings': {'error': "ModuleNotFoundError: No module named 'cuda'"}}
    changes = {**NO_GPU, **absent, 'gpu': {'count': 0, **skipped}, 'libraries': skipped}
    report = judged(installed={'numpy': '2.5.5'}, **changes)
    assert report.good, str(report)
    assert 'GPU           none: OSError: libcuda.so.1' in str(report)
    assert report.verdict == 'good, without a GPU: captures are recorded and launched on the simulated device'


def test_a_gpu_that_the_environment_keeps_scripts_from() -> None:
    report = judged(environment={'simulate': True})
    assert report.good and report.verdict.endswith('on the GPU, which CAPTUREKIT_SIMULATE=1 keeps scripts from')
    (said,) = about(report, 'note')
    assert said.startswith('run: scripts run on the simulated device, because CAPTUREKIT_SIMULATE=1 is set; ')


def test_reasons_come_with_what_they_came_from() -> None:
    error = ImportError('CuPy is not correctly installed')
    error.__cause__ = OSError('libnvrtc.so.13:\nno such file')
    error.__notes__ = ['install it again']
    said = doctor.said_of(error)
    assert said == (
        'ImportError: CuPy is not correctly installed; install it again (from OSError: libnvrtc.so.13: no such file)'
    )


# -- gathering ------------------------------------------------------------------------------------------------


def test_a_wrong_result_is_told(sim: Any) -> None:
    assert doctor.small_capture() == {'nodes': 3}
    sim.__capturekit_simulated__.graph_launch = lambda *args: None
    assert 'launch 1 gave' in doctor.small_capture()['error']


# -- the whole ------------------------------------------------------------------------------------------------

#: Hides what this machine has, in the doctor's process and in the one that it starts.
HIDING = """
import ctypes, importlib.metadata, types
importlib.metadata.distributions = lambda: [
    types.SimpleNamespace(metadata={{'Name': name}}, version=version) for name, version in {installed!r}.items()
]
def _load(cls, name, *args, _real=ctypes.CDLL.__new__, **kwargs):
    if name == 'libcuda.so.1':
        raise OSError('no driver here')
    return _real(cls)
ctypes.CDLL.__new__ = _load
"""
CUPY = """
class cuda:
    class runtime:
        def getDeviceCount(): return 0
        def runtimeGetVersion(): return {runtime}
__version__ = {version!r}
"""


def run(tmp_path: Path, *args: str, cupy: str = '', bindings: str = '', **installed: str) -> Any:
    """The doctor on a machine without a driver, with these modules: their code, or none."""
    blocked = tuple(name for name, code in {'cupy': cupy, 'cuda': bindings}.items() if not code)
    (tmp_path / 'sitecustomize.py').write_text(
        BLOCK.format(blocked=blocked) + HIDING.format(installed=named(installed))
    )
    if cupy:
        (tmp_path / 'cupy.py').write_text(cupy)
    if bindings:
        package = tmp_path / 'cuda' / 'bindings'
        package.mkdir(parents=True)
        (tmp_path / 'cuda' / '__init__.py').touch()
        (package / '__init__.py').write_text(bindings)
        (package / 'runtime.py').touch()
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    return started('doctor', *args, cwd=tmp_path, PYTHONPATH=paths)


def test_versions_that_do_not_fit(tmp_path: Path) -> None:
    cupy = CUPY.format(runtime=12090, version='13.6.0')
    ran = run(tmp_path, cupy=cupy, bindings='__version__ = "13.3.1"', cupy_cuda12x='13.6.0', cuda_bindings='13.3.1')
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert '! CuPy          13.6.0 is too old: capturekit needs 14 or newer' in ran.stdout
    assert "! cuda-bindings is of CUDA 13 and CuPy of CUDA 12: pip install 'capturekit[cuda12]'" in ran.stdout
    assert '- GPU           none: none is counted' in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith('verdict: not good: CuPy: 13.6.0 is too old')


def test_as_json_and_the_simulated_device_is_not_taken_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('CAPTUREKIT_SIMULATE', '1')
    ran = run(tmp_path, '--json', numpy='2.5.5')
    said = json.loads(ran.stdout)
    assert said['good'] is (ran.returncode == 0) is True and ran.stderr == ''
    assert said['verdict'].startswith('good, without a GPU')
    found = '\n'.join(f'{finding["about"]} {finding["text"]}' for finding in said['findings'])
    assert f'CuPy can not be imported (of no distribution): {NO_CUPY["error"]}' in found
    assert 'because CAPTUREKIT_SIMULATE=1 is set' in found
    assert said['facts']['capture'] == {'on': 'the simulated device', 'nodes': 3}
    assert {finding['level'] for finding in said['findings']} == {'good', 'note'}


def test_a_crash_is_told(tmp_path: Path) -> None:
    ran = run(tmp_path, cupy='import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)')
    assert ran.returncode == 1, ran.stderr
    assert f'the process was killed by {signal.SIGSEGV.name}' in ' '.join(ran.stdout.split())
    assert '! crash         while looking at: cupy:' in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith('verdict: not good: CuPy: can not be imported')


@pytest.mark.parametrize(
    ('name', 'value', 'said'),
    [
        ('_PATIENCE', 0.01, 'it did not end in 0.01 s'),
        ('_TELL', 'raise SystemExit("nothing works")', 'the process ended with status 1: nothing works'),
    ],
)
def test_a_process_that_does_not_end_or_begin_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, said: str
) -> None:
    monkeypatch.setattr(doctor, name, value)
    here = {'python': GOOD['python'], 'installed': {}, 'environment': GOOD['environment']}
    report = doctor.DoctorReport({**here, **doctor.ask()})
    assert about(report, 'bad') == [f'crash: while looking at: start: {said}'] and report.verdict.endswith(said)


@pytest.mark.gpu
def test_with_a_gpu() -> None:
    report = doctor.examine()
    assert report.good, str(report)
    assert report.facts['capture'] == {'on': 'the GPU', 'nodes': 3}
    assert report.facts['libraries'] == {'late': {}, 'unable': {}}

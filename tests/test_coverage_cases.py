"""The cases of tests/gpu/coverage, as far as they can be judged without a GPU, and what came of them on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.coverage import cases

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / 'tests' / 'gpu' / 'coverage' / 'results.json'


def test_committed_results_have_each_case() -> None:
    assert {row['label'] for row in json.loads(RESULTS.read_text())['rows']} >= cases.ALL.keys()


#: Prints, as JSON, what a strict capture of each case comes to that the simulated CuPy can run eagerly.
SIMULATED = r"""
import importlib, json, sys, types, warnings
warnings.simplefilter('ignore')
from capturekit.simulated import install
install()
import capturekit as ck
import cupyx

cupyx.GeneralizedUFunc = lambda *args: None
for name in json.load(sys.stdin):  # modules that it has not, which some helpers name
    try:
        importlib.import_module(name)
    except ImportError:
        parent, _, last = name.rpartition('.')
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__, sys.modules[name].cdist = [], None
        setattr(sys.modules[parent], last, sys.modules[name])
from tests.gpu.coverage import cases

found = {}
for label, expression in cases.ALL.items():
    try:
        fn = eval('lambda: ' + expression, cases.namespace(expression))
        fn()
    except (AttributeError, ImportError, NotImplementedError, TypeError, ValueError):
        continue  # not there
    try:
        with ck.capture():
            fn()
        found[label] = 'equal'
    except ck.CaptureError:
        found[label] = 'refused'
print(json.dumps(found))
"""
MISSING = [
    f'cupyx.{name}' for name in ('linalg', 'signal', *(f'scipy.{part}' for part in (
        'fft', 'interpolate', 'linalg', 'ndimage', 'signal', 'signal.windows', 'sparse.linalg', 'spatial',
        'spatial.distance', 'special', 'stats',
    )))
]  # fmt: skip
#: Cases that come to something else on a GPU, and why.
ONLY_ON_A_GPU = {'own pool': 'the pool has gone when the graph is launched, which this does not try'}


def test_the_simulated_cupy_refuses_what_a_gpu_refused() -> None:
    ran = subprocess.run(
        [sys.executable, '-c', SIMULATED], cwd=ROOT, input=json.dumps(MISSING), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    rows = json.loads(RESULTS.read_text())['rows']
    on_a_gpu = {
        row['label']: row['outcome'] for row in rows if (row['column'], row['temperature']) == ('strict', 'warm')
    }
    assert len(found) > 300
    differing = {label for label, came in found.items() if (came == 'equal') != (on_a_gpu[label] == 'equal')}
    assert differing == ONLY_ON_A_GPU.keys()

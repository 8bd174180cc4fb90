"""Which versions work, as tests/versions.json has them, and what is said of others."""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from capturekit.guard import GUARD
from capturekit.guard.entry_points import ENTRIES, Entry
from capturekit.guard.patching import Installation
from capturekit.model.versions import BINDINGS, CUPY, FEATURES, PYTHON, Known, dotted, numbers
from tests.cli.test_doctor import about, judged
from tests.test_import import ROOT, python


@pytest.mark.parametrize(
    ('known', 'version', 'verdict'),
    [
        (CUPY, '13.6.0', 'old'), (CUPY, '14.0.0', ''), (CUPY, '14.0.0rc1', ''), (CUPY, '14.2.7', ''),
        (CUPY, '14.3.0', 'newer'), (CUPY, '15.0.0a1', 'newer'),
        (BINDINGS, '11.8.7', 'old'), (BINDINGS, '12.6.2', 'old'), (BINDINGS, '12.8.0', ''), (BINDINGS, '12.9.10', ''),
        (BINDINGS, '12.10.0', 'newer'), (BINDINGS, '13.0.0', ''), (BINDINGS, '13.6.0', 'newer'),
        (BINDINGS, '14.0.0', 'newer'),
        (PYTHON, '3.10.13', 'old'), (PYTHON, '3.11.0', ''), (PYTHON, '3.14.9', ''), (PYTHON, '3.15.0', 'newer'),
    ],
)  # fmt: skip
def test_verdicts(known: Known, version: str, verdict: str) -> None:
    assert known.too_old(version) == (verdict == 'old')
    assert known.newer(version) == (verdict == 'newer')


def test_what_is_supported_is_what_was_tried() -> None:
    rows = json.loads((ROOT / 'tests' / 'versions.json').read_text())['cupy']
    for known, name in ((PYTHON, 'python'), (CUPY, 'cupy'), (BINDINGS, 'cuda-bindings')):
        tried = sorted({numbers(row[name]) for row in rows})
        assert dotted((*known.least, 0)[:2]) == dotted(tried[0]), known
        last = tuple(max(one for one in tried if one[0] == major) for major in sorted({one[0] for one in tried}))
        assert known.tried == last, known
    assert str(BINDINGS) == '12.8 to 12.9, 13.0 to 13.5'
    assert str(CUPY) == '14.0 to 14.2'


def test_setup_cfg_has_the_same_bounds() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / 'setup.cfg')
    assert config['options']['python_requires'] == f'>={dotted(PYTHON.least)}'
    extras = config['options.extras_require']
    for major, _minor in BINDINGS.tried:
        least = dotted(BINDINGS.least) if major == BINDINGS.least[0] else str(major)
        wanted = [f'cupy-cuda{major}x>={dotted(CUPY.least)}', f'cuda-bindings>={least},<{major + 1}']
        assert extras[f'cuda{major}'].split() == wanted
    assert {name for name in extras if name.startswith('cuda')} == {f'cuda{major}' for major, _minor in BINDINGS.tried}
    assert f'python_version = {dotted(PYTHON.least)}' in (ROOT / 'setup.cfg').read_text()


# -- what is said of others -----------------------------------------------------------------------------------

CUPY_OF = 'import types; sys.modules["cupy"] = m = types.ModuleType("cupy"); m.__version__ = {!r}\n'
BINDINGS_OF = """
import types
for name in ('cuda', 'cuda.bindings', 'cuda.bindings.runtime'):
    sys.modules[name] = types.ModuleType(name)
sys.modules['cuda.bindings'].__version__ = {!r}
sys.modules['cuda.bindings'].runtime = sys.modules['cuda.bindings.runtime']
"""
INSTALLED = """
import importlib.metadata, types
importlib.metadata.distributions = lambda: [
    types.SimpleNamespace(metadata={{'Name': name}}, version=version) for name, version in {!r}.items()
]
"""


ENTER = """
import capturekit as ck
try:
    ck.capture().__enter__()
except ImportError as error:
    print(error)
"""
NEEDS = 'capturekit needs CuPy 14 or newer (tried: 14.0 to 14.2), and this is 13.6.0: '
OLD = f'capturekit needs cuda-bindings 12.8 or newer (tried: {BINDINGS}), and this is '
#: The version of CuPy, that of cuda-bindings, what is installed, and what entering a capture says.
OTHERS: list[tuple[str, str, dict[str, str], str]] = [
    ('13.6.0', '12.9.0', {'cupy-cuda12x': '13.6.0'}, f"{NEEDS}pip install 'capturekit[cuda12]'"),
    ('13.6.0', '13.0.0', {'cupy-cuda13x': '13.6.0'}, f"{NEEDS}pip install 'capturekit[cuda13]'"),
    # two CuPys are never advised
    ('13.6.0', '12.9.0', {'cupy-cuda11x': '13.6.0'},
     f"{NEEDS}pip uninstall cupy-cuda11x; pip install 'capturekit[cuda13]' (or [cuda12])"),
    ('13.6.0', '12.9.0', {'cupy': '13.6.0'},
     f"{NEEDS}pip install -U 'cupy>=14' (and cuda-bindings of the CUDA that it is built for)"),
    ('13.6.0', '12.9.0', {'cupy': '13.6.0', 'cupy-cuda12x': '14.0.0'},
     f"{NEEDS}pip uninstall cupy; pip install 'capturekit[cuda12]'"),
    ('14.2.0', '11.8.7', {'cupy-cuda12x': '14.2.0', 'cuda-bindings': '11.8.7'},
     f"{OLD}11.8.7: pip install 'capturekit[cuda12]'"),
    ('14.2.0', '12.6.2', {'cupy-cuda12x': '14.2.0', 'cuda-bindings': '12.6.2'},
     f"{OLD}12.6.2: pip install 'capturekit[cuda12]'"),
]  # fmt: skip


def test_others_are_told_what_to_install() -> None:
    """One after the other in one process: what was refused is not kept."""
    code = ''.join(
        f'{CUPY_OF.format(cupy)}{BINDINGS_OF.format(bindings)}{INSTALLED.format(installed)}{ENTER}'
        for cupy, bindings, installed, _said in OTHERS
    )
    assert python(f'import sys\n{code}').splitlines() == [said for *_installed, said in OTHERS]


def test_an_old_python() -> None:
    """As real ones were asked for the page; here a new one that says that it is old."""
    code = (
        'import sys\nsys.version_info = (3, 10, 13, "final", 0)\n'
        'try:\n    import capturekit\nexcept ImportError as error:\n    print(error)\n'
        'print("numpy" in sys.modules)'
    )
    ran = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    command = "python3.14 -m venv .venv && .venv/bin/pip install 'capturekit[cuda13]'"
    needs = 'capturekit needs Python 3.11 or newer (tried: 3.11 to 3.14), and this is 3.10.13'
    assert ran.stdout.splitlines() == [f'{needs}: {command}', 'False'], ran.stderr


def test_an_old_python_reads_the_files_that_tell_it() -> None:
    import ast

    for name in ('__init__', 'model/__init__', 'model/versions'):
        ast.parse((ROOT / 'capturekit' / f'{name}.py').read_text(), feature_version=(3, 7))
    body = ast.parse((ROOT / 'capturekit' / '__init__.py').read_text()).body
    first = next(node for node in body if isinstance(node, (ast.Import, ast.ImportFrom)))
    assert isinstance(first, ast.ImportFrom) and [one.name for one in first.names] == ['versions']


def test_a_newer_cupy_that_lacks_something(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, '__version__', '15.0.0')
    monkeypatch.setattr(importlib.metadata, 'distributions', lambda: [distribution('cupy-cuda13x', '15.0.0')])
    monkeypatch.setattr(
        'capturekit.guard.patching.ENTRIES', (*ENTRIES, Entry('cupy.cuda.stream.Event', 'wait', 'waits.event_wait'))
    )
    with pytest.raises(ImportError) as raised:
        Installation().install(GUARD)
    assert str(raised.value) == (
        'CuPy 15.0.0 lacks cupy.cuda.stream.Event.wait: capturekit works with CuPy 14.0 to 14.2 and was not tried with '
        "this one, which is newer than 14.2: pip install 'cupy-cuda13x==14.2.*'"
    )
    assert isinstance(raised.value.__cause__, AttributeError)


def distribution(name: str, version: str) -> Any:
    return SimpleNamespace(metadata={'Name': name}, version=version)


@pytest.mark.parametrize('version', ['3.11.7', '3.12.0', '3.13.0', dotted(tuple(sys.version_info[:3]))])
def test_the_doctor_says_what_this_python_lacks(version: str) -> None:
    report = judged(python={'version': version, 'system': 'Linux'})
    lacking = [text for text in about(report, 'note') if text.startswith('Python: a feature of ')]
    assert len(lacking) == sum(numbers(version) < one.since for one in FEATURES)
    for one in FEATURES:
        said = f'Python: a feature of {dotted(one.since)} is missing: {one.what} {one.before}'
        assert (said in lacking) == (numbers(version) < one.since)
    assert report.good


def test_each_feature_is_later_than_the_least_python() -> None:
    assert FEATURES
    for one in FEATURES:
        assert PYTHON.least < one.since <= PYTHON.tried[-1]

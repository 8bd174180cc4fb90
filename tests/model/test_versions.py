"""Which versions work: the page is what was found, what was found is so here, and other versions are told so.

``python -m tests.versions`` makes the page anew.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capturekit.cli import doctor
from capturekit.guard import GUARD
from capturekit.guard.entry_points import ENTRIES, Entry
from capturekit.guard.patching import Installation
from capturekit.guard.signatures import signature_of
from capturekit.model.versions import BINDINGS, CUPY, FEATURES, PYTHON, Known, dotted, numbers
from tests.cli.test_doctor import about, judged
from tests.test_import import BLOCK, ROOT, first_capture
from tests.versions import probe
from tests.versions.matrix import INSIDE, OUTSIDE, PYTHONS, TESTS, counted
from tests.versions.table import COLUMNS, PAGE, load, page, wrong

DATA = load()
ROWS: list[dict[str, Any]] = DATA['rows']


def of_row(row: dict[str, Any]) -> tuple[str, str, str]:
    """Python, CuPy and cuda-bindings, without CuPy's distribution."""
    found = row['environment']
    return found['python'], found['cupy'].rpartition(' ')[2], found['cuda-bindings']


# -- the page -------------------------------------------------------------------------------------------------


def test_the_page_is_what_was_found() -> None:
    assert PAGE.read_text() == page(DATA)


def test_all_environments_are_there() -> None:
    assert len(ROWS) == len(INSIDE) >= 8
    assert [one['wanted'] for one in DATA['outside']] == [str(wanted) for wanted in OUTSIDE]
    for wanted, row in zip(INSIDE, ROWS):
        python, cupy, bindings = of_row(row)
        assert python == wanted.python
        installed = {row['environment']['cupy'].partition(' ')[0]: cupy, 'cuda-bindings': bindings}
        for package in wanted.packages:
            name, pinned, version = package.partition('==')
            if pinned and name in installed:
                assert installed[name].startswith(version.rstrip('*')), package
    pythons, cupys, bindings_ = (set(column) for column in zip(*map(of_row, ROWS)))
    assert pythons == set(PYTHONS)
    assert {numbers(one) for one in cupys} == {(14, 0), (14, 1), (14, 2)}
    assert {numbers(one)[0] for one in bindings_} == {12, 13}
    distributions = {(numbers(of_row(row)[1]), row['environment']['cupy'].partition(' ')[0]) for row in ROWS}
    assert len(distributions) == 6, 'each CuPy for both CUDAs'


@pytest.mark.parametrize('row', ROWS, ids=lambda row: '-'.join(of_row(row)))
def test_each_cell_counts_something(row: dict[str, Any]) -> None:
    for head, _says, cell in COLUMNS:
        counts = [int(number) for number in re.findall(r'\d+', cell(row))]
        assert counts and all(counts), (head, cell(row))
    assert row['names']['there'] == row['replaced']['count'], 'what can be imported here is what is replaced'
    assert row['verbs']['reached'] > 40 and row['verbs']['functions'] > 30 and row['verbs']['driver']
    assert row['signatures']['agreeing'] > 100
    assert row['tests']['passed'] > 150
    assert all(re.fullmatch(r'[\w/]+', name) for name in TESTS)


@pytest.mark.parametrize('row', ROWS, ids=lambda row: '-'.join(of_row(row)))
def test_what_is_needed_holds_everywhere(row: dict[str, Any]) -> None:
    assert wrong(row) == [what for what in wrong(row) if what.endswith('which is then not listened to')]
    optional = {str(entry) for entry in ENTRIES if entry.optional or entry.also}
    assert set(row['names']['absent']) <= optional


def test_every_python_has_run_the_whole_suite() -> None:
    suites = DATA['suites']
    assert [dotted(numbers(one['python'])) for one in suites] == list(PYTHONS)
    assert (PYTHONS[0], PYTHONS[-1]) == (dotted(PYTHON.least), dotted(PYTHON.tried[-1]))
    for one in suites:
        assert one['failed'] == 0 and one['failures'] == [], one
        assert one['passed'] > 3_000, 'the whole suite, not a part of it'


def test_what_pytest_says_is_counted() -> None:
    said = 'FAILED tests/test_a.py::test_x - no\nERROR tests/test_b.py::test_y\n'
    said += '2 failed, 30 passed, 4 skipped, 1 error in 5s'
    failures = ['test_a.py::test_x', 'test_b.py::test_y']
    assert counted(said) == {'passed': 30, 'failed': 3, 'skipped': 4, 'failures': failures}
    with pytest.raises(RuntimeError, match='no test ran'):
        counted('no tests ran in 0.1s')


def test_what_does_not_hold_is_on_the_page() -> None:
    row = json.loads(json.dumps(ROWS[0]))
    row['names'] |= {'there': 5, 'written': 2, 'absent': ['cupy.a'], 'missing': {'cupy.b': 'no b'}}
    row['replaced'] = {'count': 4, 'wrong': ['cupy.c']}
    row['signatures'] |= {'wrong': {'cupy.d': '(x): got an unexpected keyword'}}
    row['used'] |= {'missing': {'cupy.e': ['graph.py']}}
    row['seams'] = {'it is so': '', 'it is as ever': 'AssertionError: it is not'}
    row['verbs'] |= {'wrong': {'graph_edges': 'TypeError: too many'}}
    row['tests'] = {'passed': 3, 'failed': 1, 'skipped': 0, 'failures': ['test_x.py::test_y']}
    told = page({**DATA, 'rows': [*ROWS[1:], row]})
    for line in (
        'CuPy has no `cupy.a`, which is then not listened to: ', 'CuPy has no `cupy.b`, which capturekit needs: ',
        '`cupy.c` can not be replaced', '`cupy.d` is called otherwise: (x): got', 'CuPy has no `cupy.e`, which ',
        'not so: it is as ever: AssertionError: it is not', '`graph_edges` of the device fails: TypeError: too many',
        'a test fails: `test_x.py::test_y`', '| 5 + 2 of 9 | 4 of 5 |', '| 1 of 2 |', '| 3 of 4 |',
    ):  # fmt: skip
        assert line in told, line


# -- what is so here ------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def here() -> dict[str, Any]:
    if why := probe.why_not():
        pytest.skip(why)
    ran = subprocess.run([sys.executable, '-m', 'tests.versions.probe'], cwd=ROOT, capture_output=True, text=True)
    last = ran.stderr.strip().rpartition('\n')[2]
    if re.match(r"ModuleNotFoundError: No module named '(cupy|cuda)", last):
        pytest.skip(f'the real ones are not installed: {last}')
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.slow
def test_this_environment_is_as_its_row_says(here: dict[str, Any]) -> None:
    """What does not hold is the same; what holds may have become more since the page was made."""
    rows = [row for row in ROWS if of_row(row) == of_row(here)]
    if not rows:
        pytest.skip(f'{", ".join(of_row(here))} is no row of docs/evidence/versions.md')
    here['tests'] = rows[0]['tests']
    assert wrong(here) == wrong(rows[0])
    assert here['signatures']['untold'] == rows[0]['signatures']['untold']
    assert here['seams'].keys() >= rows[0]['seams'].keys()
    assert {*here['verbs']['driver']} >= {*rows[0]['verbs']['driver']}
    for part, count in (
        ('names', 'there'), ('names', 'written'), ('replaced', 'count'), ('signatures', 'agreeing'), ('used', 'there'),
        ('verbs', 'reached'), ('verbs', 'functions'),
    ):  # fmt: skip
        assert here[part][count] >= rows[0][part][count], (part, 'make the page anew: python -m tests.versions')


@pytest.mark.slow
def test_nothing_is_wrong_here(here: dict[str, Any]) -> None:
    """Also in an environment that is no row: a newer CuPy, say."""
    here = {**here, 'tests': {'failures': []}}
    assert [what for what in wrong(here) if not what.endswith('which is then not listened to')] == []


# -- the probe sees what is wrong -----------------------------------------------------------------------------


def test_names_that_are_not_there_are_seen(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = (Entry('cupy.cuda.stream.Event', 'gone', 'x'), Entry('cupy.ndarray', 'extra', 'x', optional=True))
    monkeypatch.setattr(doctor, 'ENTRIES', (*ENTRIES, *gone))
    found = probe.names()
    assert list(found['missing']) == ['cupy.cuda.stream.Event.gone']
    assert 'cupy.ndarray.extra' in found['absent']


def test_parameters_that_the_guard_does_not_take_are_seen() -> None:
    def function(self: Any, stream: int, flags: int = 0) -> None: ...

    def good(original: Any, this: Any, ptr: int, flags: int = 0) -> None: ...

    def narrow(original: Any, this: Any, stream: int) -> None: ...

    def demanding(original: Any, this: Any, stream: int, flags: int) -> None: ...

    told = signature_of(function)
    assert told is not None
    assert probe.refused(good, function, told, (function,), False) == ''
    assert 'too many' in probe.refused(narrow, function, told, (function,), False)
    assert "'flags'" in probe.refused(demanding, function, told, (function,), False)


def test_names_spelled_out_in_the_code_are_found() -> None:
    found = probe.spelled_out()
    assert {'cuda.MemoryPool', 'cuda.runtime.graphLaunch', 'RawKernel'} <= found.keys()
    assert found['cuda.runtime.graphLaunch'] == {'cuda.py'}


def test_calls_that_cuda_bindings_do_not_take_are_seen() -> None:
    def cudaGood(s: int) -> tuple[int, None, None, None]:
        """Good.

        Returns
        -------
        cudaError_t
            The code.
        from : int
            Of several.
        to : int
            To several.
        numEdges : int
            How many there are.
        """
        return 35, None, None, None

    def cudaOld(s: int) -> Any:
        """Old.

        Returns
        -------
        cudaError_t
            :py:obj:`~.cudaSuccess`
        free : int
            Free bytes

        See Also
        --------
        nothing
        """
        raise RuntimeError('Failed to dlopen libcuda.so.1')

    def cudaBroken(s: int) -> Any:
        """Broken.

        Returns
        -------
        cudaError_t
        """
        raise RuntimeError('something else')

    played = probe.Played(SimpleNamespace(cudaGood=cudaGood, cudaOld=cudaOld, cudaBroken=cudaBroken, Type=int))
    assert played.cudaGood(1) == (0, 1, 2, 5)
    assert played.cudaOld(1) == (0, 1)
    cudaGood.__doc__ = cudaOld.__doc__
    with pytest.raises(LookupError, match='answers 4 values and tells of 2: cudaError_t, free'):
        played.cudaGood(1)
    cudaGood.__doc__ = 'Nothing is told.'
    with pytest.raises(LookupError, match='does not tell'):
        played.cudaGood(1)
    assert played.Type is int
    with pytest.raises(RuntimeError, match='something else'):
        played.cudaBroken(1)
    with pytest.raises(TypeError):
        played.cudaOld(1, 2)
    with pytest.raises(AttributeError):
        _ = played.cudaGone
    assert played.called == {'cudaGood', 'cudaOld', 'cudaBroken'}


# -- versions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('known', 'version', 'verdict'),
    [
        (CUPY, '13.6.0', 'old'), (CUPY, '14.0.0', ''), (CUPY, '14.0.0rc1', ''), (CUPY, '14.2.7', ''),
        (CUPY, '14.3.0', 'newer'), (CUPY, '15.0.0a1', 'newer'),
        (BINDINGS, '11.8.7', 'old'), (BINDINGS, '12.6.2', 'old'), (BINDINGS, '12.8.0', ''), (BINDINGS, '12.9.10', ''),
        (BINDINGS, '12.10.0', 'newer'), (BINDINGS, '13.0.0', ''), (BINDINGS, '13.6.0', 'newer'),
        (BINDINGS, '14.0.0', 'newer'),
        (PYTHON, '3.9.18', 'old'), (PYTHON, '3.10.0', ''), (PYTHON, '3.14.9', ''), (PYTHON, '3.15.0', 'newer'),
    ],
)  # fmt: skip
def test_verdicts(known: Known, version: str, verdict: str) -> None:
    assert known.too_old(version) == (verdict == 'old')
    assert known.newer(version) == (verdict == 'newer')


def test_what_is_supported_is_what_was_tried() -> None:
    columns = [sorted(set(map(numbers, column))) for column in zip(*map(of_row, ROWS))]
    for known, tried in zip((PYTHON, CUPY, BINDINGS), columns):
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


def said_of(cupy: str, bindings: str, /, **installed: str) -> str:
    """What entering a capture says where these are installed."""
    named = {name.replace('_', '-'): version for name, version in installed.items()}
    return first_capture(CUPY_OF.format(cupy) + BINDINGS_OF.format(bindings) + INSTALLED.format(named), ())


def test_an_old_cupy() -> None:
    needs = 'capturekit needs CuPy 14 or newer (tried: 14.0 to 14.2), and this is 13.6.0: '
    assert said_of('13.6.0', '12.9.0', cupy_cuda12x='13.6.0') == f"{needs}pip install 'capturekit[cuda12]'"
    assert said_of('13.6.0', '13.0.0', cupy_cuda13x='13.6.0') == f"{needs}pip install 'capturekit[cuda13]'"


def test_two_cupys_are_never_advised() -> None:
    said = said_of('13.6.0', '12.9.0', cupy_cuda11x='13.6.0')
    assert said.endswith(": pip uninstall cupy-cuda11x; pip install 'capturekit[cuda13]' (or [cuda12])")
    said = said_of('13.6.0', '12.9.0', cupy='13.6.0')
    assert said.endswith(": pip install -U 'cupy>=14' (and cuda-bindings of the CUDA that it is built for)")
    said = said_of('13.6.0', '12.9.0', cupy='13.6.0', cupy_cuda12x='14.0.0')
    assert said.endswith(": pip uninstall cupy; pip install 'capturekit[cuda12]'")


@pytest.mark.parametrize('version', ['11.8.7', '12.6.2'])
def test_old_cuda_bindings(version: str) -> None:
    needs = f'capturekit needs cuda-bindings 12.8 or newer (tried: {BINDINGS}), and this is {version}: '
    said = said_of('14.2.0', version, cupy_cuda12x='14.2.0', cuda_bindings=version)
    assert said == f"{needs}pip install 'capturekit[cuda12]'"


def test_an_old_python() -> None:
    """As real ones were asked for the page; here a new one that says that it is old."""
    code = (
        'import sys\nsys.version_info = (3, 9, 18, "final", 0)\n'
        'try:\n    import capturekit\nexcept ImportError as error:\n    print(error)\n'
        'print("numpy" in sys.modules)'
    )
    ran = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    command = "python3.14 -m venv .venv && .venv/bin/pip install 'capturekit[cuda13]'"
    needs = 'capturekit needs Python 3.10 or newer (tried: 3.10 to 3.14), and this is 3.9.18'
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
        'capturekit.guard.patching.ENTRIES', (*ENTRIES, Entry('cupy.cuda.stream.Event', 'wait', 'waits.event_done'))
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


def test_a_newer_cupy_that_lacks_nothing_is_let_through(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import capturekit as ck

    monkeypatch.setattr(sim, '__version__', '15.0.0')
    with ck.capture() as cap:
        y = sim.arange(3.0) + 1
    cap.graph.launch()
    assert y.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ('changes', 'noted'),
    [
        ({'cupy': {'version': '15.0.0', 'runtime': 13000}}, 'CuPy: 15.0.0 is newer than what'),
        ({'bindings': {'version': '13.6.1'}}, 'cuda-bindings: 13.6.1 is newer than what'),
        ({'python': {'version': '3.15.0', 'system': 'Linux'}}, 'Python: 3.15.0 is newer than what'),
    ],
)
def test_the_doctor_notes_what_is_newer(changes: dict[str, Any], noted: str) -> None:
    report = judged(**changes)
    assert report.good
    assert [text for text in about(report, 'note') if text.startswith(noted)]


@pytest.mark.parametrize('version', ['3.10.13', '3.11.7', '3.12.0', '3.13.0', dotted(tuple(sys.version_info[:3]))])
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


def test_the_doctor_tells_what_to_install() -> None:
    installed = {'cuda-bindings': '12.6.0', 'cupy-cuda12x': '13.6.0', 'numpy': '2.5.5'}
    report = judged(cupy={'version': '13.6.0', 'runtime': 12090}, bindings={'version': '12.6.0'}, installed=installed)
    needs = "or newer (tried: {}): pip install 'capturekit[cuda12]'"
    assert about(report, 'bad') == [
        f'CuPy: 13.6.0 is too old: capturekit needs 14 {needs.format(CUPY)}',
        f'cuda-bindings: 12.6.0 is too old: capturekit needs 12.8 {needs.format(BINDINGS)}',
    ]


def test_what_was_said_outside_names_version_bounds_and_command() -> None:
    for wanted, one in zip(OUTSIDE, DATA['outside']):
        assert one['says'].startswith('ImportError: capturekit needs '), one
        assert re.search(r'pip install .*capturekit\[cuda1[23]\]', one['says']), one
        assert '/' not in one['says'].replace('.venv/bin/pip', ''), 'no path of a machine'
        if 'or newer' in one['says']:
            assert re.search(r'\(tried: [\d., to]+\), and this is \d+\.\d+', one['says'])
        assert wanted.python == '3.9' or 'Python' not in one['says']


def test_without_numpy_an_old_python_is_still_told(tmp_path: Path) -> None:
    code = 'import sys\nsys.version_info = (3, 9, 1, "final", 0)\nimport capturekit'
    blocked = BLOCK.format(blocked=('numpy', 'cupy', 'cuda')) + code
    ran = subprocess.run([sys.executable, '-c', blocked], cwd=ROOT, capture_output=True, text=True)
    assert 'ImportError: capturekit needs Python 3.10 or newer' in ran.stderr

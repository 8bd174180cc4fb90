"""The simulated device outside of ``run``: by the environment, by pytest's option, by ``install()``."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.command import ROOT, Ran, python
from tests.pages import blocks

SAID = 'capturekit: on the simulated device, seed 0 (CAPTUREKIT_SIMULATE is set)\n'
REAL = 'import sys, types; sys.modules["cupy"] = types.ModuleType("cupy")\n'


def simulating(*args: str, cwd: Path, simulate: str = '1') -> Ran:
    return python(*args, cwd=cwd, CAPTUREKIT_SIMULATE=simulate)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The README's first example, as a file."""
    example = next(b for b in blocks((ROOT / 'README.md').read_text(encoding='utf-8')) if b.language == 'python')
    path = tmp_path / 'first.py'
    path.write_text(example.text + "print('launched on', cap.recording.device)\n", encoding='utf-8')
    return path


def test_the_readmes_first_example_runs_in_plain_python(first: Path) -> None:
    done = simulating('first.py', cwd=first.parent)
    assert (done.returncode, done.stderr) == (0, SAID)
    assert 'launched on the simulated device' in done.stdout


def test_run_heeds_it_and_says_it_once(first: Path) -> None:
    done = simulating('-m', 'capturekit', 'run', '--seed', '3', 'first.py', cwd=first.parent)
    assert (done.returncode, done.stderr) == (0, SAID.replace('seed 0', 'seed 3'))


@pytest.mark.parametrize(
    ('code', 'simulate', 'said'),
    [
        ('import sys, capturekit; assert "cupy" not in sys.modules', '0', ''),
        ('import capturekit', 'yes', "CAPTUREKIT_SIMULATE must be 1 (simulate) or 0 (do not), and it is 'yes'"),
        (f'{REAL}import capturekit', '1', 'the real CuPy was imported before capturekit'),
        (f'{REAL}import capturekit', '1', 'Put `import capturekit` before `import cupy`'),
    ],
)
def test_it_can_be_off_and_what_is_wrong_is_said(tmp_path: Path, code: str, simulate: str, said: str) -> None:
    done = simulating('-c', code, cwd=tmp_path, simulate=simulate)
    assert (done.returncode, done.stderr) == (0, '') if not said else done.returncode == 1 and said in done.stderr


CONFTEST = 'import cupy\nimport pytest\n\n@pytest.fixture\ndef x():\n    return cupy.arange(4.0)\n'
TEST = """\
import capturekit as ck
import cupy as cp

def test_doubles(x):
    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    assert float(y.sum()) == 12
    assert 'simulated' in cp.__version__
"""
#: Names the plugin where the checkout is not installed.
PLUGIN = ['-p', 'capturekit.cli.pytest_plugin']


@pytest.mark.parametrize('way', ['side by side', 'environment'])
def test_a_projects_own_tests(tmp_path: Path, way: str) -> None:
    """Their conftest.py imports CuPy; capturekit may be installed here or not."""
    (tmp_path / 'conftest.py').write_text(CONFTEST)
    (tmp_path / 'test_mine.py').write_text(TEST)
    plugin = [] if any(one.name == 'capturekit' for one in entry_points(group='pytest11')) else PLUGIN
    options = [] if way == 'environment' else ['--capturekit-simulate', '-n', '1']
    if options:
        pytest.importorskip('xdist')
    command = ('-m', 'pytest', '-p', 'no:cacheprovider', *plugin, *options)
    done = simulating(*command, cwd=tmp_path, simulate='' if options else '1')
    assert done.returncode == 0 and '1 passed' in done.stdout, done.stdout + done.stderr
    told = 'capturekit: on the simulated device, seed 0 (--capturekit-simulate was given)'
    assert (told in done.stdout) == bool(options)

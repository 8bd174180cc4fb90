"""The simulated device outside of ``run``: by the environment, by pytest's option, by ``install()``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from capturekit.simulated import install, uninstall
from tests.pages import blocks

ROOT = Path(__file__).parents[2]
SAID = 'capturekit: on the simulated device, seed 0 (CAPTUREKIT_SIMULATE is set)\n'
REAL = 'import sys, types; sys.modules["cupy"] = types.ModuleType("cupy")\n'


def python(*args: str, cwd: Path, simulate: str = '1') -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'CAPTUREKIT_SIMULATE': simulate},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The README's first example, as a file."""
    example = next(b for b in blocks((ROOT / 'README.md').read_text(encoding='utf-8')) if b.language == 'python')
    path = tmp_path / 'first.py'
    path.write_text(example.text + "print('launched on', cap.recording.device)\n", encoding='utf-8')
    return path


def test_the_readmes_first_example_runs_in_plain_python(first: Path) -> None:
    done = python('first.py', cwd=first.parent)
    assert (done.returncode, done.stderr) == (0, SAID)
    assert 'launched on the simulated device' in done.stdout


def test_run_heeds_it_and_says_it_once(first: Path) -> None:
    done = python('-m', 'capturekit', 'run', '--seed', '3', 'first.py', cwd=first.parent)
    assert (done.returncode, done.stderr) == (0, SAID.replace('seed 0', 'seed 3'))


def test_it_can_be_off(tmp_path: Path) -> None:
    done = python('-c', 'import sys, capturekit; print("cupy" in sys.modules)', cwd=tmp_path, simulate='0')
    assert (done.returncode, done.stdout, done.stderr) == (0, 'False\n', '')


def test_any_other_value_is_refused(tmp_path: Path) -> None:
    done = python('-c', 'import capturekit', cwd=tmp_path, simulate='yes')
    assert (
        done.returncode == 1
        and "CAPTUREKIT_SIMULATE must be 1 (simulate) or 0 (do not), and it is 'yes'" in done.stderr
    )


def test_a_real_cupy_that_came_first_is_said(tmp_path: Path) -> None:
    done = python('-c', REAL + 'import capturekit', cwd=tmp_path)
    assert done.returncode == 1
    assert 'the real CuPy was imported before capturekit' in done.stderr
    assert 'Put `import capturekit` before `import cupy`' in done.stderr


def test_install_takes_no_arguments() -> None:
    install()
    try:
        import cupy as cp

        assert cp.__capturekit_simulated__ is not None
        assert int(cp.arange(4).sum()) == 6
    finally:
        uninstall()


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
PLUGIN = ('-p', 'capturekit.cli.pytest_plugin')


def tried(tmp_path: Path, *args: str, simulate: str = '') -> subprocess.CompletedProcess[str]:
    """Run a project's tests, whose conftest.py imports CuPy; capturekit may be installed here or not."""
    (tmp_path / 'conftest.py').write_text(CONFTEST)
    (tmp_path / 'test_mine.py').write_text(TEST)
    return python('-m', 'pytest', '-p', 'no:cacheprovider', *args, cwd=tmp_path, simulate=simulate)


def test_a_projects_own_tests_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip('xdist')
    done = tried(tmp_path, *_plugin(), '--capturekit-simulate', '-n', '1')
    assert done.returncode == 0 and '1 passed' in done.stdout, done.stdout + done.stderr
    assert 'capturekit: on the simulated device, seed 0 (--capturekit-simulate was given)' in done.stdout


def test_pytest_heeds_the_environment(tmp_path: Path) -> None:
    done = tried(tmp_path, *_plugin(), simulate='1')
    assert done.returncode == 0 and '1 passed' in done.stdout, done.stdout + done.stderr


def _plugin() -> tuple[str, ...]:
    """Name the plugin where the checkout is not installed."""
    from importlib.metadata import entry_points

    return () if any(one.name == 'capturekit' for one in entry_points(group='pytest11')) else PLUGIN

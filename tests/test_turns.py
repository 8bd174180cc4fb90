"""How the tests themselves run: turns on the GPU, commands that are called, how many examples are tried."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import conftest, examples, turns
from tests.command import ROOT, called, started
from tests.turns import turn

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def without_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(turns._HAS_TURN, raising=False)


def is_free(folder: Path, name: str, how: int) -> bool:
    """True if another process could take the lock so. ``flock`` is by opened file: this one is as good as another's."""
    with (folder / name).open('a') as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_others_share_the_device_and_one_that_is_alone_does_not(tmp_path: Path) -> None:
    with turn(False, tmp_path):
        assert is_free(tmp_path, 'device', fcntl.LOCK_SH) and not is_free(tmp_path, 'device', fcntl.LOCK_EX)
    with turn(True, tmp_path):
        assert not is_free(tmp_path, 'device', fcntl.LOCK_SH)
        assert is_free(tmp_path, 'door', fcntl.LOCK_EX)
    assert is_free(tmp_path, 'device', fcntl.LOCK_EX)


def test_a_turn_ends_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), turn(True, tmp_path):
        raise KeyError
    assert is_free(tmp_path, 'device', fcntl.LOCK_EX) and turns._HAS_TURN not in os.environ


def test_who_waits_to_be_alone_is_not_overtaken(tmp_path: Path) -> None:
    had = threading.Event()

    def alone() -> None:
        with turn(True, tmp_path):
            had.set()

    with (tmp_path / 'device').open('a') as device:  # another process's test is under way
        fcntl.flock(device, fcntl.LOCK_SH)
        waiting = threading.Thread(target=alone)
        waiting.start()
        while not (tmp_path / 'door').exists() or is_free(tmp_path, 'door', fcntl.LOCK_SH):
            pass
        assert not had.is_set()
    waiting.join(60)
    assert had.is_set()


def test_what_a_test_starts_has_its_turn(tmp_path: Path) -> None:
    with turn(True, tmp_path), turn(True, tmp_path):
        pass


class Item:
    """A test with markers."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._markers else None


@pytest.mark.parametrize(
    ('markers', 'shared', 'alone'),
    [(('gpu',), True, False), (('gpu', 'serial'), False, False), (('serial',), True, True), ((), True, True)],
)
def test_markers_choose_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, markers: tuple[str, ...], shared: bool, alone: bool
) -> None:
    monkeypatch.setattr(conftest, 'why_no_gpu', lambda: None)
    monkeypatch.setattr(turns, 'folder', lambda: tmp_path)
    item: Any = Item(*markers)
    run: Iterator[Any] = conftest.pytest_runtest_protocol(item)
    next(run)
    found = is_free(tmp_path, 'device', fcntl.LOCK_SH), is_free(tmp_path, 'device', fcntl.LOCK_EX)
    with pytest.raises(StopIteration) as ended:
        run.send(True)  # type: ignore[attr-defined]
    assert found == (shared, alone) and ended.value.value is True
    assert is_free(tmp_path, 'device', fcntl.LOCK_EX)


# -- commands -------------------------------------------------------------------------------------------------

TELLS = """\
import os, sys, warnings
import neighbour
print(sys.argv[1:], os.getcwd(), os.environ['MINE'], neighbour.value)
print(sys.path[0], file=sys.stderr)
warnings.warn('mine', stacklevel=1)
warnings.warn('ours', DeprecationWarning, stacklevel=1)
warnings.warn('not told', ImportWarning, stacklevel=1)
sys.exit({status})
"""


@pytest.mark.parametrize('status', ['', '3', '"enough"'])
def test_called_or_started_a_command_does_the_same(tmp_path: Path, status: str) -> None:
    (tmp_path / 'neighbour.py').write_text('value = 42')
    (tmp_path / 'script.py').write_text(TELLS.format(status=status))
    before = os.getcwd(), sys.path[:], dict(os.environ), warnings.filters[:], {*sys.modules}
    one, two = (
        way('run', '--simulate', 'script.py', 'a', '--b', cwd=tmp_path, MINE='x', PYTHONWARNINGS='')
        for way in (called, started)
    )
    assert (one.returncode, one.stdout, one.stderr) == (two.returncode, two.stdout, two.stderr)
    assert one.stdout == f"['a', '--b'] {tmp_path} x 42\n" and 'UserWarning: mine' in one.stderr
    assert before[:4] == (os.getcwd(), sys.path, dict(os.environ), warnings.filters)
    assert 'neighbour' in before[4] or 'neighbour' not in sys.modules


# -- options --------------------------------------------------------------------------------------------------


def test_a_quarter_of_the_examples_is_tried_and_more_by_ci() -> None:
    tried = examples.examples(400)
    assert (settings.get_profile('quick').max_examples, settings.get_profile('ci').max_examples) == (25, 35)
    assert tried == 4 * settings().max_examples
    assert examples.examples(1) == 1


def test_ci_runs_what_is_left_out_here() -> None:
    lines = (ROOT / '.ci' / 'run').read_text().splitlines()
    tests = [line for line in lines if '-m pytest' in line]
    assert 'export HYPOTHESIS_PROFILE=ci' in lines[: lines.index(tests[0])]
    assert tests == ["python -m pytest tests -q -n auto -m '(slow or not slow) and not once'"]

"""``run --watch``: what has harmed ``torch.cuda.graph`` is named by exception, function, line and remedy."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import started
from tests.gpu.torch_failures import FAILURES
from tests.pages import DOCS, blocks, without_handles

pytestmark = pytest.mark.gpu


@pytest.fixture(scope='module')
def ran() -> Iterator[subprocess.CompletedProcess[str]]:
    if importlib.util.find_spec('torch') is None:
        pytest.skip('torch is not installed')
    yield started('run', '--watch', 'tests/gpu/torch_failures.py')


def findings(ran: subprocess.CompletedProcess[str]) -> list[str]:
    """The findings of the report, each with its lines."""
    report = ran.stderr.partition('captures were followed')[2]
    return re.split(r'\n(?=\w+Error: )', report)[1:]


@pytest.mark.parametrize('name', sorted(FAILURES))
def test_a_failure_is_named(name: str, ran: subprocess.CompletedProcess[str]) -> None:
    one = FAILURES[name]
    mine = [text for text in findings(ran) if f'torch_failures.py:{one.line} in' in text]
    assert len(mine) == 1, ran.stderr
    assert mine[0].startswith(f'{one.name}: '), mine[0]
    assert one.function in mine[0].partition('\n')[0], mine[0]
    assert one.remedy in mine[0], mine[0]


def test_the_library_is_named(ran: subprocess.CompletedProcess[str]) -> None:
    first = {text.partition('\n')[0] for text in findings(ran)}
    assert any('called by libtorch_cuda.so' in line or 'called by libc10_cuda.so' in line for line in first), first
    assert any('called by cuda.bindings.' in line for line in first), first


def test_nothing_else_is_told(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stderr
    assert len(findings(ran)) == len(FAILURES), ran.stderr
    assert ran.stdout.splitlines()[-1] == 'good 64.0'
    assert f'{len(FAILURES) + 1} captures were followed' in ran.stderr


def test_the_guide_s_example_says_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip('torch')
    page = blocks((DOCS / 'guide' / 'existing-code.md').read_text())
    at = next(number for number, block in enumerate(page) if 'torch.cuda.graph(graph)' in block.text)
    path = tmp_path / 'train.py'
    path.write_text(page[at].text)
    told = without_handles(started('run', '--watch', str(path)).stderr)
    assert told.endswith(without_handles(page[at + 1].text)), told

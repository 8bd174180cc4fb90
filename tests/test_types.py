"""What an editor knows of a user's code: mypy, strict, over a file of it and over the README's examples.

A line of ``tests/data/typed_user.py`` with ``# error: [code]`` is one that the checker has to refuse, for that reason.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pages import script

MYPY = [sys.executable, '-m', 'mypy'] if find_spec('mypy') else [shutil.which('mypy') or '']
pytestmark = pytest.mark.skipif(MYPY == [''], reason="mypy is not installed: pip install '.[lint]'")

ROOT = Path(__file__).parent.parent
USER = ROOT / 'tests' / 'data' / 'typed_user.py'
_MARK = re.compile(r'# error: \[([\w, -]+)\]')
_FOUND = re.compile(r'^(?:.*[/\\])?([\w.]+):(\d+): error: .*\[([\w-]+)\]$', re.MULTILINE)


def errors(path: Path, *options: str) -> dict[int, set[str]]:
    """What mypy finds in a file: codes by line."""
    asked = [*MYPY, '--config-file', str(ROOT / 'setup.cfg'), '--follow-imports=silent', *options, str(path)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found: dict[int, set[str]] = {}
    for name, line, code in _FOUND.findall(done.stdout):
        assert name == path.name, done.stdout
        found.setdefault(int(line), set()).add(code)
    assert done.returncode == bool(found), done.stdout + done.stderr
    return found


def test_an_editor_knows_what_a_user_writes() -> None:
    wanted: dict[int, set[str]] = {}
    for number, line in enumerate(USER.read_text(encoding='utf-8').splitlines(), 1):
        if mark := _MARK.search(line):
            wanted[number] = set(mark[1].split(', '))
    found = errors(USER)
    assert found.keys() == wanted.keys(), found
    assert all(found[line] <= wanted[line] for line in wanted), found


def test_the_readme_is_typed(tmp_path: Path) -> None:
    """Its examples, one behind the other, as one module."""
    path = tmp_path / 'readme.py'
    path.write_text(script((ROOT / 'README.md').read_text(encoding='utf-8'), marked=False), encoding='utf-8')
    assert errors(path, '--check-untyped-defs') == {}

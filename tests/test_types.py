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


def errors(*paths: Path) -> dict[str, dict[int, set[str]]]:
    """What mypy finds in files: by the file's name, codes by line."""
    options = ['--config-file', str(ROOT / 'setup.cfg'), '--follow-imports=silent', '--check-untyped-defs']
    asked = [*MYPY, *options, *map(str, paths)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found: dict[str, dict[int, set[str]]] = {path.name: {} for path in paths}
    for name, line, code in _FOUND.findall(done.stdout):
        found[name].setdefault(int(line), set()).add(code)
    assert done.returncode == any(found.values()), done.stdout + done.stderr
    return found


def test_an_editor_knows_what_a_user_writes(tmp_path: Path) -> None:
    """The README's examples, one behind the other, are one module, and have no error."""
    readme = tmp_path / 'readme.py'
    readme.write_text(script((ROOT / 'README.md').read_text(encoding='utf-8'), marked=False), encoding='utf-8')
    wanted: dict[int, set[str]] = {}
    for number, line in enumerate(USER.read_text(encoding='utf-8').splitlines(), 1):
        if mark := _MARK.search(line):
            wanted[number] = set(mark[1].split(', '))
    every = errors(USER, readme)
    found = every[USER.name]
    assert found.keys() == wanted.keys(), found
    assert all(found[line] <= wanted[line] for line in wanted), found
    assert every[readme.name] == {}

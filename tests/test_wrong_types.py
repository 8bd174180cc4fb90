"""Every argument of the public functions and methods is tried with values that it does not take."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import GUARD
from tests.wrong_types import CALLS, accepted

#: Of these, Python itself judges what is given, or what is given goes on to the user's function.
_ELSEWHERE = {'args', 'kwargs', 'self', 'cls'}


@pytest.mark.parametrize('name', CALLS)
def test_refused_at_the_call(sim: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert accepted(sim, name) == []
    assert not GUARD.installation.installed and not GUARD.occupied()
    assert not list(tmp_path.iterdir())


def test_the_table_has_every_argument() -> None:
    tried = ' '.join(CALLS)
    for name in ('capture', 'graphed', 'fork', 'parallel', 'experiment', 'lint', 'look', 'reads', 'writes', 'rehearse'):
        given = inspect.signature(getattr(ck, name)).parameters.values()
        for one in given:
            if one.kind is one.KEYWORD_ONLY and one.name not in _ELSEWHERE:
                assert f'{name} {one.name}' in CALLS, f'{name}({one.name}=)'
        assert name in tried
    for method in ('measure', 'verify', 'races', 'rebind', 'update', 'relane', 'fuse', 'set_kernel', 'set_memcpy'):
        assert f'Graph.{method} ' in tried

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
    plain = ('fork', 'parallel', 'experiment', 'lint', 'look', 'reads', 'writes', 'rehearse')
    for name in ('capture', 'graphed', *plain):
        tried = [call for call in CALLS if call.startswith((f'ck.{name}(', f'{name}('))]
        assert tried, name
        given = inspect.signature(getattr(ck, name)).parameters.values()
        keywords = [one.name for one in given if one.kind is one.KEYWORD_ONLY and one.name not in _ELSEWHERE]
        for one in [*keywords, *(ck.CaptureOptions.__annotations__ if name == 'capture' else ())]:
            assert any(f'{one}=v' in call for call in tried), f'{name}({one}=)'
    for method in ('measure', 'races', 'rebind', 'update', 'relane', 'fuse', 'set_kernel', 'set_memcpy', 'verify'):
        assert any(call.startswith(f'graph.{method}(') for call in CALLS)

"""State of libraries that work beside CuPy, which is followed as any other."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck


@pytest.mark.parametrize('package', ['rmm', 'torch', 'jax', 'numba', 'warp'])
def test_state_of_libraries_beside_cupy_is_followed(
    cp: Any, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / package
    folder.mkdir()
    (folder / '__init__.py').write_text('factor = [2]\n\n\ndef scaled(x):\n    return x * factor[0]\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, package, raising=False)
    module = importlib.import_module(package)
    try:
        fn = ck.graphed(lambda x: module.scaled(x) + 1)
        found = []
        for number in (2, 2, 2, 5, 5, 5):
            module.factor[0] = number
            found.append(float(fn(cp.ones(2))[0]))
        assert found == [3, 3, 3, 6, 6, 6]
        assert sum(variant.launches for variant in fn.variants) >= 2
    finally:
        sys.modules.pop(package, None)

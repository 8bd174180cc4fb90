"""The generated source of random fused kernels, run on the host: every byte is as NumPy computes it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from capturekit.fusion import source as fused_source
from capturekit.fusion.source import source
from tests.fusion import on_host, random_kernels

pytestmark = pytest.mark.skipif(on_host.COMPILER is None, reason='no C++ compiler here')

KERNELS = 16


@pytest.mark.parametrize('wide', [False, True], ids=['32 bits', '64 bits'])
@pytest.mark.parametrize('together', [1, 4])
def test_random_kernels_compute_what_numpy_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, wide: bool
) -> None:
    monkeypatch.setattr(fused_source, '_TOGETHER', together)
    monkeypatch.setattr(fused_source, '_MANY', 1)
    monkeypatch.setattr(fused_source, '_SHORT', 5)
    monkeypatch.setattr(fused_source, 'THREADS', 16)
    monkeypatch.setattr(fused_source, '_ALONG', 4)
    if wide:
        monkeypatch.setattr(fused_source, '_MOST', 0)
    choose = random.Random(f'0 {together} {wide}').choice
    drawn = [random_kernels.draw(choose) for _ in range(KERNELS)]
    sources = [source.__wrapped__(one.kernel) for one in drawn]
    assert {one.layout.narrow for one in sources} == {not wide}
    library = on_host.compiled(sources, tmp_path)
    for number, (one, made) in enumerate(zip(drawn, sources)):
        expected = one.expected()
        assert on_host.run(library, number, made, one.guards) == 0, (number, one.kernel, made.text[-1])
        assert one.memory.tobytes() == expected, (number, one.kernel, made.text[-1])

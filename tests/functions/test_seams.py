"""``@ck.graphed``: calls that no capture holds are made between the graphs of a variant."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck


@pytest.mark.parametrize('seams', [2, 6])
def test_many_seams_are_told_once(sim: Any, caplog: pytest.LogCaptureFixture, seams: int) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        for _ in range(seams):
            x = x * sim.linalg.svd(x)[1]
        return x

    for _ in range(4):
        fn(sim.eye(3) * 0.5)
    (variant,) = fn.variants
    assert (variant.state, len(variant.seams)) == ('pieces', seams)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (seams == 6)
    if told:
        assert '6 calls that no capture can hold' in told[0] and 'linalg.svd at test_seams.py' in told[0]

"""Random programs of several threads give what each thread gets alone; and they find a known cause again."""

from __future__ import annotations

from typing import Any

import pytest

from capturekit.driver.cuda import Platform
from capturekit.guard import GUARD
from tests.agreement.thread_programs import Threads, compared, hastily, kind
from tests.agreement.trying import try_many
from tests.examples import examples


def test_threads_get_what_they_get_alone(sim: Any) -> None:
    tally = try_many(kind(sim), 0, examples(4), 1)
    assert not tally.found, tally.found
    assert tally.counts['launched'] * 10 > tally.counts['calls']


def waits_at_once(platform: Platform, devices: Any) -> None:
    platform.device.device_synchronize()


def test_a_wait_that_comes_beside_a_recording_is_found(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [
        [('call', 0, 2 + thread + 4 * step, k + 0.5) for step in range(4) for k in range(9)] for thread in range(4)
    ]
    program = Threads([('number', {})], plans, own_streams=False)
    with hastily():
        assert compared(sim, program)[0] == ''
        monkeypatch.setattr(GUARD.waits, 'for_devices', waits_at_once)
        assert any('StreamCapture' in compared(sim, program)[0] for _ in range(10))

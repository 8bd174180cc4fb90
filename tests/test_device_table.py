"""The benchmark of two devices: what it times is right, and what is wrong is an error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.benchmarks import devices


@pytest.fixture
def cp() -> Iterator[Any]:
    install(SimulatedDevice(5, devices=2))
    try:
        yield sys.modules['cupy']
    finally:
        uninstall()


def test_every_line_is_checked(cp: Any) -> None:
    found = {name: list(part()) for name, part in devices.parts(cp, True, False).items()}
    assert {name: len(lines) for name, lines in found.items()} == {'copies': 2, 'waits': 1, 'branches': 7}
    assert all((line.error, line.note) == ('', 'checked') for lines in found.values() for line in lines)


def test_a_branch_that_gives_other_bits_elsewhere_is_an_error(cp: Any) -> None:
    wrong = devices.Branch('wrong', lambda cp, x: x + cp.cuda.Device().id, (8,), 2)
    (line,) = devices.checked('wrong', devices.moved(cp, wrong, False))
    assert line.error == 'wrong, moved: other bits' and line.ratio is None


def test_one_device_is_not_enough(sim: Any) -> None:
    with pytest.raises(SystemExit, match='two GPUs'):
        devices.parts(sim, True, False)

"""What tests of blocks leave behind is given back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capturekit.recorder import capture as blocks


@pytest.fixture(autouse=True)
def nothing_stays_held() -> Iterator[None]:
    """What a capture keeps for a graph of somebody else's is kept until its close."""
    yield
    for lease in list(blocks.HELD):
        blocks.let_go(lease)

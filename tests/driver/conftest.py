"""The small drivers of these tests, in the place of CUDA's."""

from __future__ import annotations

from pathlib import Path

import pytest

from capturekit.driver import node_reader
from tests.compiled import compiled


@pytest.fixture(scope='module')
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of the driver of which a module of tests names the source."""
    source = Path(__file__).with_name(request.module.DRIVER).read_text()
    return compiled(tmp_path_factory.mktemp('driver') / 'twin_of_libcuda.so', source)


@pytest.fixture
def libcuda(library: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, found where CUDA's is looked for."""
    monkeypatch.setattr(node_reader, 'loaded', lambda part: {'libcuda.so': library}[part])
    return library

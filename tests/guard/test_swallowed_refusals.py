"""What a handler of logging swallows in a capture ends the capture."""

from __future__ import annotations

import io
import linecache
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import watch
from capturekit.model.source_line import Place


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger whose handler formats each record."""
    logger, handler = logging.Logger('of a test'), logging.StreamHandler(io.StringIO())
    logger.addHandler(handler)
    before = logging.Handler.handleError
    yield logger
    assert logging.Handler.handleError is before


def test_a_block_ends_with_it(cp: Any, log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    x = cp.arange(4.0)
    with pytest.raises(ck.HostReadError) as found, ck.capture():
        y = x * 2
        log.info('y is %s', y)
        y += 1
    assert '--- Logging error ---' in capsys.readouterr().err
    assert isinstance(found.value.location, Place)
    assert linecache.getline(__file__, found.value.location.line).strip() == "log.info('y is %s', y)"
    assert any('a handler of `logging` has printed' in note for note in found.value.__notes__)


def test_the_first_one_counts(cp: Any, log: logging.Logger) -> None:
    x = cp.arange(4.0)
    with pytest.raises(ck.HostReadError) as found, ck.capture() as cap:
        log.info('%s', x)
        log.info('%s', _Synchronizing(cap.stream))
    assert [cause.name for cause in found.value.earlier] == ['SynchronizationError']


class _Synchronizing:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __str__(self) -> str:
        self.stream.synchronize()
        return 'done'


def test_a_capture_by_hand_ends_with_it_and_stays_good(cp: Any, log: logging.Logger) -> None:
    x, stream = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Stream.null.synchronize()
    with watch(), stream:
        stream.begin_capture()
        y = x * 2
        log.info('%s', y)
        with pytest.raises(ck.HostReadError, match=r'after `graph\.launch'):
            stream.end_capture()
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(y.get(), np.arange(4.0) * 2)


def test_the_blocks_own_exception_stays(cp: Any, log: logging.Logger) -> None:
    with pytest.raises(LookupError) as found, ck.capture():
        log.info('%s', cp.arange(4.0))
        raise LookupError('mine')
    assert any('HostReadError' in note for note in found.value.__notes__)


def test_what_the_record_catches_itself_is_its_own_matter(cp: Any, log: logging.Logger) -> None:
    class Careful:
        def __str__(self) -> str:
            with suppress(ck.HostReadError):
                return str(y)
            return 'not computed yet'

    x = cp.arange(4.0)
    with ck.capture() as cap:
        y = x * 2
        log.info('%s', Careful())
        log.info('%d', 'another error of logging')
    assert cap.graph.recording.outcome == 'good'


def test_lint_foresees_it(sim: Any, log: logging.Logger) -> None:
    x = sim.arange(4.0)
    report = ck.lint(lambda: log.info('%s', x))
    assert [found.rule for found in report.findings] == ['host-read']

"""Who gets the messages of a logger, which may be code of the user."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck

Change = Callable[[logging.Logger, logging.Handler], None]


class Collects(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def adds_a_handler(logger: logging.Logger, handler: logging.Handler) -> None:
    logger.addHandler(handler)


def puts_another(logger: logging.Logger, handler: logging.Handler) -> None:
    logger.handlers[:] = [handler]


def adds_a_filter(logger: logging.Logger, handler: logging.Handler) -> None:
    logger.addFilter(lambda record: bool(handler.emit(record)))


def a_logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """A logger that nobody listens to."""
    logger = logging.Logger('messages')
    logger.handlers.append(logging.NullHandler())
    monkeypatch.setattr(logger, 'propagate', False)
    return logger


@pytest.mark.parametrize('change', [adds_a_handler, puts_another, adds_a_filter])
def test_who_gets_messages_is_compared(cp: Any, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    logger = a_logger(monkeypatch)

    def says(x: Any) -> Any:
        logger.error('a step')
        return x * 2.0

    step, handler = ck.graphed(says), Collects()
    for _ in range(3):
        step(cp.ones(2))
    assert [one.launches for one in step.variants] == [2]
    change(logger, handler)
    for _ in range(3):
        assert step(cp.ones(2)).tolist() == [2.0, 2.0]
    assert handler.found == ['a step'] * 3


def test_the_level_of_a_handler_is_compared(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, handler = a_logger(monkeypatch), Collects()
    handler.setLevel(logging.CRITICAL)
    logger.addHandler(handler)

    def says(x: Any) -> Any:
        logger.error('a step')
        return x * 2.0

    step = ck.graphed(says)
    for _ in range(3):
        step(cp.ones(2))
    handler.setLevel(logging.DEBUG)
    step(cp.ones(2))
    assert handler.found == ['a step']


def test_the_handlers_of_the_root_are_compared(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, 'handlers', [logging.NullHandler()])
    step, handler = ck.graphed(says_to_the_root), Collects()
    for _ in range(3):
        step(cp.ones(2))
    assert [one.launches for one in step.variants] == [2]
    logging.root.handlers.append(handler)
    step(cp.ones(2))
    assert handler.found == ['a step']


def says_to_the_root(x: Any) -> Any:
    logging.error('a step')
    return x * 2.0

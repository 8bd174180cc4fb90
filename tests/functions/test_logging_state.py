"""Who gets the messages of a logger, which may be code of the user."""

from __future__ import annotations

import io
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


class Own(logging.Logger):
    def isEnabledFor(self, level: int) -> bool:
        return False


def takes_its_message(logger: Any, handler: Any) -> None:
    logger.handle = handler.emit


def is_of_another_class(logger: Any, handler: Any) -> None:
    logger.addHandler(handler)
    logger.__class__ = Own


def has_a_method_of_its_own(logger: Any, handler: Any) -> None:
    logger.error = lambda text: handler.found.append(text)


def gives_its_handler_a_method(logger: Any, handler: Any) -> None:
    logger.handlers[0].handle = handler.emit


@pytest.mark.parametrize(
    ('change', 'count'),
    [
        (takes_its_message, 3),
        (is_of_another_class, 0),
        (has_a_method_of_its_own, 3),
        (gives_its_handler_a_method, 3),
    ],
)
def test_whose_code_gets_messages(cp: Any, monkeypatch: pytest.MonkeyPatch, change: Change, count: int) -> None:
    logger, handler = a_logger(monkeypatch), Collects()

    def says(x: Any) -> Any:
        logger.error('a step')
        return x * 2.0

    step = ck.graphed(says)
    for _ in range(3):
        step(cp.ones(2))
    assert [one.launches for one in step.variants] == [2]
    change(logger, handler)
    for _ in range(3):
        step(cp.ones(2))
    assert handler.found == ['a step'] * count


def test_messages_that_stay_in_memory(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, text = a_logger(monkeypatch), io.StringIO()
    logger.addHandler(logging.StreamHandler(text))

    def says(x: Any) -> Any:
        logger.error('a step')
        return x * 2.0

    step = ck.graphed(says)
    for _ in range(4):
        step(cp.ones(2))
    assert text.getvalue() == 'a step\n' * 4


def test_an_answer_that_a_logger_has_kept(cp: Any) -> None:
    above, logger = logging.Logger('above', logging.ERROR), logging.Logger('below')
    logger.parent = above

    def asks(x: Any) -> Any:
        return x * (2.0 if logger.isEnabledFor(logging.INFO) else 5.0)

    step, x = ck.graphed(asks), cp.ones(1)
    assert [step(x).tolist() for _ in range(3)] == [[5.0]] * 3
    above.level = logging.DEBUG  # which does not tell the logger
    assert [step(x).tolist() for _ in range(3)] == [[5.0]] * 3
    above.setLevel(logging.INFO)
    assert step(x).tolist() == [asks(x).tolist()[0]]

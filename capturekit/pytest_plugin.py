"""pytest's plugin: tests marked ``capture_safe`` fail where a capture of their body would.

``@pytest.mark.capture_safe``: the body runs as ever, once, and then fails with the report if ``ck.capture()`` would
have refused something in it; ``capture_safe(strict=False)``: only what an adapting capture refuses counts. The fixture
``capture_lint`` is ``ck.lint``. What a test reads for its own asserts is a host read as well: put what is to be
captured in a function, and use the fixture, where the body does more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

_MARKER = 'capture_safe(strict=True): the test fails where a capture of its body would (capturekit lint)'


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line('markers', _MARKER)


@pytest.fixture
def capture_lint() -> Callable[..., Any]:
    """``ck.lint``: run a function once, eagerly; return a report of all that a capture of it would refuse."""
    from capturekit.linting import lint

    return lint


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    marker = pyfuncitem.get_closest_marker('capture_safe')
    if marker is None:
        return (yield)
    from capturekit.linting import Linting

    strict = _strict(marker)
    with Linting() as report:
        result = yield
    if not (report.ok if strict else report.ok_adapting):
        pytest.fail(f'not capture-safe: {report}', pytrace=False)
    return result


def _strict(marker: pytest.Mark) -> bool:
    strict = marker.kwargs.get('strict', True)
    if marker.args or set(marker.kwargs) - {'strict'} or not isinstance(strict, bool):
        raise pytest.UsageError('the marker is capture_safe or capture_safe(strict=False)')
    return strict

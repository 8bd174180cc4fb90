"""pytest's plugin: tests marked ``capture_safe`` fail where a capture of their body would.

The body runs once, as always, and then fails with the report if ``ck.capture()`` would have refused something in it;
with ``capture_safe(strict=False)`` only what ``ck.capture(strict=False)`` refuses counts. A value that a test reads for
its own asserts is a host read as well: for those, the fixture ``capture_lint`` is ``ck.lint``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

_MARKER = 'capture_safe(strict=True): the test fails where a capture of its body would (capturekit lint)'


def pytest_addoption(parser: pytest.Parser) -> None:
    text = 'run the tests on the simulated device: `import cupy` finds it, in conftest.py too; needs no GPU and no CuPy'
    parser.getgroup('capturekit').addoption('--capturekit-simulate', action='store_true', help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any conftest.py is read: those import CuPy, too."""
    if not early_config.known_args_namespace.capturekit_simulate:
        return
    found = sys.modules.get('cupy')
    if hasattr(found, '__capturekit_simulated__'):
        return
    if found is not None:
        raise pytest.UsageError('--capturekit-simulate: a plugin has imported the real CuPy before')
    from capturekit.simulated import install, uninstall

    install()
    early_config.add_cleanup(uninstall)


def pytest_report_header(config: pytest.Config) -> str | None:
    simulated = config.getoption('--capturekit-simulate')
    return 'capturekit: on the simulated device, seed 0 (--capturekit-simulate was given)' if simulated else None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line('markers', _MARKER)


@pytest.fixture
def capture_lint() -> Callable[..., Any]:
    """``ck.lint``: run a function once, eagerly; return a report of all that a capture of it would refuse."""
    from capturekit.lab.lint import lint

    return lint


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    marker = pyfuncitem.get_closest_marker('capture_safe')
    if marker is None:
        return (yield)
    from capturekit.lab.lint import Linting

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

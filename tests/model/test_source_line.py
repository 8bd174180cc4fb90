"""Which line is the user's."""

from __future__ import annotations

import pytest

from capturekit.model.source_line import raised_at


@pytest.mark.parametrize(
    'file', ['cupy_backends/cuda/api/runtime.pyx', 'cupy/_core/core.pyx', 'cuda/bindings/driver.pyx']
)
def test_compiled_code_of_a_library_is_not_the_users(file: str) -> None:
    """Cython's frames have the path of their source within the package, which is no file here."""
    scope: dict[str, object] = {}
    exec(compile('def refuse():\n    raise RuntimeError', file, 'exec'), scope)
    with pytest.raises(RuntimeError) as told:
        scope['refuse']()  # type: ignore[operator]
    at = raised_at(told.value)
    assert at is not None and at.function == 'test_compiled_code_of_a_library_is_not_the_users'


def test_a_file_of_the_users_with_such_a_name_is_the_users() -> None:
    scope: dict[str, object] = {}
    exec(compile('def refuse():\n    raise RuntimeError', 'cupy_models/train.pyx', 'exec'), scope)
    with pytest.raises(RuntimeError) as told:
        scope['refuse']()  # type: ignore[operator]
    at = raised_at(told.value)
    assert at is not None and at.function == 'refuse'

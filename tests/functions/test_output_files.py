"""Where ``print`` writes to, and how: its file counts where the function prints, though no code names it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import capturekit as ck


class Tee:
    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, text: str) -> int:
        self.said.append(text)
        return len(text)


def says(x: Any) -> Any:
    try:
        print('\xe9')
    except (UnicodeEncodeError, ValueError, RuntimeError):
        return x * 5.0
    return x * 2.0


@contextlib.contextmanager
def standing_in() -> Iterator[Any]:
    """A file in the place of the standard output that nobody reads."""
    before = sys.stdout
    with open(os.devnull, 'w', encoding='utf-8') as file:
        sys.stdout = file
        try:
            yield file
        finally:
            sys.stdout = before


@pytest.fixture
def out() -> Any:
    return standing_in()


def encodes(out: Any) -> None:
    out.reconfigure(encoding='ascii')


def closes(out: Any) -> None:
    out.close()


def takes_away(out: Any) -> None:
    del sys.stdout


def puts_another(out: Any) -> None:
    sys.stdout = io.TextIOWrapper(io.BytesIO(), 'ascii')


@pytest.mark.parametrize('change', [encodes, closes, takes_away, puts_another])
def test_whether_a_text_can_be_printed_is_compared(cp: Any, out: Any, change: Any) -> None:
    with out as file:
        step, x = ck.graphed(says), cp.ones(2)
        assert [step(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
        assert [one.launches for one in step.variants] == [2]
        change(file)
        assert [step(x).tolist() for _ in range(3)] == [[5.0, 5.0]] * 3


def test_what_is_printed_into_memory_is_printed_at_each_call(cp: Any, out: Any) -> None:
    with out:
        step, x, text = ck.graphed(says), cp.ones(2), io.StringIO()
        for _ in range(3):
            step(x)
        with contextlib.redirect_stdout(text):
            for _ in range(3):
                step(x)
        assert text.getvalue() == '\xe9\n' * 3


def test_an_object_of_the_user_is_given_each_text(cp: Any, out: Any) -> None:
    with out:
        step, x, tee = ck.graphed(says), cp.ones(2), Tee()
        for _ in range(3):
            step(x)
        sys.stdout = tee  # type: ignore[assignment]
        for _ in range(3):
            step(x)
        assert tee.said == ['\xe9', '\n'] * 3


def test_the_encoding_of_the_output_is_compared(cp: Any, out: Any) -> None:
    with out as file:

        def by_encoding(x: Any) -> Any:
            return x * float(len(sys.stdout.encoding))

        step, x = ck.graphed(by_encoding), cp.ones(1)
        by_encoding(x)  # a run that fills caches of CuPy's is followed once more
        assert [step(x).tolist() for _ in range(3)] == [[5.0]] * 3
        assert [one.launches for one in step.variants] == [2]
        file.reconfigure(encoding='latin-1')
        assert [step(x).tolist() for _ in range(3)] == [[float(len(file.encoding))]] * 3


def test_a_file_of_pytest_is_an_output_like_any_other(cp: Any, capfd: Any) -> None:
    step, x = ck.graphed(says), cp.ones(2)
    for _ in range(3):
        step(x)
    assert [one.launches for one in step.variants] == [2]

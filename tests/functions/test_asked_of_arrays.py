"""What code asks arrays for that can't be compared, where an object of the user has an attribute of the same name."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

import capturekit as ck


class Options:
    base = flags = owndata = ptr = 2.0


OPTIONS = Options()


def asks_base(x: Any, others: Any) -> Any:
    return x * (OPTIONS.base if others[0].base is None else 5.0)


def asks_base_of_a_variable(x: Any, others: Any) -> Any:
    y = others[0]
    return x * (OPTIONS.base if y.base is None else 5.0)


def asks_all_flags(x: Any, others: Any) -> Any:
    rate = OPTIONS.flags
    return x * (rate if others[0].flags['OWNDATA'] else 5.0)


def asks_owndata(x: Any, others: Any) -> Any:
    return x * (OPTIONS.owndata if others[0].flags.owndata else 5.0)


def asks_by_a_pattern(x: Any, others: Any) -> Any:
    match others[0]:
        case object(base=None):
            return x * OPTIONS.base
    return x * 5.0


def base_of(value: Any) -> Any:
    return value.base


def asks_in_a_helper(x: Any, others: Any) -> Any:
    return x * (base_of(OPTIONS) if base_of(others[0]) is None else 5.0)


@pytest.mark.parametrize(
    'asks',
    [asks_base, asks_base_of_a_variable, asks_all_flags, asks_owndata, asks_by_a_pattern, asks_in_a_helper],
)
def test_the_name_of_a_users_attribute_hides_no_array(cp: Any, asks: Any) -> None:
    step = ck.graphed(asks)
    x, whole, part = cp.arange(3.0), cp.arange(4.0), cp.arange(8.0)[:4]
    found = [step(x, [y]).tolist() for y in (whole, whole, whole, part, part, part)]
    assert found == [asks(x, [y]).tolist() for y in (whole, whole, whole, part, part, part)]


def test_a_file_in_the_place_of_the_standard_output(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stdout

    def by_output(x: Any) -> Any:
        return x * (2.0 if sys.stdout is before else 5.0)

    step = ck.graphed(by_output)
    x = cp.arange(3.0)
    assert [step(x).tolist() for _ in range(3)] == [[0.0, 2.0, 4.0]] * 3
    monkeypatch.setattr(sys, 'stdout', io.StringIO())
    assert [step(x).tolist() for _ in range(3)] == [[0.0, 5.0, 10.0]] * 3

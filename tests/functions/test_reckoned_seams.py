"""Launches reckon with numbers that the host reads, also where the host calls a library between two of their parts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.functions.reckoning import Made, nothing
from tests.functions.test_reckoned_reads import ODD, alike, launches, ordinary


def one_after_the_other(cp: Any) -> Made:
    def work(x: Any) -> Any:
        size = cp.linalg.norm(x).item() + 1
        _, values, vectors = cp.linalg.svd(cp.outer(x, x) / size)
        twice = size * 2.0  # computed after the call, and needed by the next one
        more, again = cp.linalg.svd(vectors / twice + cp.eye(3) * size)[:2]
        top = again.max().item()
        return values / top, more * (top + size), top, twice

    return work, nothing


def compared_before_and_after(cp: Any) -> Made:
    def work(x: Any) -> Any:
        size = x.sum().item()
        factor = 2.0 if size > 40 else 3.0
        values = cp.linalg.svd(cp.outer(x, x) + cp.eye(3) * factor)[1]
        return values * size if size * factor > 150 else values - size

    return work, nothing


def changing_what_is_outside(cp: Any) -> Made:
    total = cp.zeros(3)

    def work(x: Any) -> Any:
        nonlocal total
        total += x
        x *= 2
        size = cp.linalg.norm(total).item() + 1
        values = cp.linalg.svd(cp.outer(x, total) / size)[1]
        total /= size
        return values * size

    return work, lambda: total


def with_numbers_of_attributes(cp: Any) -> Made:
    class Step:
        def __init__(self) -> None:
            self.count, self.rate = 0, 1.0

        def __call__(self, x: Any) -> Any:
            self.count += 1
            self.rate *= 0.5
            values = cp.linalg.svd(cp.outer(x, x) * self.rate)[1]
            size = values.max().item() + self.count
            return cp.linalg.svd(cp.outer(x, x) + size * self.rate)[1] / size

    step = Step()
    return lambda x: step(x), lambda: (step.count, step.rate)


def drawing_on_the_host(cp: Any) -> Made:
    def work(x: Any) -> Any:
        noise = cp.random.standard_normal(3)
        size = cp.linalg.norm(x + noise).item() + 1
        values = cp.linalg.svd(cp.outer(x, noise) / size)[1]
        return values * size + cp.random.rand(3)

    return work, lambda: cp.random.rand(2)


def drawing_on_the_device(cp: Any) -> Made:
    generator = cp.random.default_rng(5)

    def work(x: Any) -> Any:
        noise = generator.standard_normal(3)
        size = cp.linalg.norm(x + noise).item() + 1
        values = cp.linalg.svd(cp.outer(x, noise) / size)[1]
        return values * size + generator.random(3)

    return work, lambda: generator.random(2)


def refused_by_the_library(cp: Any) -> Made:
    """The library raises where the numbers are odd; the function goes on."""

    def work(x: Any) -> Any:
        size = x.sum().item()
        try:
            values = cp.linalg.eigh(cp.outer(x, x) * size)[0]
        except cp.linalg.LinAlgError:
            values = x * 0
        return values + size

    return work, nothing


def kept_as_well(cp: Any) -> Made:
    sizes: list[float] = []

    def work(x: Any) -> Any:
        size = cp.linalg.norm(x).item() + 1
        values = cp.linalg.svd(cp.outer(x, x) / size)[1]
        sizes.append(values.sum().item())
        return values * size, float(values.max())

    return work, lambda: sizes


LAUNCHED = [one_after_the_other, changing_what_is_outside, kept_as_well]
RIGHT = [
    *LAUNCHED, compared_before_and_after, with_numbers_of_attributes, drawing_on_the_host, drawing_on_the_device,
    refused_by_the_library,
]  # fmt: skip


@pytest.mark.parametrize('maker', LAUNCHED, ids=lambda one: one.__name__)
def test_it_is_launched_in_pieces(sim: Any, maker: Callable[[Any], Made]) -> None:
    fn = alike(sim, maker, ordinary(10))
    assert launches(fn) >= 6
    assert fn.variants[0].state == 'pieces'


@pytest.mark.parametrize('maker', RIGHT, ids=lambda one: one.__name__)
def test_it_is_right(sim: Any, maker: Callable[[Any], Made]) -> None:
    finite = [one for one in ODD if abs(one) < 1e100]
    alike(sim, maker, [*ordinary(6), *finite, *ordinary(4)])


class Backends:
    """What libraries do that find their functions by a name of this thread."""

    def __init__(self, cp: Any) -> None:
        self.cp, self.here = cp, threading.local()

    def norm(self, x: Any) -> Any:
        return getattr(self.here.__dict__.get('backend', self.cp), 'linalg').norm(x)  # noqa: B009


@pytest.mark.skipif(sys.version_info < (3, 12), reason='this Python does not tell what the dictionary is taken of')
def test_an_item_of_a_dictionary_that_is_named_is_no_reason(sim: Any) -> None:
    backends = Backends(sim)

    def work(x: Any) -> Any:
        size = backends.norm(x).item() + 1
        return x / size, size

    assert launches(alike(sim, lambda cp: (work, nothing), ordinary(9))) >= 5


class Kept:
    """It keeps a number under a name by which code finds it in the dictionary, too."""

    def __init__(self) -> None:
        self.size = 1.0


KEPT = Kept()

FOUND: dict[str, Callable[[Kept], Any]] = {
    'get': lambda kept: int(kept.__dict__.get('size')),  # type: ignore[arg-type]
    'get with another': lambda kept: int(kept.__dict__.get('size', 0)),
    'item': lambda kept: int(kept.__dict__['size']),
    'vars': lambda kept: int(vars(kept)['size']),
    'pop': lambda kept: int(kept.__dict__.pop('size')),
    'values': lambda kept: [int(one) for one in kept.__dict__.values()],
    'a variable': lambda kept: (lambda name: int(kept.__dict__.get(name)))('size'),  # type: ignore[arg-type]
    'the method': lambda kept: (lambda get: int(get('size')))(kept.__dict__.get),  # type: ignore[arg-type]
    'in two steps': lambda kept: (lambda there: int(there['size']))(kept.__dict__),
}


@pytest.mark.parametrize('new', [True, False], ids=['new', 'old'])
@pytest.mark.parametrize('how', FOUND)
def test_a_number_found_in_a_dictionary_is_seen(sim: Any, how: str, new: bool) -> None:
    def work(x: Any) -> Any:
        kept = Kept() if new else KEPT
        kept.size = float(x.sum())
        return x * kept.size, FOUND[how](kept)

    alike(sim, lambda cp: (work, nothing), [*ordinary(8), -3.0, 0.5, 0.25])

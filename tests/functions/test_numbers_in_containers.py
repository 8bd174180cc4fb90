"""Launches reckon with a number that was in a list or a dict, unless an operator may make another container."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck

#: What puts the number ``v`` into a container and takes ``w`` out of it, by an operator that lists have, too.
JOINED = (
    'w = ([[v]] + [[1.0]])[0][0]',
    'w = ([[v]] * 2)[1][0]',
    'w = ([(v, 1.0)] + [])[0][0]',
    'w = ([{"v": v}] * 2)[0]["v"]',
    'a = [[v]]\n    a += [[1.0]]\n    w = a[0][0]',
    'a = []\n    a.append((v, 1.0))\n    w = (a[0] + ())[0]',
    'a = []\n    a.append([v, 1.0])\n    w = (a[0] + [])[0]',
    'w = ([v][PART] + [1.0])[0]',
    'w = ([v][PART] * 2)[0]',
    'w = ([v][::-1] + [1.0])[0]',
    'a = [v][PART]\n    a *= 2\n    w = a[0]',
    'w = max([[v]][PART], [[1.0]])[0][0]',
    'w = max([v][PART], [0.0])[0]',
    'HOLDER.v = [[v]] + []\n    w = HOLDER.v[0][0]',
)
#: The same without such an operator.
TAKEN = (
    'w = {"v": v}["v"] * 2',
    'w = [v, 1.0][0] + 1',
    'w = [[v, 1.0]][0][0] * 2',
    'w = {"v": (v, 1.0)}["v"][0] + 1',
    'a = []\n    a.append(v)\n    w = a[0] * 2',
    'a = []\n    a.append((v, 1.0))\n    w = a[0][0] * 2',
    'i = 0\n    w = [v, 1.0][i] / 2',
    'i = 0\n    w = math.sqrt([v, 1.0][i]) * 2',
    'a, b = [v, 2.0]\n    w = a + b',
)
SEEN = """
def work(x):
    v = x[0].item() + 0.0
    {how}
    return x * 2 if isinstance(w, float) and w > 5 else x
"""
SCALED = """
def work(x):
    v = x[0].item() + 0.0
    {how}
    return x * w if w > 0 else x
"""
VALUES = (1.5, 2.25, 0.5, 0.75, 1.25, 2.5, 1.75, 9.5, 1.0, 12.5)


def launches_of(cp: Any, text: str, how: str) -> int:
    import math

    class Holder:
        v: Any = None

    space: dict[str, Any] = {'math': math, 'PART': slice(0, 1), 'HOLDER': Holder()}
    exec(text.replace('{how}', how), space)
    fn = ck.graphed(space['work'])
    for value in VALUES:
        assert fn(cp.arange(3.0) + value).tolist() == space['work'](cp.arange(3.0) + value).tolist(), value
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('how', JOINED)
def test_a_number_in_joined_containers_shows_what_it_is(sim: Any, how: str) -> None:
    launches_of(sim, SEEN, how)


@pytest.mark.parametrize('how', TAKEN)
def test_a_number_that_is_taken_out_is_reckoned_with(sim: Any, how: str) -> None:
    assert launches_of(sim, SCALED, how) >= 7

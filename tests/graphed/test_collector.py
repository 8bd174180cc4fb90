"""Which objects were there before a moment, told by the generations of the garbage collector."""

from __future__ import annotations

import codecs
import gc
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed.collector import Before, functions_of
from capturekit.graphed.follow_time import FollowTime
from capturekit.graphed.watch import Watch
from tests.frozen import frozen

ROOT = Path(__file__).parents[2]


class Thing:
    pass


@pytest.fixture
def before() -> Iterator[Before]:
    with Before(FollowTime()) as made:
        yield made


OLD = Thing()


def test_old_objects_were_there_and_new_ones_were_not(before: Before) -> None:
    new, other = Thing(), [Thing()]
    assert before.had(OLD) and before.had(Thing) and before.had(gc)
    assert not before.had(new) and not before.had(other)
    assert not before.had(new)
    with frozen():
        assert before.had(OLD)
    before.made(OLD)  # as somebody tells
    assert not before.had(OLD)


@pytest.mark.parametrize('collect', [gc.collect, lambda: gc.collect(0), lambda: gc.collect(1)])
def test_new_objects_were_not_there_after_a_collection(before: Before, collect: Callable[[], Any]) -> None:
    new = Thing()
    collect()
    collect()
    assert not before.had(new)
    assert before.had(OLD)


@pytest.mark.parametrize('collect', [False, True])
def test_young_objects_were_there(collect: bool) -> None:
    young = Thing()
    with Before(FollowTime()) as before:
        if collect:
            gc.collect()
        assert before.had(young)


def test_a_place_that_is_used_again_holds_a_new_object() -> None:
    gone = [Thing() for _ in range(100)]
    gc.collect()
    places = set(map(id, gone))
    with Before(FollowTime()) as before:
        gone.clear()
        new = [Thing() for _ in range(1000)]
        assert places & set(map(id, new))
        assert not any(map(before.had, new))


def test_a_young_object_that_was_there_is_held() -> None:
    young = [Thing() for _ in range(10)]
    places = set(map(id, young))
    with Before(FollowTime()) as before:
        young.clear()
        new = [Thing() for _ in range(1000)]
        assert not places & set(map(id, new))
        assert not any(map(before.had, new))


def test_nothing_holds_a_tuple_that_is_being_made(before: Before) -> None:
    """Python fails to make a tuple that somebody else holds."""

    def items() -> Iterator[int]:
        assert not before.had([])
        yield from range(20)

    assert len(tuple(items())) == 20


def test_the_callback_is_gone_in_the_end() -> None:
    found = list(gc.callbacks)
    with Before(FollowTime()):
        assert len(gc.callbacks) == len(found) + 1
    assert gc.callbacks == found


def test_many_old_objects_cost_nothing() -> None:
    """It asks the collector for the young alone: what is listed does not grow with the process."""
    kept = [[Thing()] for _ in range(50_000)]
    gc.collect()
    listed = []
    original = gc.get_objects

    def counting(generation: int | None = None) -> list[Any]:
        found = original(generation=generation)
        listed.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, 'get_objects', counting)
        with Before(FollowTime()) as before:
            assert before.had(kept[7])
            assert not before.had(Thing())
    assert listed and sum(listed) < 20_000


def test_a_watch_that_cannot_begin_leaves_the_collector_alone() -> None:
    before = list(gc.callbacks)

    def broken(value: object) -> bool:
        raise RuntimeError('no')

    with pytest.raises(RuntimeError, match='no'):
        Watch(pytest.fail, is_array=broken, arguments=([Thing()],)).run(('it began',), {})
    assert gc.callbacks == before and sys.getprofile() is None


def test_functions_are_found_by_their_code() -> None:
    made = [lambda x, k=k: x * k for k in range(3)]
    found = functions_of(globals())[id(made[0].__code__)]
    assert {id(one) for one in found} == {id(one) for one in made}


def settable() -> Any:
    """Register a function with the codecs, which alone hold it, and return what sets its variable."""
    mark = '?'

    def replaced(error: Any) -> tuple[str, int]:
        return mark, error.end

    def set_mark(other: str) -> None:
        nonlocal mark
        mark = other

    codecs.register_error('test_collector', replaced)
    return set_mark


def test_a_frozen_function_is_not_known() -> None:
    """Objects that ``gc.freeze`` took out are in no list of the collector, where Python does not tell what runs."""
    program = """
        import gc, sys
        import capturekit as ck, cupy as cp
        from tests.graphed.test_collector import settable

        set_mark = settable()
        if sys.argv[1] == 'frozen':
            gc.freeze()
        fn = ck.graphed(lambda x: x * len('é'.encode('ascii', 'test_collector')))
        with cp.cuda.Stream(non_blocking=True):
            x = cp.ones(1)
            found = [float(fn(x)[0]) for _ in range(4)]
            set_mark("??")
            found += [float(fn(x)[0]) for _ in range(2)]
        assert found == [1.0, 1.0, 1.0, 1.0, 2.0, 2.0], found
        print(fn.variants[0].state, fn.variants[0].reason)
    """
    said = {}
    for how in ('frozen', 'free'):
        command = [sys.executable, '-c', textwrap.dedent(program), how]
        here = {**os.environ, 'CAPTUREKIT_SIMULATE': '1'}
        run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=here, check=False)
        assert run.returncode == 0, run.stderr
        said[how] = run.stdout
    assert said['frozen'].startswith('eager') and said['free'].startswith('eager')
    followed = 'runs replaced, which is reached in a way that is not followed'
    assert followed in said['frozen'] and followed in said['free']


def makes_garbage(x: Any) -> Any:
    for _ in range(50_000):
        loop: list[Any] = []
        loop.append(loop)
    return x + 1


def collections_during(run: Callable[[], Any]) -> int:
    """How often the collector begins while ``makes_garbage`` runs."""
    found: list[bool] = []

    def note(phase: str, info: dict[str, int]) -> None:
        frames = traceback.walk_stack(sys._getframe())
        found.append(phase == 'start' and any(frame.f_code is makes_garbage.__code__ for frame, _line in frames))

    gc.callbacks.append(note)
    try:
        run()
    finally:
        gc.callbacks.remove(note)
    return sum(found)


def test_it_is_held_off_while_a_run_is_followed(sim: Any) -> None:
    assert collections_during(lambda: makes_garbage(sim.ones(2))) > 0
    fn = ck.graphed(makes_garbage)
    assert collections_during(lambda: fn(sim.ones(2))) == 0
    assert gc.isenabled()

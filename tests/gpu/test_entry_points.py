"""Every guarded entry point, called inside an open capture: on a GPU, and on the simulated device.

One table, ``CASES``, in tests/gpu/guarded. Each row is a call made in the middle of a strict capture that has a forked
lane ``side`` and a world around it (an outside stream, events recorded outside, a graph of CuPy's own ...). A row is
either refused, with its own exception, or allowed. Whichever it is: afterwards the driver itself says that the origin
is still Active, the block goes on, and the graph that it makes gives the right numbers when it is launched.

``CAPTUREKIT_TABLE=path`` writes what happened on the GPU as CSV; tests/gpu/guarded/results.csv is such a file.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard.entry_points import ENTRIES, SEAMS, Entry
from capturekit.guard.patching import resolve
from tests.captured import simulated
from tests.gpu.guarded.calls import CASES, escaped, keep, legacy, like_eager, unsupported
from tests.gpu.guarded.scene import COUNT, CURAND, Around, Case, N, Scene, cp, loaded, rt
from tests.gpu.world import in_process, status, world

#: Rows that the stand-in can't make: the rest is called on the simulated device as well.
NOT_SIMULATED = re.compile(
    r'.*cuda\.runtime\.('
    r'(malloc|malloc3D|free)Array-good|memcpy2D(To|From)ArrayAsync|memcpy3DAsync-(origin|lane)'  # CUDA arrays
    r'|(device|mem)\w*Pool\w*-good|mallocFromPoolAsync'  # the driver's memory pools
    r'|host(Un)?[rR]egister-good|deviceSetLimit-good|memAdvise-good)'
    r'|.*curand\.generateLongLong-'  # quasi-random generators
)


def absent(entry: str) -> bool:
    """True for an optional entry that the CuPy of this machine has not, or can't load the library of."""
    found = next(one for one in ENTRIES if str(one) == entry)
    try:
        return not hasattr(resolve(found.holder), found.name) and found.optional
    except (AttributeError, ImportError):
        return found.optional


def lacking(case: Case) -> str:
    """The entry or module without which a row can't be called here."""
    if absent(case.entry):
        return case.entry
    return case.needs if case.needs and not loaded(case.needs) else ''


@dataclass
class Line:
    """What became of a row."""

    case: Case
    outcome: str
    origin: str
    lane: str
    launched: bool = False


LINES: list[Line] = []


@pytest.fixture(scope='module')
def on_gpu() -> Around:
    pytest.importorskip('cupy')
    pytest.importorskip('cuda.bindings')
    return Around()


@pytest.fixture(params=['simulated', pytest.param('gpu', marks=pytest.mark.gpu)])
def around(request: pytest.FixtureRequest) -> Iterator[Around]:
    if request.param == 'gpu':
        yield request.getfixturevalue('on_gpu')
        return
    with simulated():
        yield Around()


@pytest.fixture(scope='module', autouse=True)
def _table() -> Iterator[None]:
    yield
    path = os.environ.get('CAPTUREKIT_TABLE')
    if path and LINES:
        with open(path, 'w', encoding='utf-8', newline='') as file:
            writer = csv.writer(file, lineterminator='\n')
            writer.writerow(['entry', 'call', 'mode', 'outcome', 'origin', 'lane', 'launched'])
            for line in LINES:
                case, launched = line.case, 'yes' if line.launched else 'no'
                writer.writerow([case.entry, case.call, case.mode, line.outcome, line.origin, line.lane, launched])


def attempt(case: Case, scene: Scene) -> BaseException | None:
    """Make the call; return what it raised."""
    try:
        case.run(scene)
    except (RuntimeError, MemoryError, TypeError, ValueError, AttributeError, AssertionError) as error:
        return error
    return None


def outcome(error: BaseException | None) -> str:
    if error is None:
        return 'allowed'
    return type(error).__name__ + ('' if isinstance(error, ck.CaptureError) else " (CuPy's own)")


@pytest.mark.gpu
@pytest.mark.parametrize('case', CASES, ids=str)
def test_refused_or_allowed_and_the_capture_unharmed(case: Case, on_gpu: Around) -> None:
    if name := lacking(case):
        pytest.skip(f'{name} is not to be had here: this CuPy lacks it, or its library can not be loaded')
    LINES.append(called(case, on_gpu))


@pytest.mark.parametrize('entry', sorted({case.entry for case in CASES}))
def test_the_same_on_the_simulated_device(entry: str) -> None:
    with simulated():
        if absent(entry):
            pytest.skip(f'the stand-in has no {entry}')
        around = Around()
        for case in CASES:
            if case.entry == entry and not lacking(case) and not NOT_SIMULATED.match(str(case)):
                called(case, around)


@pytest.mark.parametrize('case', [case for case in CASES if NOT_SIMULATED.match(str(case))], ids=str)
def test_what_the_stand_in_lacks_it_refuses(case: Case) -> None:
    """A row that begins to work there leaves the list."""
    if case.needs and not loaded(case.needs):
        pytest.skip(f'{case.needs} is not installed')
    with simulated(), pytest.raises((AssertionError, RuntimeError)):
        called(case, Around())


@contextmanager
def scene_of(around: Around, *more: Any, **options: Any) -> Iterator[Scene]:
    """A scene in a capture that joins its lane and more streams in the end, and whose graph gives the right numbers."""
    with ck.capture(**options) as cap:
        scene = Scene(around, cap)
        yield scene
        for stream in (scene.side, *more):
            cap.join(stream)
        result = scene.a + scene.b
    for _ in range(2):
        cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert np.array_equal(result.get(), (np.arange(N) + 1.0) * 3)


def called(case: Case, around: Around) -> Line:
    """Make a row's call in a capture, and see to it that what must hold afterwards does."""
    before = world()
    around.w.fill(1)
    around.scratch.fill(0)
    cp.cuda.Device().synchronize()
    with ck.capture(mode=case.mode) as cap:
        scene = Scene(around, cap)
        error = attempt(case, scene)
        line = Line(case, outcome(error), status(scene.origin), status(scene.side))
        scene.origin.wait_event(scene.side.record())
        result = scene.a + scene.b
    for _ in range(2):
        cap.graph.launch()
    cp.cuda.Device().synchronize()
    line.launched = bool(np.array_equal(result.get(), (np.arange(N) + 1.0) * 3))
    if case.expect is None:
        assert error is None, f'{case} was refused: {error!r}'
    else:
        assert isinstance(error, case.expect), f'{case}: {error!r}, not {case.expect.__name__}'
    assert (line.origin, line.lane) == ('Active', 'Active'), str(case)
    assert line.launched, str(case)
    if case.check is not None:
        assert case.check(scene), str(case)
    if isinstance(error, ck.CaptureError):
        assert_says_where(error)
        assert float(around.w[0]) == 1, f'{case}: the refused work ran'
    assert world() == before, str(case)
    assert status(around.side) == status(around.outside) == status(around.other) == 'None', str(case)
    cap.graph.close()
    return line


def assert_says_where(error: ck.CaptureError) -> None:
    """The error carries its data, and names this file's line as the user's."""
    assert error.operation
    assert error.rule
    assert error.remedy
    assert error.location is not None
    assert Path(__file__).parent in Path(error.location.file).parents
    assert len(str(error).splitlines()) == 3


def test_every_entry_is_in_the_table() -> None:
    listed = {case.entry for case in CASES}
    # NCCL's are called in tests/guard/test_collectives.py, what only notes accesses in test_library_calls.py, and those
    # of Python's that refuse nothing in test_warned.py and tests/graphed/test_withheld_output.py
    elsewhere = ('calls.known', 'swallowed.', 'effects.warning', 'output.')
    others = [e for e in ENTRIES if not (e.loaded or e.verb.startswith(elsewhere))]
    assert [str(entry) for entry in others if str(entry) not in listed] == []
    assert listed - {str(entry) for entry in ENTRIES} == set()


def test_every_verb_is_tried_where_it_is_refused_and_allowed() -> None:
    """Entries that are never refused, and entries that are never allowed, are these and no others."""
    verbs: dict[str, set[bool]] = {}
    by_name: dict[str, Entry] = {str(entry): entry for entry in ENTRIES}
    for case in CASES:
        verbs.setdefault(by_name[case.entry].verb.rpartition('.')[2], set()).add(case.expect is None)
    always = sorted(verb for verb, answers in verbs.items() if answers == {True})
    never = sorted(verb for verb, answers in verbs.items() if answers == {False})
    assert always == [
        'allocates_inside', 'allocator_set', 'array_new', 'array_setitem', 'arrays_joined', 'copied_to',
        'current_stream', 'event_made', 'event_record', 'flags', 'generator_state', 'handed_out', 'handle_made',
        'handle_read', 'is_capturing', 'linalg_config', 'moved', 'plan_used', 'pool_malloc', 'priority',
        'random_seeded', 'stream_eq', 'stream_made', 'stream_record', 'thread_fed',
    ]  # fmt: skip
    assert never == [
        'allocator_chosen', 'array_set', 'captured_call', 'device_wait', 'host_func', 'legacy_work', 'seam',
        'stream_call',
    ]  # fmt: skip


def test_the_rows_have_names_of_their_own() -> None:
    names = sorted(map(str, CASES))
    assert [a for a, b in itertools.pairwise(names) if a == b] == []


@pytest.mark.parametrize('strict', [True, False])
def test_what_no_capture_can_hold_is_refused_by_name(around: Around, strict: bool) -> None:
    """One capture meets them all, and goes on."""
    with scene_of(around, strict=strict) as scene:
        for name in (name for name in SEAMS if not absent(name)):
            with pytest.raises(ck.UnsupportedCallError) as info:
                resolve(name)()
            assert info.value.operation == f'{name}()'
            assert_says_where(info.value)
            assert status(scene.origin) == status(scene.side) == 'Active', name


def test_draws_follow_the_eager_sequence_in_adapting_mode(around: Around) -> None:
    """On the origin, and on a stream that the capture forks by itself."""
    if not loaded(CURAND):
        pytest.skip('cuRAND can not be loaded here')
    with ck.capture(strict=False) as cap:
        scene = Scene(around, cap)
        a = scene.state.random_sample(COUNT)
        with scene.other:
            b = scene.state.normal(size=COUNT) + scene.state.gamma(2.0, size=COUNT)
        scene.other.synchronize()
        keep(scene, a + b)
    assert like_eager(
        lambda s: s.twin.random_sample(COUNT) + (s.twin.normal(size=COUNT) + s.twin.gamma(2.0, size=COUNT))
    )(scene)
    assert status(around.side) == status(around.other) == 'None'
    cap.graph.close()


def test_capturekits_own_graph_into_a_capture(around: Around) -> None:
    """`cap.graph.launch()` and `upload()` of a graph that capturekit made are judged as CuPy's are."""
    with ck.capture() as first:
        around.scratch.fill(0)
    with scene_of(around) as scene:
        for call, what in (
            (lambda: first.graph.launch(), unsupported),
            (lambda: first.graph.launch(scene.side), unsupported),
            (lambda: first.graph.launch(scene.outside), escaped),
            (lambda: first.graph.launch(around.null), legacy),
            (lambda: first.graph.upload(), unsupported),
        ):
            with pytest.raises(what):
                call()
            assert status(scene.origin) == status(scene.side) == 'Active'
        first.graph.upload(scene.outside)


def test_a_blocking_lane_keeps_the_legacy_stream_away(around: Around) -> None:
    """Beside a blocking stream in the capture any use of the legacy stream would lose it (906)."""
    blocking = cp.cuda.Stream()
    with scene_of(around, blocking) as scene:
        blocking.wait_event(scene.e)
        for call in (
            around.null.record,
            around.null.synchronize,
            lambda: around.null.wait_event(scene.before),
            lambda: scene.scratch.data.memset_async(0, 8, around.null),
            lambda: rt.memset(scene.scratch.data.ptr, 0, 8),
        ):
            with pytest.raises(ck.LegacyStreamError):
                call()
            assert status(scene.origin) == status(blocking) == 'Active'


HOST_FUNCTION = """
    import cupy as cp, capturekit as ck
    from warnings import simplefilter
    simplefilter('ignore')
    x = cp.arange(8.0); x + 1
    side = cp.cuda.Stream(non_blocking=True)
    seen = []
    with ck.capture() as cap:
        a = x + 1
        side.wait_event(cap.stream.record())
        try:
            {call}
        except ck.UnsupportedCallError:
            seen = None
        cap.join(side)
        b = a + 1
    for _ in range(3):
        cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert b.tolist() == (cp.arange(8.0) + 2).tolist()
    assert seen is None or seen == [5, 5, 5], seen
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    'call',
    [
        'cp.cuda.runtime.launchHostFunc(side.ptr, seen.append, 5)',
        'cp.cuda.ExternalStream(side.ptr).launch_host_func(seen.append, 5)',
        'cp.cuda.Stream.from_external(side).launch_host_func(seen.append, 5)',
        'side.launch_host_func(seen.append, 5)',
    ],
)
def test_host_functions_are_refused_or_survive_every_launch(call: str) -> None:
    """In a process of its own: a host function that was freed after its first call would end it."""
    in_process(HOST_FUNCTION.format(call=call))

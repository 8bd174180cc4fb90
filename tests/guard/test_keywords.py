"""Arguments by CuPy's own names: the guard takes every call that CuPy takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard.signatures import in_order, signature_of


def extension(text: str) -> Any:
    """A function as an extension module has it: what it takes stands in its text alone."""

    class Function:
        __doc__ = text
        __signature__ = 'none'

        def __call__(self) -> None:
            raise NotImplementedError

    return Function()


def test_elapsed_time_by_name_is_refused_like_by_place(sim: Any) -> None:
    with ck.capture() as cap:
        event = cap.stream.record()
        for _ in range(2):
            with pytest.raises(ck.SynchronizationError):
                sim.cuda.get_elapsed_time(event, event)
            with pytest.raises(ck.SynchronizationError):
                sim.cuda.get_elapsed_time(end_event=event, start_event=event)


def test_copies_by_name_are_recorded(sim: Any) -> None:
    x, y = sim.arange(4.0), sim.zeros(4)
    runtime = sim.cuda.runtime
    with ck.capture() as cap:
        runtime.memcpyAsync(
            stream=cap.stream.ptr, kind=runtime.memcpyDeviceToDevice, size=x.nbytes, src=x.data.ptr, dst=y.data.ptr
        )
    cap.graph.launch()
    assert np.array_equal(y.get(), [0, 1, 2, 3])
    assert cap.recording.node_count == 1


def test_copies_by_name_are_linted(sim: Any) -> None:
    x, y = sim.arange(4.0), sim.zeros(4)

    def copy() -> None:
        stream = sim.cuda.get_current_stream().ptr
        sim.cuda.runtime.memcpyAsync(dst=y.data.ptr, src=x.data.ptr, size=x.nbytes, kind=3, stream=stream)

    assert ck.lint(copy).ok


def test_a_wrong_name_is_cupys_to_refuse(sim: Any) -> None:
    with ck.capture() as cap, pytest.raises(TypeError, match='strm'):
        sim.cuda.runtime.memsetAsync(1, 0, 8, strm=cap.stream.ptr)


@pytest.mark.parametrize(
    ('text', 'told'),
    [
        ('memcpy(intptr_t dst, intptr_t src, size_t size, int kind)', 'dst src size kind'),
        ("get(self, stream=None, order=u'C', bool blocking=True) -> ndarray", 'self stream= order= blocking='),
        ('f(a, /, b, *, c=(1, 2), **rest)', 'a/ b *c= **rest'),
        ('f(a, *args)', 'a *args'),
        ('done()', ''),
    ],
)
def test_what_extension_modules_tell(text: str, told: str) -> None:
    found = signature_of(extension(f'{text}\n\nMore is said here.'))
    assert found is not None
    forms = {'POSITIONAL_ONLY': '{}/', 'KEYWORD_ONLY': '*{}', 'VAR_POSITIONAL': '*{}', 'VAR_KEYWORD': '**{}'}
    names = [
        forms.get(one.kind.name, '{}').format(one.name) + ('' if one.default is one.empty else '=')
        for one in found.parameters.values()
    ]
    assert ' '.join(names) == told


@pytest.mark.parametrize('text', ['', 'Waits for an event.', 'f(a[, b])'])
def test_who_tells_nothing(text: str) -> None:
    assert signature_of(extension(text)) is None


def test_only_what_follows_is_put_in_its_place() -> None:
    function = extension('f(a, b, c=1, d=2)')

    def verb(original: Any, first: Any, *others: Any) -> None: ...

    def free(original: Any, **named: Any) -> None: ...

    assert in_order(verb, function, (1,), {'c': 3, 'b': 2}) == ((1, 2, 3), {})
    assert in_order(verb, function, (1,), {'d': 4, 'b': 2}) == ((1, 2), {'d': 4})
    assert in_order(verb, function, (1,), {'z': 3}) == ((1,), {'z': 3})
    assert in_order(free, function, (1,), {'b': 2}) == ((1,), {'b': 2})
    assert in_order(verb, extension(''), (1,), {'b': 2}) == ((1,), {'b': 2})

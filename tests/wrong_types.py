"""What the arguments of the public functions and methods do not take: a table of calls, each with a place for a value.

``python -m tests.wrong_types NAME`` makes the calls of one row, in a process of its own. Every value that does not fit
must be a TypeError or a ValueError at the call.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import capturekit as ck
from tests.captured import graph_at

#: What is tried, by name.
VALUES: dict[str, Any] = {
    'number': 3, 'negative': -1, 'fraction': 1.5, 'boolean': True, 'text': 'text', 'bytes': b'b', 'none': None,
    'object': object(), 'list': [], 'dict': {}, 'function': len, 'class': int, 'numbers': [1, 2], 'texts': ['a'],
}  # fmt: skip
#: By the values that fit: calls, in which ``v`` is the value and the other names are those of :func:`world`.
FITTING = {
    'none': """
        ck.capture(v); ck.capture(pool=v); ck.capture(rehearsal=v); ck.capture(into=v);
        ck.capture(update=v);
        ck.capture(after=v); ck.capture(lanes=v); ck.capture(memory=v); ck.graphed(pool=v);
        ck.graphed(lanes=v); ck.graphed(memory=v); graphed.explain(v); graph.concurrency(v); graph.measure(1, 1,
        v); graph.upload(v); graph.launch(v)""",
    'boolean': """
        ck.capture(strict=v); ck.capture(lines=v); ck.capture(pieces=v); ck.capture(fuse=v);
        ck.capture(watch=v); ck.graphed(strict=v); ck.graphed(pieces=v); ck.graphed(pure=v); ck.graphed(fuse=v);
        experiment(check=v); ck.statistics(reset=v); graph.races(observe=v); graph.relane(report=v);
        graph.fuse(report=v)""",
    '': """
        ck.capture(mode=v); ck.graphed(checks=v); ck.parallel(branch, assign=v); ck.experiment(v, rounds=1);
        experiment(assignments=v); experiment(capture=v); ck.look(v);
        ck.capture(options=v); ck.reads(x, v); ck.writes(x, v);
        cap.embed(v); cap.parallel(branch, assign=v); cap.join(v); cap.while_(v); cap.if_(v); cap.if_else(v);
        cap.switch(v, 2); graph.verify(v, outputs=y); verify(outputs=v); graph.set_kernel(v);
        graph.set_memcpy(v); graph.set_host(0, v); graph.set_event(0, v); graph.set_child(0, v);
        graph.disable(v); graph.enable(v); graph.enabled(v); graph.rebind(v); graph.rebind((v, x));
        graph.rebind((x, v)); graph.update(v); graph.fuse(v); ck.Recording.from_json(v)""",
    'number negative none list dict bytes numbers': """
        ck.capture(into=graph_at(graph.graph), after=v)""",
    'boolean none': """
        ck.capture(check_races=v)""",
    'number none': """
        ck.capture(memory_limit=v); ck.graphed(lanes='auto', memory_limit=v); ck.parallel(branch,
        lanes=v); experiment(launches=v); cap.parallel(branch, lanes=v); cap.while_(flag, limit=v);
        graph.set_kernel(0, shared=v); graph.set_memcpy(1, dst=v); graph.set_memcpy(1, nbytes=v);
        graph.set_memset(2, dst=v); graph.set_memset(2, value=v); graph.set_memset(2, nbytes=v)""",
    'function class none': """
        ck.graphed(v); experiment(progress=v)""",
    'number': """
        ck.graphed(limit=v); ck.fork(v); experiment(rounds=v); cap.fork(v); cap.switch(flag, v);
        graph.debug_dot_str(v); graph.measure(v); graph.measure(1, v); verify(rounds=v); graph.relane(rounds=v);
        ck.render.to_frame(recording, v)""",
    'number boolean': """
        ck.graphed(check=v)""",
    'number negative none numbers': """
        ck.fork(2, priority=v); ck.parallel(branch, branch, priority=v); cap.fork(2, priority=v)""",
    'none numbers': """
        ck.fork(2, devices=v); cap.fork(2, devices=v)""",
    'class': """
        ck.parallel(branch, v); ck.lint(v); ck.rehearse(v); cap.parallel(branch, v)""",
    'number numbers': """
        experiment(lanes=v)""",
    'numbers': """
        experiment(priorities=v)""",
    'number fraction none': """
        experiment(rtol=v); experiment(atol=v); verify(rtol=v); verify(atol=v)""",
    'text bytes none': """
        graph.show(v); recording.show(v)""",
    'none list': """
        verify(values=v); ck.render.to_trace(recording, v)""",
    'number none numbers': """
        graph.set_kernel(0, grid=v)""",
    'none dict': """
        graph.set_kernel(0, args=v)""",
    'text bytes': """
        ck.Recording.load(v); recording.save(v); ck.Experiment.load(v)""",
    'dict': """
        ck.Timeline.from_json(v)""",
}


def _calls() -> Iterator[tuple[str, str]]:
    for fits, calls in FITTING.items():
        yield from ((' '.join(call.split()), fits) for call in calls.split(';'))
    yield from ((f'ck.render.{name}(v)', '') for name in ck.render.__all__)


#: Each call, and which of the values fit.
CALLS = dict(_calls())


def _made(call: str, names: dict[str, Any]) -> None:
    """Make a call; one of an open capture leaves it as it was, and it goes on to a good graph."""
    if not call.startswith('cap.'):
        eval(call, names)
        return
    with ck.capture() as cap:
        y = names['x'] + 1
        try:
            eval(call, {**names, 'cap': cap})
        finally:
            y += 1
    cap.graph.launch()
    assert float(y[1]) == 3.0
    cap.graph.close()


def world(cp: Any) -> dict[str, Any]:
    """A graph with a kernel, a copy and a memset, its arrays, and short calls."""
    x, y = cp.arange(4.0), cp.zeros(4)
    with ck.capture() as cap:
        cp.multiply(x, 2, out=y)
        z = x.copy()
        z.data.memset_async(0, z.nbytes)
    cap.graph.launch()

    def experiment(**given: Any) -> Any:
        return ck.experiment([lambda: x + 1, lambda: x + 2], **{'rounds': 1, 'launches': 1, 'lanes': 1, **given})

    def verify(**given: Any) -> Any:
        return cap.graph.verify(lambda a: a * 2, x, **{'outputs': y, 'rounds': 1, **given})

    return {
        'ck': ck, 'graph_at': graph_at, 'branch': lambda: None, 'x': x, 'y': y, 'z': z, 'flag': cp.ones((), 'i4'),
        'graph': cap.graph, 'recording': cap.graph.describe(), 'experiment': experiment, 'verify': verify,
        'graphed': ck.graphed(lambda a: a + 1),
    }  # fmt: skip


def accepted(cp: Any, name: str) -> list[str]:
    """Make the calls of a row, and return what was not refused as it should be."""
    names, fits = world(cp), CALLS[name]
    wrong = []
    for kind, value in VALUES.items():
        if kind in fits.split():
            continue
        try:
            _made(name, {**names, 'v': value})
        except (TypeError, ValueError, IndexError) as error:  # IndexError: a node that the graph has not
            if not str(error):
                wrong.append(f'{kind}: {error!r}')
        except Exception as error:
            wrong.append(f'{kind}: {type(error).__name__}: {error}')
        else:
            wrong.append(f'{kind}: nothing was raised')
    x = cp.arange(4.0)
    with ck.capture() as cap:
        y = x + 1
    cap.graph.launch()
    assert float(y.sum()) == 10.0
    return wrong


if __name__ == '__main__':
    import cupy

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        left = accepted(cupy, sys.argv[1])
        os.chdir('/')
    print('\n'.join(left))
    sys.exit(bool(left))

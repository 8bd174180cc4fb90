"""What the arguments of the public functions and methods do not take: a table of calls, each with a place for a value.

``python -m tests.wrong_types NAME`` makes the calls of one row, in a process of its own. Every value that does not fit
must be a TypeError or a ValueError at the call.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import capturekit as ck
from tests.captured import graph_at

#: What is tried, by name.
VALUES: dict[str, Any] = {
    'number': 3, 'negative': -1, 'fraction': 1.5, 'boolean': True, 'text': 'text', 'bytes': b'b', 'none': None,
    'object': object(), 'list': [], 'dict': {}, 'function': len, 'class': int, 'numbers': [1, 2], 'texts': ['a'],
}  # fmt: skip
_COUNT = 'number'
_FLAG = 'boolean'
_CALL = 'function class'


def _captured(call: Callable[[ck.Capture, Any, Any], object]) -> Callable[[Any, Any], object]:
    """A call that is made in an open capture, which goes on to a good graph."""

    def made(world: Any, value: Any) -> object:
        with ck.capture() as cap:
            y = world.x + 1
            try:
                call(cap, world, value)
            finally:
                y += 1
        cap.graph.launch()
        assert float(y[1]) == 3.0
        cap.graph.close()
        return None

    return made


def _branch() -> None:
    pass


#: By name: the call, and which of the values fit.
CALLS: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    'capture stream': (lambda w, v: ck.capture(v), 'none'),
    'capture strict': (lambda w, v: ck.capture(strict=v), _FLAG),
    'capture mode': (lambda w, v: ck.capture(mode=v), ''),
    'capture pool': (lambda w, v: ck.capture(pool=v), 'none'),
    'capture rehearsal': (lambda w, v: ck.capture(rehearsal=v), 'none'),
    'capture lines': (lambda w, v: ck.capture(lines=v), _FLAG),
    'capture into': (lambda w, v: ck.capture(into=v), 'none'),
    'capture after': (
        lambda w, v: ck.capture(into=graph_at(w.graph.graph), after=v), 'number negative none list dict bytes numbers',
    ),
    'capture after alone': (lambda w, v: ck.capture(after=v), 'none'),
    'capture update': (lambda w, v: ck.capture(update=v), 'none'),
    'capture check_races': (lambda w, v: ck.capture(check_races=v), _FLAG + ' none'),
    'capture pieces': (lambda w, v: ck.capture(pieces=v), _FLAG),
    'capture lanes': (lambda w, v: ck.capture(lanes=v), 'none'),
    'capture memory_limit': (lambda w, v: ck.capture(lanes='auto', memory_limit=v), _COUNT + ' none'),
    'capture fuse': (lambda w, v: ck.capture(fuse=v), _FLAG),
    'capture watch': (lambda w, v: ck.capture(watch=v), _FLAG),
    'capture memory': (lambda w, v: ck.capture(memory=v), 'none'),
    'graphed': (lambda w, v: ck.graphed(v), _CALL + ' none'),
    'graphed strict': (lambda w, v: ck.graphed(strict=v), _FLAG),
    'graphed checks': (lambda w, v: ck.graphed(checks=v), ''),
    'graphed pieces': (lambda w, v: ck.graphed(pieces=v), _FLAG),
    'graphed limit': (lambda w, v: ck.graphed(limit=v), _COUNT),
    'graphed pool': (lambda w, v: ck.graphed(pool=v), 'none'),
    'graphed pure': (lambda w, v: ck.graphed(pure=v), _FLAG),
    'graphed check': (lambda w, v: ck.graphed(check=v), _COUNT + ' ' + _FLAG),
    'graphed fuse': (lambda w, v: ck.graphed(fuse=v), _FLAG),
    'graphed lanes': (lambda w, v: ck.graphed(lanes=v), 'none'),
    'graphed memory_limit': (lambda w, v: ck.graphed(lanes='auto', memory_limit=v), _COUNT + ' none'),
    'graphed memory': (lambda w, v: ck.graphed(memory=v), 'none'),
    'Graphed.explain file': (lambda w, v: w.graphed.explain(v), 'none'),
    'fork n': (lambda w, v: ck.fork(v), _COUNT),
    'fork priority': (lambda w, v: ck.fork(2, priority=v), 'number negative none numbers'),
    'fork devices': (lambda w, v: ck.fork(2, devices=v), 'none numbers'),
    'parallel branch': (lambda w, v: ck.parallel(_branch, v), 'class'),
    'parallel lanes': (lambda w, v: ck.parallel(_branch, lanes=v), _COUNT + ' none'),
    'parallel priority': (lambda w, v: ck.parallel(_branch, _branch, priority=v), 'number negative none numbers'),
    'parallel assign': (lambda w, v: ck.parallel(_branch, assign=v), ''),
    'experiment program': (lambda w, v: ck.experiment(v, rounds=1), ''),
    'experiment lanes': (lambda w, v: w.experiment(lanes=v), _COUNT + ' numbers'),
    'experiment assignments': (lambda w, v: w.experiment(assignments=v), ''),
    'experiment priorities': (lambda w, v: w.experiment(priorities=v), 'numbers'),
    'experiment capture': (lambda w, v: w.experiment(capture=v), ''),
    'experiment launches': (lambda w, v: w.experiment(launches=v), _COUNT + ' none'),
    'experiment rounds': (lambda w, v: w.experiment(rounds=v), _COUNT),
    'experiment check': (lambda w, v: w.experiment(check=v), _FLAG),
    'experiment rtol': (lambda w, v: w.experiment(rtol=v), 'number fraction none'),
    'experiment atol': (lambda w, v: w.experiment(atol=v), 'number fraction none'),
    'experiment progress': (lambda w, v: w.experiment(progress=v), _CALL + ' none'),
    'lint': (lambda w, v: ck.lint(v), 'class'),
    'look': (lambda w, v: ck.look(v), ''),
    'reads': (lambda w, v: ck.reads(w.x, v), ''),
    'writes': (lambda w, v: ck.writes(w.x, v), ''),
    'rehearse': (lambda w, v: ck.rehearse(v), 'class'),
    'statistics reset': (lambda w, v: ck.statistics(reset=v), _FLAG),
    'cap.embed': (_captured(lambda c, w, v: c.embed(v)), ''),
    'cap.fork n': (_captured(lambda c, w, v: c.fork(v)), _COUNT),
    'cap.fork priority': (_captured(lambda c, w, v: c.fork(2, priority=v)), 'number negative none numbers'),
    'cap.fork devices': (_captured(lambda c, w, v: c.fork(2, devices=v)), 'none numbers'),
    'cap.parallel branch': (_captured(lambda c, w, v: c.parallel(_branch, v)), 'class'),
    'cap.parallel lanes': (_captured(lambda c, w, v: c.parallel(_branch, lanes=v)), _COUNT + ' none'),
    'cap.parallel assign': (_captured(lambda c, w, v: c.parallel(_branch, assign=v)), ''),
    'cap.join': (_captured(lambda c, w, v: c.join(v)), ''),
    'cap.while_': (_captured(lambda c, w, v: c.while_(v)), ''),
    'cap.while_ limit': (_captured(lambda c, w, v: c.while_(w.flag, limit=v)), _COUNT + ' none'),
    'cap.if_': (_captured(lambda c, w, v: c.if_(v)), ''),
    'cap.if_else': (_captured(lambda c, w, v: c.if_else(v)), ''),
    'cap.switch': (_captured(lambda c, w, v: c.switch(v, 2)), ''),
    'cap.switch count': (_captured(lambda c, w, v: c.switch(w.flag, v)), _COUNT),
    'Graph.concurrency timeline': (lambda w, v: w.graph.concurrency(v), 'none'),
    'Graph.debug_dot_str flags': (lambda w, v: w.graph.debug_dot_str(v), _COUNT),
    'Graph.measure launches': (lambda w, v: w.graph.measure(v), _COUNT),
    'Graph.measure warmup': (lambda w, v: w.graph.measure(1, v), _COUNT),
    'Graph.measure by': (lambda w, v: w.graph.measure(1, 1, v), 'none'),
    'Graph.races observe': (lambda w, v: w.graph.races(observe=v), _FLAG),
    'Graph.show path': (lambda w, v: w.graph.show(v), 'text bytes none'),
    'Graph.upload stream': (lambda w, v: w.graph.upload(v), 'none'),
    'Graph.launch stream': (lambda w, v: w.graph.launch(v), 'none'),
    'Graph.verify fn': (lambda w, v: w.graph.verify(v, outputs=w.y), ''),
    'Graph.verify outputs': (lambda w, v: w.verify(outputs=v), ''),
    'Graph.verify values': (lambda w, v: w.verify(values=v), 'none list'),
    'Graph.verify rounds': (lambda w, v: w.verify(rounds=v), _COUNT),
    'Graph.verify rtol': (lambda w, v: w.verify(rtol=v), 'number fraction none'),
    'Graph.verify atol': (lambda w, v: w.verify(atol=v), 'number fraction none'),
    'Graph.set_kernel node': (lambda w, v: w.graph.set_kernel(v), ''),
    'Graph.set_kernel grid': (lambda w, v: w.graph.set_kernel(0, grid=v), 'number none numbers'),
    'Graph.set_kernel shared': (lambda w, v: w.graph.set_kernel(0, shared=v), 'number none'),
    'Graph.set_kernel args': (lambda w, v: w.graph.set_kernel(0, args=v), 'none dict'),
    'Graph.set_memcpy node': (lambda w, v: w.graph.set_memcpy(v), ''),
    'Graph.set_memcpy dst': (lambda w, v: w.graph.set_memcpy(1, dst=v), 'number none'),
    'Graph.set_memcpy nbytes': (lambda w, v: w.graph.set_memcpy(1, nbytes=v), 'number none'),
    'Graph.set_memset dst': (lambda w, v: w.graph.set_memset(2, dst=v), 'number none'),
    'Graph.set_memset value': (lambda w, v: w.graph.set_memset(2, value=v), 'number none'),
    'Graph.set_memset nbytes': (lambda w, v: w.graph.set_memset(2, nbytes=v), 'number none'),
    'Graph.set_host fn': (lambda w, v: w.graph.set_host(0, v), ''),
    'Graph.set_event event': (lambda w, v: w.graph.set_event(0, v), ''),
    'Graph.set_child other': (lambda w, v: w.graph.set_child(0, v), ''),
    'Graph.disable node': (lambda w, v: w.graph.disable(v), ''),
    'Graph.enable node': (lambda w, v: w.graph.enable(v), ''),
    'Graph.enabled node': (lambda w, v: w.graph.enabled(v), ''),
    'Graph.rebind pair': (lambda w, v: w.graph.rebind(v), ''),
    'Graph.rebind old': (lambda w, v: w.graph.rebind((v, w.x)), ''),
    'Graph.rebind new': (lambda w, v: w.graph.rebind((w.x, v)), ''),
    'Graph.update other': (lambda w, v: w.graph.update(v), ''),
    'Graph.relane report': (lambda w, v: w.graph.relane(report=v), _FLAG),
    'Graph.relane rounds': (lambda w, v: w.graph.relane(rounds=v), _COUNT),
    'Graph.fuse how': (lambda w, v: w.graph.fuse(v), ''),
    'Graph.fuse report': (lambda w, v: w.graph.fuse(report=v), _FLAG),
    'Recording.load path': (lambda w, v: ck.Recording.load(v), 'text bytes'),
    'Recording.from_json data': (lambda w, v: ck.Recording.from_json(v), ''),
    'Recording.save path': (lambda w, v: w.recording.save(v), 'text bytes'),
    'Recording.show path': (lambda w, v: w.recording.show(v), 'text bytes none'),
    'Timeline.from_json data': (lambda w, v: ck.Timeline.from_json(v), 'dict'),
    'Experiment.load path': (lambda w, v: ck.Experiment.load(v), 'text bytes'),
    **{
        f'render.{name}': (lambda w, v, name=name: getattr(ck.render, name)(v), '')  # type: ignore[misc]
        for name in ck.render.__all__
    },
    'render.to_frame height': (lambda w, v: ck.render.to_frame(w.recording, v), _COUNT),
    'render.to_trace times': (lambda w, v: ck.render.to_trace(w.recording, v), 'none list'),
}  # fmt: skip


def world(cp: Any) -> Any:
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

    return SimpleNamespace(
        x=x, y=y, z=z, flag=cp.ones((), 'i4'), graph=cap.graph, recording=cap.graph.describe(), experiment=experiment,
        verify=verify, graphed=ck.graphed(lambda a: a + 1),
    )  # fmt: skip


def accepted(cp: Any, name: str) -> list[str]:
    """Make the calls of a row, and return what was not refused as it should be."""
    made, (call, fits) = world(cp), CALLS[name]
    wrong = []
    for kind, value in VALUES.items():
        if kind in fits.split():
            continue
        try:
            call(made, value)
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

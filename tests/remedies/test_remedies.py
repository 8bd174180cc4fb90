"""Every remedy is followed as it is written: a program that is told it, and the same program with it, which is right.

The programs stand in ``programs.diff``, as those of ``capturekit explain`` do. A name is the beginning of the remedy
that the wrong program is told. Those of ``graphed.diff`` are told by a warning that a function runs eagerly, and are
launched with the remedy. Programs have the streams and the event of ``_GIVEN``; where one launches nothing,
``graph`` or ``cap.graph`` is launched at its end; where it asserts nothing, ``y`` is twice ``x`` then. The programs of
the zoo, and the examples of ``explain``, count as well where they have the code of the remedy as the message writes it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import capturekit as ck
from capturekit.cli.examples import LESSONS, _side, program
from capturekit.graphed import policy
from capturekit.guard import GUARD, watch
from capturekit.model.errors import CudaCallError
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.remedies.found import remedies, told, which
from tests.zoo.cases import all_cases
from tests.zoo.trial import run_broken

_PARTS, _OF_FUNCTIONS = (
    [part.partition('\n') for part in (Path(__file__).parent / name).read_text()[3:].split('\n== ')]
    for name in ('programs.diff', 'graphed.diff')
)
PROGRAMS = [(head, _side(code, '-'), _side(code, '+')) for head, _, code in _PARTS]
GRAPHED = [(head, _side(code, '-'), _side(code, '+')) for head, _, code in _OF_FUNCTIONS]
_LAUNCHED = '\nassert any(one.launches for one in f.variants)'
REMEDIES = remedies()
#: The beginnings of remedies that no program follows, each with its reason. This may only shrink.
UNTESTED = [line.partition(' | ')[0] for line in Path(__file__).with_name('untested.txt').read_text().splitlines()]
_GIVEN = """
import functools
from concurrent.futures import ThreadPoolExecutor
import numpy as np
stream, side, s, origin, lane = (cp.cuda.Stream(non_blocking=True) for _ in range(5))
event = cp.cuda.Event()
"""


@contextlib.contextmanager
def device() -> Iterator[None]:
    """A simulated device for one program, whose captures are ended with it."""
    simulated = SimulatedDevice(0, devices=2)
    install(simulated)
    try:
        yield
    finally:
        for stream in list(simulated.streams):
            with contextlib.suppress(CudaCallError):  # a lane, or none at all
                simulated.end_capture(stream)
        uninstall()


def run(code: str) -> None:
    """Run a program, as ``capturekit run`` does if it begins captures by hand."""
    watched = watch() if 'begin_capture' in code else contextlib.nullcontext()
    with device(), watched, contextlib.redirect_stdout(io.StringIO()):
        whole_code = program(code)
        linecache.cache['<program>'] = (len(whole_code), None, whole_code.splitlines(True), '<program>')
        try:
            exec(compile(whole_code, '<program>', 'exec'), {'__name__': '__main__'})
        finally:
            for live in list(GUARD.lives.values()):
                GUARD.manual.never_ended(live, sys.exc_info()[1])


def said(code: str) -> list[str]:
    """The remedies that a wrong program is told; none for a right one.

    Why a strict function can't be recorded is told with the remedy that a block would be told.
    """
    try:
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter('ignore')
            warnings.simplefilter('always', ck.PerformanceWarning)
            run(code)
        heard = [str(one.message) for one in shown if one.category is ck.PerformanceWarning]
        return [text for text in REMEDIES if any(f' {text.rstrip(".")}.' in words for words in heard)]
    except Exception as error:
        reason = str(getattr(error, 'rule', '')) if 'strict=True' in code else ''
        own = which(str(getattr(error, 'remedy', '')), REMEDIES)
        return [*([own] if own else []), *[text for text in REMEDIES if len(text) > 12 and text.rstrip('.') in reason]]


def whole(right: str) -> str:
    """A right program with the launch and the assertions that it has not got itself."""
    first, *asserted = right.rpartition('\nassert ') if right.count('\nassert ') == 1 else (right,)
    if '.launch(' not in right and ('as cap' in right or ' graph = ' in right):
        first += '\ncap.graph.launch()' if 'as cap' in right else '\ngraph.launch(stream)'
    if not asserted and 'assert ' not in right:
        asserted = ['\nassert cp.allclose(y, cp.arange(4.0) * 2)\n']
        if ' z = y + 1\n' in right:
            asserted += ['assert cp.allclose(z, cp.arange(4.0) * 2 + 1)\n']
    return first + ''.join(asserted)


@pytest.mark.parametrize('number', range(len(PROGRAMS + GRAPHED)), ids=[head[:40] for head, *_ in PROGRAMS + GRAPHED])
def test_a_remedy_is_told_and_its_program_is_right(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, 'TOLD', 6)
    head, wrong, right = (PROGRAMS + GRAPHED)[number]
    assert any(one.startswith(head) for one in said(_GIVEN + wrong))
    launched = _LAUNCHED if number >= len(PROGRAMS) else ''
    run(_GIVEN + whole(right).replace('\nassert ', '\ncp.cuda.Device().synchronize()\nassert ') + launched)


def followed() -> Iterator[tuple[str, str]]:
    """Remedies and programs that follow them: ours, those of the zoo and of the examples."""
    for head, _wrong, right in PROGRAMS + GRAPHED:
        yield from ((text, whole(right)) for text in REMEDIES if text.startswith(head))
    for case in all_cases():
        if case.needs or not isinstance(case.says, type):
            continue
        with device():
            cp = importlib.import_module('cupy')
            told_there = which(getattr(run_broken(case, cp).error, 'remedy', ''), REMEDIES)
            yield told_there or '', case.source('+')
    for lesson in LESSONS.values():
        if lesson.wrong and not lesson.unshown and not lesson.raises:
            yield from ((one, lesson.right) for one in said(lesson.wrong))


def test_every_remedy_is_followed_or_listed() -> None:
    rights: dict[str, list[str]] = {}
    for text, right in followed():
        rights.setdefault(text, []).append(right)
    left = [text for text in REMEDIES if not rights.get(text)]
    left += [text for text, own in rights.items() if any(not any(code in one for one in own) for code in told(text))]
    assert sorted(text for text in left if not text.startswith(tuple(UNTESTED))) == [], 'write a program for these'
    assert [head for head in UNTESTED if not any(text.startswith(head) for text in left)] == [], 'listed, and tested'

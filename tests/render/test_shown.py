"""What is printed can be read: ``repr`` one line, ``str`` the table, notebooks a picture; ``show()`` and ``svg()``."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

import capturekit as ck
from capturekit.render import to_text
from tests.render.test_failed import Notebook


def graph(sim: Any) -> ck.Graph:
    x = sim.arange(8.0)
    with ck.capture() as cap:
        y = x * 2
        with cap.fork(2) as (left, right):
            with left:
                sim.sin(y)
            with right:
                sim.cos(y)
    return cap.graph


def results(sim: Any) -> dict[str, Any]:
    made = graph(sim)

    @ck.graphed
    def step(x: Any) -> Any:
        return x + 1

    x = sim.arange(4.0)
    for _ in range(3):
        step(x)
    return {
        'Races': made.races(), 'Timeline': made.measure(), 'Concurrency': made.concurrency(),
        'Statistics': ck.statistics(), 'Recording': made.recording, 'Report': ck.lint(lambda: float(x.sum())),
        'Experiment': ck.experiment([lambda: x + 1, lambda: x * 2], lanes=2, rounds=1),
        'variant': step.variants[0],
    }  # fmt: skip


def test_repr_is_one_line_and_str_the_table(sim: Any) -> None:
    for name, value in results(sim).items():
        line, table = repr(value), str(value)
        assert '\n' not in line and line[0] == '<' and line[-1] == '>' and len(line) < 200, line
        assert name in line
        assert table and table != line
        html = value._repr_html_()
        assert html.startswith('<') and html.rstrip().endswith('>'), name


def test_they_say_what_matters(sim: Any) -> None:
    found = results(sim)
    assert repr(found['Races']).startswith('<Races: 3 nodes, ')
    assert repr(found['Races']).endswith(' on the same memory: 0 races, 0 possible>')
    assert repr(found['Report']) == '<Report: 1 found: a strict capture refuses 1, one with strict=False 1>'
    assert repr(found['variant']) == '<recorded variant, 3 calls, 2 launches>'
    assert 'us modelled on 3 lanes' in repr(found['Concurrency'])
    assert str(found['Timeline']).startswith('modelled, medians of ')
    assert '<div style="width:240.0px' in found['Concurrency']._repr_html_()
    assert found['Experiment']._repr_html_().startswith('<svg')
    assert found['Recording']._repr_html_().startswith('<iframe')
    assert '<svg' in found['variant']._repr_html_()


def test_show_prints_on_a_terminal_also_of_ascii(
    sim: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graph(sim)
    made.show()
    assert capsys.readouterr().out == to_text(made.describe())
    made.recording.show()
    assert 'lane 2' in capsys.readouterr().out
    out = io.TextIOWrapper(io.BytesIO(), encoding='ascii')
    monkeypatch.setattr(sys, 'stdout', out)
    made.close()
    made.show()
    out.flush()
    assert b'lane 2' in out.buffer.getvalue()  # type: ignore[attr-defined]
    assert made.svg() == made.recording.svg() and made.svg().startswith('<svg')


def test_show_displays_in_a_notebook(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, ipython = graph(sim), Notebook(monkeypatch, object())
    made.show()
    assert ipython.displayed == [made.recording]

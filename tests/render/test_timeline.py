"""Pictures of measured recordings: a table, an SVG with an axis of time, the trace, the page's data, Matplotlib's."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capturekit.model.recording import Recording, Timeline
from capturekit.render import (
    to_dot,
    to_html,
    to_svg,
    to_text,
    to_timeline_figure,
    to_timeline_svg,
    to_timeline_text,
    to_trace,
)
from capturekit.render.layout import clean, lay_out
from capturekit.render.timeline import busy, step_of, tick_words
from tests.render.test_render import KEPT, Page, kept, large, recordings, refuse, sound

#: Two lanes side by side, one node that takes no time.
TIMES: list[tuple[float, float] | None] = [
    (0.0, 4.0), (4.5, 14.25), (14.5, 20.0), (20.5, 61.0), (61.0, 70.0), (20.25, 42.0), (42.5, 43.0), None, (70.5, 99.5),
    (99.5, 100.0),
]  # fmt: skip


def line_of(times: list[tuple[float, float] | None]) -> Timeline:
    span = max((one[1] for one in times if one is not None), default=0.0)
    return Timeline('measured', 20, span + 2.5, span, 1.6 * span, 0.75, times, [0.25 if one else 0.0 for one in times])


def measured(times: list[tuple[float, float] | None] = TIMES) -> Recording:
    recording = Recording.load(KEPT / 'nodes.json')
    recording.timeline = line_of(times)
    return recording


def ran(recording: Recording) -> Recording:
    """Each node a microsecond after what it comes after, for two to nine microseconds."""
    before: dict[int, list[int]] = {}
    for a, b in recording.arrows:
        before.setdefault(b, []).append(a)
    times: list[tuple[float, float] | None] = []
    for number in range(len(recording.graph)):
        start = max((times[a][1] for a in before.get(number, []) if times[a]), default=-1.0) + 1  # type: ignore[index]
        times.append((start, start + 2 + number % 8))
    return replace(recording, timeline=line_of(times))


# -- as they are kept -----------------------------------------------------------------------------------------


def test_they_look_as_kept_and_text_ends_with_the_table() -> None:
    kept('timeline', 'txt', to_timeline_text(measured()))
    kept('timeline', 'svg', to_timeline_svg(measured()))
    text = to_text(measured())
    assert text.endswith('\n' + to_timeline_text(measured()))
    assert 'relaxed mode, strict=False, capturekit 0.1.0, CuPy 14.2.0, 100.00 us measured over 20 launches\n' in text


def test_busy_is_when_any_node_runs() -> None:
    at_once = [(0, 5), (3, 8), (8, 9), (20, 21), None, (1, 2), (0, 1), (0, 0), (4, 6), (20, 20.5)]
    assert busy(lay_out(measured(at_once)).boxes) == 10 and busy([]) == 0


@given(st.floats(0.01, 1e9), st.integers(1, 40))
def test_ticks_are_round_and_few(span: float, count: int) -> None:
    step = step_of(span, count)
    assert span / step <= count * (1 + 1e-9)
    assert f'{step:.3e}'[:5] in ('1.000', '2.000', '5.000')
    assert step < 1.1e-2 or span / step > count / 3
    words = [tick_words(40, 20), tick_words(1.5, 0.5), tick_words(4000, 2000), tick_words(3e6, 1e6)]
    assert words == ['40 us', '1.5 us', '4 ms', '3 s']


# -- whatever the recording holds -----------------------------------------------------------------------------


@st.composite
def with_times(draw: st.DrawFn) -> Recording:
    recording = draw(recordings)
    count = len(recording.graph) + draw(st.sampled_from([0, 0, 0, 1]))
    ends = st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)).map(sorted).map(tuple)
    times = draw(st.lists(st.one_of(st.none(), ends), min_size=count, max_size=count))
    line = line_of(times)
    line.source = draw(st.sampled_from(['measured', 'modelled', '<b>\n\0"']))
    return replace(recording, timeline=line)


@given(with_times())
@settings(deadline=None)
def test_all_pictures_are_sound(recording: Recording) -> None:
    picture = lay_out(recording)
    text = to_text(recording)
    assert all(line == clean(line) for line in text.split('\n'))
    assert len(Page(to_html(recording)).tags) == len(Page(to_html(Recording())).tags)
    ET.fromstring(to_svg(recording))
    assert to_dot(recording)
    data = json.loads(Page(to_html(recording)).scripts[0], parse_constant=refuse)
    trace = json.loads(to_trace(recording), parse_constant=refuse)
    slices = [event for event in trace['traceEvents'] if event['ph'] == 'X']
    assert [event['args']['number'] for event in slices] == list(range(len(picture.boxes)))
    if picture.timeline is None:
        assert data['times'] is None
        assert trace['otherData']['times'].startswith('no times are known')
        for make in (to_timeline_svg, to_timeline_text, to_timeline_figure):
            with pytest.raises(ValueError, match=r'graph\.measure\(\)'):
                make(recording)
        return
    sound(to_timeline_svg(recording), picture)
    assert data['times'] == [[box.time[0], round(box.time[1] - box.time[0], 3)] for box in picture.boxes]
    assert [event['ts'] for event in slices] == [box.time[0] for box in picture.boxes]
    assert trace['otherData']['times'].endswith('medians of 20 launches')


@pytest.fixture(scope='module')
def ten_thousand() -> Recording:
    return ran(large(10_000))


@pytest.mark.slow
@pytest.mark.parametrize('make', [to_timeline_svg, to_timeline_text, to_html, to_trace, to_svg, to_text, to_dot])
def test_ten_thousand_nodes(make: Any, ten_thousand: Recording) -> None:
    assert len(make(ten_thousand)) < 10_000_000


def test_long_timelines_go_on_in_bands() -> None:
    """At least a pixel for each node of ten thousand in a row, and no more bands than that takes."""
    row = ran(large(10_000, 1))
    picture = ET.fromstring(to_timeline_svg(row))
    lanes = [each for each in picture.iter('{http://www.w3.org/2000/svg}text') if each.text == 'lane 0']
    assert 10 < len(lanes) <= 60
    few = ET.fromstring(to_timeline_svg(measured([(0, 1), (1, 2), (2, 3), (3, 1e6), *[None] * 6])))
    assert sum(each.text == 'lane 0' for each in few.iter('{http://www.w3.org/2000/svg}text')) == 1


def test_nodes_without_times_lie_behind_what_they_come_after() -> None:
    recording = measured()
    (before,) = [a for a, b in recording.arrows if b == 7]
    box = lay_out(recording).boxes[7]
    assert box.time == (TIMES[before][1],) * 2  # type: ignore[index]
    assert 'start' not in dict(box.detail)
    assert dict(lay_out(recording).boxes[3].detail)['took'] == '40.50 us (spread 0.25 us)'


def test_flows_of_a_trace_begin_and_end_inside_of_their_slices() -> None:
    events = json.loads(to_trace(measured()))['traceEvents']
    slices = {(event['tid'], event['ts'], event['ts'] + event['dur']) for event in events if event['ph'] == 'X'}
    for event in events:
        if event['ph'] in 'sf':
            assert any(tid == event['tid'] and a <= event['ts'] <= b for tid, a, b in slices), event


# -- Matplotlib -----------------------------------------------------------------------------------------------


def test_a_figure(tmp_path: Path) -> None:
    pytest.importorskip('matplotlib', reason='Matplotlib is not installed')
    recording = measured()
    recording.graph[1].name = 'a$_{x}$ <b>'
    figure = to_timeline_figure(recording)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ['lane 0', 'lane 1', 'lane 2']
    bars = [path for bar in axes.collections for path in bar.get_paths()]
    assert len(bars) == 10
    assert max(path.vertices[:, 0].max() for path in bars) == 100
    assert 'measured over 20 launches' in axes.get_xlabel()
    for ending in ('svg', 'png'):
        figure.savefig(tmp_path / f'times.{ending}')
    to_timeline_figure(ran(large())).savefig(tmp_path / 'large.png')


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition('.')[0] == 'matplotlib']:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    with pytest.raises(ImportError, match='pip install matplotlib'):
        to_timeline_figure(measured())

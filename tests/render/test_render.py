"""Pictures of recordings: as they are kept in tests/data/render, and sound whatever the recording holds.

``WRITE_PICTURES=1 python -m pytest tests/render/test_render.py`` writes the kept pictures anew.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.cli import main
from capturekit.model.recording import WRITTEN_AS, LaneRecord, NodeRecord, Recording, Span, Step, Timeline
from capturekit.render import to_dot, to_frame, to_html, to_svg, to_text, to_timeline_svg, to_trace
from capturekit.render.layout import Picture, clean, fit, lay_out, short_name
from tests.command import called
from tests.test_import import python

ROOT = Path(__file__).parents[2]
KEPT = ROOT / 'tests' / 'data' / 'render'
FORMATS: dict[str, Callable[[Recording], str]] = {
    'txt': to_text,
    'dot': to_dot,
    'svg': to_svg,
    'html': to_html,
    'json': to_trace,
}
HAND_WRITTEN = ('nodes', 'spans', 'steps', 'hostile')


def kept(name: str, ending: str, made: str) -> None:
    """Assert that a picture is as it was kept."""
    path = KEPT / f'{name}.{ending}'
    if os.environ.get('WRITE_PICTURES'):
        path.write_text(made, encoding='utf-8')
    assert made == path.read_text(encoding='utf-8'), f'{path}: see the head of {__file__}'


def lane(number: int, parent: int | None = 0) -> LaneRecord:
    return LaneRecord(number, number + 16, parent, ['a.py', 1, 'f'], ['a.py', 9, 'f'])


def large(nodes: int = 10_000, lanes: int = 8) -> Recording:
    """A recording of phases: each forks all lanes and joins them."""
    recording = Recording(lanes=[lane(number, None if number == 0 else 0) for number in range(lanes)], outcome='good')
    last: dict[int, int] = {}
    for number in range(nodes):
        row = number % (2 * lanes + 1) % lanes
        after = set(last.values()) if row == 0 else {last.get(row, 0), last[0]}
        recording.arrows += [(tail, number) for tail in sorted(after)]
        detail = {'grid': [number, 1, 1], 'block': [256, 1, 1], 'arguments': [hex(number * 64), number]}
        at = ['/some/where/train.py', 10 + number % 90, 'step']
        recording.graph.append(NodeRecord('kernel', f'cupy_name_{number % 30}__float64', row, at, detail))
        last[row] = number
    return recording


# -- as they are kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize('ending', ['txt', 'dot', 'svg'])
@pytest.mark.parametrize('name', HAND_WRITTEN)
def test_hand_written_recordings_look_as_kept(name: str, ending: str) -> None:
    """Boxes that may run together share a column, spans stand for nodes and steps for spans, marks at their lines."""
    recording = Recording.load(KEPT / f'{name}.json')
    before = recording.to_json()
    kept(name, ending, FORMATS[ending](recording))
    for make in FORMATS.values():
        make(recording)
    assert recording.to_json() == before


@pytest.mark.parametrize('name', HAND_WRITTEN)
def test_graphviz_reads_the_dot(name: str) -> None:
    if shutil.which('dot') is None:
        pytest.skip('Graphviz is not installed: no `dot` on the PATH')
    made = to_dot(Recording.load(KEPT / f'{name}.json'))
    ran = subprocess.run(['dot', '-Tsvg'], input=made, capture_output=True, text=True, encoding='utf-8', timeout=60)
    assert ran.returncode == 0, ran.stderr
    nodes = [each for each in ET.fromstring(ran.stdout).iter() if each.get('class') == 'node']
    picture = lay_out(Recording.load(KEPT / f'{name}.json'))
    empty = set(range(len(picture.rows))) - {box.row for box in picture.boxes}
    assert len(nodes) == len(picture.boxes) + len(picture.marks) + len(empty)


# -- where things lie -----------------------------------------------------------------------------------------


def test_a_lane_forked_again_is_drawn_in_the_order_of_recording() -> None:
    """Where spans are all that is known, nobody knows which of them may run together."""
    recording = Recording(lanes=[lane(0, None), lane(1)])
    recording.steps = [Step('fork', 1, 'lane 1 forked from lane 0')] * 2
    recording.spans = [Span(number, 1, number % 2) for number in range(6)]
    assert [box.column for box in lay_out(recording).boxes] == list(range(6))


@pytest.mark.parametrize(
    ('name', 'short'),
    [
        ('cupy_multiply__float64_float_float64', 'multiply'),
        ('cupy_sum', 'sum'),
        ('void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(Params)', 'cutlass::Kernel2'),
        ('<lambda>', '<lambda>'),
        ('', ''),
        ('cupy_', 'cupy_'),
        ('my_kernel', 'my_kernel'),
    ],
)
def test_kernel_names_are_shortened(name: str, short: str) -> None:
    assert short_name(name) == short


@given(st.text(), st.integers(1, 40))
def test_fitted_text_fits(text: str, width: int) -> None:
    wide = sum(2 if ord(c) > 0x1100 else 1 for c in text)
    made = fit(text, width)
    assert made == text or (len(made) <= max(width, 1) and '…' in made)
    assert made == text or wide > width or not text.isascii()


# -- whatever the recording holds -----------------------------------------------------------------------------

_hostile = st.sampled_from(
    [
        *'< </script> <!-- ]]> " \' &amp; \\ \\N {{data}} {{ }} % /* é 名 _ZN3abc cupy_a__b __'.split(' '),
        *('\n', '\r', '\0', '\x1b[2J', '\u202e', '\ud800', '\u2028', '\ufffe', ' ', '\x85'),
    ]
)
_words = st.lists(st.one_of(_hostile, st.text(max_size=5)), max_size=5).map(''.join)
_lines = st.one_of(st.none(), st.tuples(_words, st.integers(-1, 10**9), _words).map(list))
_lane = st.one_of(st.none(), st.integers(0, 5))
_values = st.one_of(_words, st.integers(), st.floats(), st.none(), st.booleans(), st.lists(_words, max_size=3))
_kinds = st.sampled_from(['kernel', 'memcpy', 'memset', 'host', 'conditional', 'event record', '<odd>', ''])
_steps = st.sampled_from(
    ['begin', 'fork', 'join', 'wait', 'record', 'switch', 'host', 'constant', 'note', 'adapted', '?']
)
_texts = st.one_of(_words, st.integers(0, 9).map('lane 0 waits for lane {}'.format))
_numbers = st.integers(-1, 14)
recordings = st.builds(
    Recording,
    capturekit=_words,
    cupy=_words,
    device=_words,
    mode=_words,
    outcome=_words,
    strict=st.booleans(),
    node_count=st.integers(0, 10**6),
    lanes=st.lists(
        st.builds(LaneRecord, st.integers(0, 6), st.integers(0, 2**63), _lane, _lines, _lines, _lines), max_size=6
    ),
    steps=st.lists(st.builds(Step, _steps, _lane, _texts, _lines), max_size=8),
    spans=st.lists(st.builds(Span, _numbers, _numbers, _lane, _lines), max_size=8),
    graph=st.lists(st.builds(NodeRecord, _kinds, _words, _lane, _lines, st.dictionaries(_words, _values, max_size=3))),
    arrows=st.lists(st.tuples(_numbers, _numbers), max_size=20),
)
_TOKEN = re.compile(r'\s+|"(?:[^"\\]|\\.)*"|->|[{}\[\];=,]|[A-Za-z_]\w*|-?\d+(?:\.\d+)?', re.DOTALL)


class Page(HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == 'script':
            self.scripts.append('')

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == 'script':
            self.scripts[-1] += data


def dot_nodes(text: str) -> list[str]:
    """The nodes that DOT declares. Raises AssertionError if the text is none."""
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found, text[at : at + 60]
        tokens += [found[0]] if not found[0].isspace() else []
        at = found.end()
    assert tokens.count('{') == tokens.count('}') and tokens.count('[') == tokens.count(']')
    return [name for name, then in pairwise(tokens) if then == '[' and re.fullmatch(r'n\d+', name)]


def refuse(constant: str) -> None:
    raise AssertionError(f'{constant} is not JSON')


@given(recordings)
@settings(deadline=None)
def test_text_has_every_box(recording: Recording) -> None:
    picture, text = lay_out(recording), to_text(recording)
    assert text == clean(text).replace('\ufffd', '\n') or '\ufffd' in text
    assert all(line == clean(line) for line in text.split('\n'))
    seen: list[int] = []
    for first, last in re.findall(r'^[●│ ]*●[●│ ]* +(\d+)(?:-(\d+))?(?=  |$)', text, re.MULTILINE):
        seen += range(int(first), int(last or first) + 1)
    assert seen == list(range(len(picture.boxes)))
    assert text.count('\n  [') == len(picture.marks)


@given(recordings)
@settings(deadline=None)
def test_dot_is_well_formed_and_has_every_box(recording: Recording) -> None:
    picture, text = lay_out(recording), to_dot(recording)
    declared = [name for name in dot_nodes(text) if name]
    drawn = re.findall(r'^  (n\d+) -> (n\d+)', text, re.MULTILINE)
    ends = [name for _, name in drawn]
    assert sorted(set(declared) | set(ends)) == sorted({f'n{box.number}' for box in picture.boxes})
    assert len(re.findall(r'^    n\d+ \[', text, re.MULTILINE)) == len(picture.boxes)
    assert sorted(drawn) == sorted((f'n{arrow.tail}', f'n{arrow.head}') for arrow in picture.arrows)


def sound(text: str, picture: Picture) -> None:
    """An SVG is well-formed, nothing lies outside of it, and it has a title for each box."""
    root = ET.fromstring(text)
    titles = [each.text or '' for each in root.iter('{http://www.w3.org/2000/svg}title')]
    for box in picture.boxes:
        assert any(title.startswith(f'#{box.number} {clean(box.name)}'.rstrip()) for title in titles), box
    tags = 'svg g title style rect text path circle'.split()
    assert {each.tag.partition('}')[2] for each in root.iter()} <= {*tags}
    numbers = re.findall(r'[ML](-?[\d.]+) (-?[\d.]+)', ' '.join(each.get('d', '') for each in root.iter()))
    left, top, width, height = map(float, root.attrib['viewBox'].split())
    assert all(left <= float(x) <= width and top <= float(y) <= height for x, y in numbers)
    for each in root.iter():
        x, y = (float(each.get(name, 0)) for name in 'xy')
        wide, high = (float(each.get(name, 0)) for name in ('width', 'height')) if 'x' in each.attrib else (0, 0)
        assert left <= x <= x + wide <= width and top <= y <= y + high <= height


@given(recordings)
@settings(deadline=None)
def test_svg_is_well_formed_and_has_every_box(recording: Recording) -> None:
    sound(to_svg(recording), lay_out(recording))


@given(recordings)
@settings(deadline=None)
def test_page_holds_its_data_and_no_other_element(recording: Recording) -> None:
    plain, page = Page(to_html(Recording())), Page(to_html(recording))
    assert page.tags == plain.tags
    assert len(page.scripts) == 2
    data = json.loads(page.scripts[0], parse_constant=refuse)
    assert page.scripts[1] == plain.scripts[1]
    names = [clean(node.name or node.kind) for node in recording.graph]
    if names:
        assert [data['words'][box[4]] for box in data['boxes']] == names
    framed = Page(to_frame(recording))
    assert framed.tags == ['iframe']


@given(recordings)
@settings(deadline=None)
def test_trace_is_json_and_has_every_box(recording: Recording) -> None:
    picture, trace = lay_out(recording), json.loads(to_trace(recording), parse_constant=refuse)
    events = trace['traceEvents']
    assert [event['args']['number'] for event in events if event['ph'] == 'X'] == list(range(len(picture.boxes)))
    flows = {ph: sorted(event['id'] for event in events if event['ph'] == ph) for ph in 'sf'}
    assert flows['s'] == flows['f'] == list(range(len(picture.arrows)))
    assert trace['otherData']['times'].startswith('no times are known')


def test_no_request_leaves_the_pages() -> None:
    for name in HAND_WRITTEN:
        recording = Recording.load(KEPT / f'{name}.json')
        for made in (to_html(recording), to_svg(recording)):
            assert not re.search(r'(?:src|href)=["\'](?!data:)|url\(|@import|https?://(?!www\.w3\.org/2000/svg)', made)


def test_times_are_taken_where_they_are_known() -> None:
    recording = Recording.load(KEPT / 'nodes.json')
    times = [(10.0 * number, 10.0 * number + 4) for number in range(10)]
    trace = json.loads(to_trace(recording, times))
    slices = [event for event in trace['traceEvents'] if event['ph'] == 'X']
    assert [(event['ts'], event['dur']) for event in slices] == [(start, 4) for start, _ in times]
    assert trace['otherData']['times'] == 'measured'
    with pytest.raises(ValueError, match='3 times for 10 nodes'):
        to_trace(recording, times[:3])


# -- capturekit view ------------------------------------------------------------------------------------------


def view(*args: object) -> int:
    return main.main(['view', *map(str, args)])


MEASURED = Recording.load(KEPT / 'nodes.json')
MEASURED.timeline = Timeline('measured', 9, 9, 9, 9, 1, [(float(n), n + 1.0) for n in range(10)], [0.0] * 10)


@pytest.mark.parametrize(
    ('args', 'make'),
    [
        ([], to_text), (['--format', 'dot'], to_dot), (['--format', 'timeline'], to_timeline_svg),
        *((['-o', f'out{ending}'], make) for ending, make in WRITTEN_AS.items()),
        (['-o', 'out.svg', '--format', 'timeline'], to_timeline_svg),
    ],
)  # fmt: skip
def test_view_and_show_write_by_the_ending_and_view_prints(
    args: list[str], make: Callable[[Recording], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    MEASURED.save('measured.json')
    done = called('view', 'measured.json', *args, cwd=tmp_path)
    assert done.returncode == 0 and (done.stdout or Path(args[1]).read_text(encoding='utf-8')) == make(MEASURED)
    if len(args) == 2 and args[0] == '-o':
        MEASURED.show(args[1])
        assert Path(args[1]).read_text(encoding='utf-8') == make(MEASURED)
    monkeypatch.setattr(sys, 'stdin', io.StringIO(Path('measured.json').read_text()))
    assert called('view', '-', *args[:2], cwd=tmp_path).returncode == 0
    with pytest.raises(ValueError, match=r'lanes\.png: the ending must be one of \.html '):
        MEASURED.show('lanes.png')


def test_view_needs_no_cupy() -> None:
    # How output ends where its reader has left, tests/cli/test_main.py tries.
    path = KEPT / 'nodes.json'
    shown = python(f'from capturekit.cli import main\nmain.main(["view", {str(path)!r}])', ('cupy', 'cuda'))
    assert shown == to_text(Recording.load(path)).strip()


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        ('{', 'this is not a capturekit recording: it is not JSON'),
        ('[1]', 'this is not a capturekit recording: it has no version'),
        ('{"version": 99}', 'recording version 99; this capturekit reads version 1'),
        ('{"version": 1, "lanes": [{"oops": 1}]}', 'this is not a whole capturekit recording'),
        ('{"version": 1, "lanes": 5}', 'this is not a whole capturekit recording'),
        ('{"version": 1, "lanes": [{"number": "a", "stream": null}]}', 'this is not a capturekit recording: '),
        ('{"version": 1, "node_count": "many"}', 'this is not a capturekit recording: '),
        ('{"version": 1, "graph": [{"kind": 1, "name": 2, "detail": 3}]}', 'this is not a capturekit recording: '),
        ('[' * 100_000, 'this is not a capturekit recording: '),
    ],
)
def test_view_says_what_is_no_recording(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'some.json'
    path.write_text(content)
    assert view(path) == 2
    error = capsys.readouterr().err
    assert error.startswith('capturekit: ') and str(said) in error and error.count(str(path)) == 1
    assert error.count('\n') == 1


def test_view_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given_file, binary = tmp_path / 'recording.json', tmp_path / 'binary.json'
    shutil.copy(KEPT / 'nodes.json', given_file)
    binary.write_bytes(b'\xff\xfe\x00')
    for args, said in [
        (['missing.json'], 'missing.json: No such file or directory'),
        ([tmp_path], f'{tmp_path}: Is a directory'),
        ([binary], f'{binary}: this is not a capturekit recording: '),
        ([given_file, '-o', tmp_path / 'out.xyz'], f'{tmp_path / "out.xyz"}: this ending names no format'),
        ([given_file, '-o', given_file], f'{given_file} is the recording itself'),
        ([given_file, '-o', tmp_path / 'no' / 'out.svg'], f'{tmp_path / "no" / "out.svg"}: No such file'),
        ([given_file, '--open', '--format', 'svg'], '--open opens a page'),
        ([given_file, '--format', 'timeline'], 'this recording has no timeline: graph.measure() makes one'),
    ]:
        assert view(*args) == 2
        told = capsys.readouterr().err
        assert told.startswith('capturekit: ') and said in told
    assert Recording.load(given_file).node_count == 10


def test_view_opens_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr('webbrowser.open', lambda url: opened.append(url) or True)
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    assert view(KEPT / 'nodes.json', '--open') == 0
    assert view(KEPT / 'nodes.json', '--open', '-o', tmp_path / 'my.html') == 0
    first, second = (Path(url.removeprefix('file://')) for url in opened)
    assert (first.parent, second) == (tmp_path, tmp_path / 'my.html')
    assert first.read_text() == second.read_text() == to_html(Recording.load(KEPT / 'nodes.json'))
    monkeypatch.setattr('webbrowser.open', lambda url: False)
    assert view(KEPT / 'nodes.json', '--open', '-o', tmp_path / 'my.html') == 0
    assert 'no browser was found' in capsys.readouterr().err


def test_a_finding_of_several_lines_is_a_mark_of_one(sim: Any) -> None:
    with pytest.raises(ck.UnjoinedError), ck.capture() as cap:
        side = sim.cuda.Stream(non_blocking=True)
        side.wait_event(cap.stream.record())
        with side:
            sim.arange(4.0) + 1
    assert cap.recording.node_count == 2
    for draw in (to_text, to_dot, to_svg, to_html):
        drawn = draw(cap.recording)
        assert '\ufffd' not in drawn and 'Join each after its last work' in drawn

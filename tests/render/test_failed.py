"""Errors as notebooks show them: a picture of the recording so far, with the finding marked. IPython is a fake here."""

from __future__ import annotations

import linecache
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.model.recording import Recording, Step
from capturekit.render import to_html
from capturekit.render.html import marked

PICTURES = {'text/html', 'image/svg+xml'}


class Notebook:
    """What of IPython an error meets: the shell, its traceback printer, and ``display``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: object) -> None:
        self.kernel = kernel
        self.InteractiveTB = self
        self.displayed: list[Any] = []
        ipython = types.ModuleType('IPython')
        display = types.ModuleType('IPython.display')
        ipython.get_ipython = lambda: self  # type: ignore[attr-defined]
        display.display = self.displayed.append  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, 'IPython', ipython)
        monkeypatch.setitem(sys.modules, 'IPython.display', display)

    @staticmethod
    def structured_traceback(kind: type, error: BaseException, trace: object) -> list[str]:
        assert trace is error.__traceback__
        return [f'traceback of {kind.__name__}']


def refused(sim: Any) -> ck.CaptureError:
    x = sim.arange(4.0)
    with pytest.raises(ck.HostReadError) as info, ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                y = sim.sin(x)
            with right:
                sim.cos(x)
        float(y.sum())
    return info.value


def test_an_error_that_ended_a_capture_is_a_picture(sim: Any) -> None:
    error = refused(sim)
    bundle = error._repr_mimebundle_()
    assert set(bundle) == {'text/plain', *PICTURES}
    assert bundle['text/plain'] == f'HostReadError: {error}'
    assert bundle['image/svg+xml'].startswith('<svg')
    html = bundle['text/html']
    assert (
        html.startswith('<pre style="white-space:pre-wrap">HostReadError: ndarray.get() on lane 0')
        and '<iframe' in html
    )
    assert len(error.recording.lanes) == 3 and error.recording.outcome == 'failed'
    assert 'test_failed.py:' in bundle['image/svg+xml']
    (finding,) = [step for step in marked(error).steps if step.kind == 'finding']
    assert finding.text == bundle['text/plain'] and error.location is not None
    assert finding.at == error.location.to_json()
    assert 'HostReadError' in bundle['image/svg+xml'], 'the finding is among the marks'


@pytest.mark.parametrize('kernel', [object(), None], ids=['notebook', 'terminal'])
def test_a_cell_that_ends_in_an_error_shows_the_picture_once(
    sim: Any, monkeypatch: pytest.MonkeyPatch, kernel: object
) -> None:
    """In a terminal, or without a recording, the traceback is all."""
    ipython, error, plain = Notebook(monkeypatch, kernel), refused(sim), ck.ClosedError('x', rule='It is closed.')
    for one in (error, error, plain):
        assert one._render_traceback_() == [f'traceback of {type(one).__name__}']
    assert ipython.displayed == ([error] if kernel else [])
    assert plain._repr_mimebundle_() == {'text/plain': 'ClosedError: x\n  It is closed.'}


def test_markup_is_text_and_an_error_travels_with_its_picture(sim: Any) -> None:
    error = refused(sim)
    error.remedy = '<script>alert(1)</script> & "quotes"'
    bundle = error._repr_mimebundle_()
    assert '<script>alert(1)' not in bundle['text/html']
    assert '&lt;script&gt;alert(1)&lt;/script&gt; &amp; ' in bundle['text/html']
    assert pickle.loads(pickle.dumps(error))._repr_mimebundle_() == bundle


def test_a_launch_that_a_check_stopped(sim: Any) -> None:
    x = sim.arange(4.0)

    def fn() -> Any:
        return x / 2 if float(x.max()) > 1 else x

    rehearsal = ck.rehearse(fn)
    with ck.capture(rehearsal=rehearsal) as cap:
        fn()
    assert 'role="alert"' not in to_html(cap.recording)
    x *= 0.1
    for stream in (None, sim.cuda.Stream(non_blocking=True)):
        with pytest.raises(ck.AssumptionError) as info:
            cap.graph.launch(stream)
        error = info.value
        assert error.recording is cap.recording
        assert set(error._repr_mimebundle_()) >= PICTURES
        steps = marked(error).steps
        assert [step.kind for step in steps].count('finding') == 1 and steps[-1].kind == 'finding'
        assert error.location is not None and steps[-1].at == error.location.to_json()
    assert not [step for step in cap.recording.steps if step.kind == 'finding'], 'the graph is as good as before'


def test_in_ipython_itself(
    sim: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where IPython is installed: what its own shell makes of an error, and of an error at the end of a cell."""
    monkeypatch.setenv('IPYTHONDIR', str(tmp_path))
    interactive = pytest.importorskip('IPython.core.interactiveshell')
    shell = interactive.InteractiveShell.instance()
    try:
        shown: list[dict[str, str]] = []
        shell.kernel = object()
        shell.display_pub.publish = lambda data, *rest, **more: shown.append(data)
        shell.user_ns.update(sim=sim, ck=ck)
        ran = shell.run_cell('with ck.capture() as cap:\n    float(sim.arange(4.0).sum())\n')
        assert isinstance(ran.error_in_exec, ck.HostReadError)
        assert len(shown) == 1 and set(shown[0]) >= PICTURES
        said = re.sub('\x1b\\[[0-9;]*m', '', capsys.readouterr().out)
        assert 'float(sim.arange(4.0).sum())' in said and 'The host reads a value' in said
        shell.user_ns['error'] = ran.error_in_exec
        data, _metadata = shell.display_formatter.format(ran.error_in_exec)
        assert set(data) >= PICTURES
        del ran
    finally:
        shell.user_ns.clear()
        interactive.InteractiveShell.clear_instance()


def test_the_page_of_a_failed_capture_begins_with_the_error(sim: Any) -> None:
    recording = refused(sim).recording
    page = to_html(recording)
    top = page[page.index('<header>') : page.index('<h1>')]
    assert 'role="alert"' in top
    assert 'HostReadError: ndarray.get() on lane 0' in top
    assert '3 nodes, 2 edges, 3 lanes' in page, 'sin and cos after the origin, joined in the sum: it came behind them'
    assert re.search(r'<code>.*test_failed\.py:\d+: float\(y\.sum\(\)\)</code>', top)


@pytest.mark.parametrize('file', ['/etc/hostname', 'no\0file.py', '', '<string>'])
def test_no_other_file_is_read_for_a_page(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(linecache.cache, '<string>', raising=False)  # Python 3.13 keeps there what `-c` was given
    recording = Recording(steps=[Step('finding', 0, 'Fault: <b>', [file, 1, 'f'])], outcome='failed')
    top = to_html(recording).partition('<h1>')[0]
    assert 'Fault: &lt;b&gt;' in top and '<code>' not in top

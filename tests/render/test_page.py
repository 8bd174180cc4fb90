"""The page of a recording in a browser: it loads alone, shows what is under the pointer, finds, zooms.

Needs Chromium (``chromium``, ``chromium-browser``, ``google-chrome`` on the PATH), and is skipped without.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capturekit.model.recording import LaneRecord, NodeRecord, Recording, Step, Timeline
from capturekit.render import to_html

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable', 'chrome')
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    '--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking '
    '--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe'
).split()
ENTER, HOSTILE = '\r', '</script><script>throw 1</script>&amp;"\'<!--'

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f'no browser: none of {", ".join(NAMES)} is on the PATH')


class Browser:
    """A headless Chromium, told what to do over its debugging pipe."""

    def __init__(self, profile: Path) -> None:
        (theirs_in, self._to), (self._from, theirs_out) = _pipe(), _pipe()
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, old, new) for old, new in ((theirs_in, 3), (theirs_out, 4), (null, 2))]
        assert CHROMIUM is not None
        args = [CHROMIUM, *FLAGS, f'--user-data-dir={profile}', 'about:blank']
        self.pid = os.posix_spawn(CHROMIUM, args, {**os.environ, 'HOME': str(profile)}, file_actions=actions)
        for fd in (theirs_in, theirs_out, null):
            os.close(fd)
        self._rest, self._sent, self.session = b'', 0, ''
        self.events: list[dict[str, Any]] = []

    def open(self, url: str, width: int = 1280, height: int = 720) -> None:
        """Open a page in a new tab, and wait until it is loaded."""
        self.session, self.events = '', []
        target = self.tell('Target.createTarget', url='about:blank')['targetId']
        self.session = self.tell('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self.tell(f'{domain}.enable')
        self.tell('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.tell('Page.navigate', url=url)
        self.wait('document.readyState === "complete"')

    def tell(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return its answer. Events that come meanwhile are kept."""
        self._sent += 1
        message = {'id': self._sent, 'method': method, 'params': params}
        if self.session:
            message['sessionId'] = self.session
        os.write(self._to, json.dumps(message).encode() + b'\0')
        while True:
            answer = self._next()
            if answer.get('id') == self._sent:
                assert 'error' not in answer, (method, answer)
                result: dict[str, Any] = answer['result']
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b'\0' not in self._rest:
            ready, _, _ = select.select([self._from], [], [], 60)
            data = os.read(self._from, 1 << 20) if ready else b''
            assert data, 'the browser says nothing any more'
            self._rest += data
        line, _, self._rest = self._rest.partition(b'\0')
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.tell('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        assert 'exceptionDetails' not in answer, answer
        return answer['result'].get('value')

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + 60
        while not self.run(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.tell('Input.dispatchMouseEvent', type=kind, x=x, y=y, **more)

    def key(self, key: str, text: str = '') -> None:
        """Press a key; ``text`` is what it types."""
        code = {'Enter': 13, 'Escape': 27}.get(key, 0)
        self.tell('Input.dispatchKeyEvent', type='keyDown', key=key, text=text, windowsVirtualKeyCode=code)
        self.tell('Input.dispatchKeyEvent', type='keyUp', key=key, windowsVirtualKeyCode=code)

    def faults(self) -> list[dict[str, Any]]:
        """Errors that the page has raised or logged."""
        self.run('0')
        return [
            event
            for event in self.events
            if event.get('method') == 'Runtime.exceptionThrown'
            or (event.get('method') == 'Runtime.consoleAPICalled' and event['params']['type'] in ('error', 'assert'))
            or (event.get('method') == 'Log.entryAdded' and event['params']['entry']['level'] == 'error')
        ]

    def requests(self) -> list[str]:
        """What the page has asked for."""
        self.run('0')
        sent = (event for event in self.events if event.get('method') == 'Network.requestWillBeSent')
        return [event['params']['request']['url'] for event in sent]

    def close(self) -> None:
        for fd in (self._to, self._from):
            os.close(fd)
        end = time.monotonic() + 5  # it ends by itself when its pipe is closed
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return
            time.sleep(0.02)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not 3 or 4, which the browser's are to be."""
    low = os.pipe()
    read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in low)
    for fd in low:
        os.close(fd)
    return read, write


@pytest.fixture(scope='module')
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp('profile'))
    try:
        yield made
    finally:
        made.close()


def recorded(nodes: int) -> Recording:
    """Lanes that take turns, one name hostile, one mark."""
    recording = Recording(device='device <0>', lanes=[LaneRecord(n, n, None if n == 0 else 0) for n in range(4)])
    for number in range(nodes):
        name = HOSTILE if number == 1 else f'cupy_kernel_{number}__float64'
        at = ['/home/me/train.py', 100 + number, 'step']
        detail = {'grid': [number, 1, 1], 'arguments': f'0x{number:x}00'}
        recording.graph.append(NodeRecord('kernel', name, number % 4, at, detail))
        recording.arrows += [(number - back, number) for back in (1, 4) if number >= back and number % 3]
    recording.steps = [Step('constant', 2, 'uploaded', ['/home/me/train.py', 102, 'step'])]
    return recording


def opened(browser: Browser, tmp_path: Path, recording: Recording, **how: Any) -> Browser:
    (tmp_path / 'page.html').write_text(to_html(recording), encoding='utf-8')
    browser.open((tmp_path / 'page.html').as_uri(), **how)
    browser.wait('window.capturekit.view().ready')
    return browser


def hover(browser: Browser, number: int) -> str:
    """What the page tells of a box when the pointer is on it."""
    browser.mouse('mouseMoved', *browser.run(f'window.capturekit.spot({number})'))
    browser.wait('!document.getElementById("tip").hidden')
    return str(browser.run('document.getElementById("tip").textContent'))


def view(browser: Browser) -> dict[str, Any]:
    seen: dict[str, Any] = browser.run('window.capturekit.view()')
    return seen


def pixels(browser: Browser) -> str:
    """The canvas as it is drawn now."""
    return str(
        browser.run(
            'new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done('
            'document.getElementById("lanes").toDataURL()))))'
        )
    )


@pytest.mark.parametrize('nodes', [0, 1, 10, 10_000])
def test_it_loads_alone_and_without_errors(browser: Browser, tmp_path: Path, nodes: int) -> None:
    opened(browser, tmp_path, recorded(nodes))
    assert browser.faults() == []
    assert browser.requests() == [(tmp_path / 'page.html').as_uri()]
    assert f'{nodes:,} node' in browser.run('document.title')
    assert browser.run('document.querySelector("h1").textContent').startswith('open recording on device <0>')


def test_the_pointer_shows_kernel_line_and_arguments(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, recorded(10))
    told = hover(browser, 2).splitlines()
    assert told == [
        '#2 cupy_kernel_2__float64',
        'kernel at train.py:102',
        'grid: 2, 1, 1',
        'arguments: 0x200',
        '[1] constant: uploaded  (train.py:102 in step)',
    ]
    assert hover(browser, 1).startswith(f'#1 {HOSTILE}\n')
    browser.mouse('mouseMoved', 300, 640)
    assert browser.run('document.getElementById("tip").hidden')
    assert browser.faults() == []


def test_search_counts_lights_up_and_leads(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, recorded(40))
    before = pixels(browser)
    browser.run('document.getElementById("lanes").focus()')
    browser.key('/', '/')
    assert browser.run('document.activeElement.id') == 'search'
    browser.tell('Input.insertText', text='train.py:13')
    assert browser.run('document.getElementById("count").textContent') == '10 of 40'
    assert pixels(browser) != before
    for expected in (30, 31):
        browser.key('Enter', ENTER)
        assert view(browser)['selected'] == expected
    assert browser.run('document.getElementById("count").textContent') == '2 of 10 matches'
    x, _ = browser.run('window.capturekit.spot(31)')
    assert 90 < x < browser.run('document.getElementById("lanes").clientWidth'), 'it is in view'
    browser.key('Escape')
    assert browser.run('document.getElementById("count").textContent') == ''
    browser.tell('Input.insertText', text='')
    browser.run('document.getElementById("search").focus()')
    browser.tell('Input.insertText', text='no such kernel')
    assert browser.run('document.getElementById("count").textContent') == '0 of 40'
    assert browser.faults() == []


def test_wheel_zooms_where_the_pointer_is_and_drag_pans(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, recorded(400))
    first = view(browser)
    x, y = browser.run('window.capturekit.spot(12)')
    browser.mouse('mouseWheel', x, y, deltaX=0, deltaY=200)
    second = view(browser)
    assert second['pitch'] < first['pitch']
    browser.mouse('mouseWheel', x, y, deltaX=0, deltaY=-200)
    third = view(browser)
    assert third['pitch'] == pytest.approx(first['pitch'])
    browser.mouse('mousePressed', 500, 300, button='left', clickCount=1)
    browser.mouse('mouseMoved', 400, 300, button='left', buttons=1)
    browser.mouse('mouseReleased', 400, 300, button='left', clickCount=1)
    panned = view(browser)
    assert panned['left'] - third['left'] == pytest.approx(100)
    browser.mouse('mouseWheel', 400, 300, deltaX=150, deltaY=0)
    assert view(browser)['left'] - panned['left'] == pytest.approx(150)
    browser.run('document.getElementById("fit").click()')
    fitted = view(browser)
    assert fitted['left'] == 0
    assert fitted['columns'] * fitted['pitch'] < 1280
    assert browser.faults() == []


def test_keys_walk_the_lanes_and_what_is_selected_is_told(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, recorded(40))
    browser.run('document.getElementById("lanes").focus()')
    walked = []
    for key in ('Home', 'ArrowRight', 'ArrowDown', 'ArrowLeft', 'ArrowUp', 'End'):
        browser.key(key)
        walked.append(view(browser)['selected'])
    assert walked[:2] == [0, 4]
    assert [number % 4 for number in walked[2:5]] == [1, 1, 0]
    assert walked[5] == 39
    panel = browser.run('document.getElementById("selected").innerText')
    assert 'cupy_kernel_39__float64' in panel and '/home/me/train.py, line 139, in step' in panel
    pitch = view(browser)['pitch']
    browser.key('-')
    assert view(browser)['pitch'] < pitch
    browser.key('Escape')
    assert view(browser)['selected'] is None
    assert browser.run('document.getElementById("selected").getAttribute("aria-live")') == 'polite'
    assert browser.run('document.getElementById("lanes").getAttribute("aria-label")').startswith('Lanes of')
    assert browser.faults() == []


def measured(nodes: int) -> Recording:
    """Lanes that take turns; every tenth node is a hundred times as long, and every fifth takes no time."""
    recording, ends, times = recorded(nodes), [0.0] * 4, []
    for number in range(nodes):
        start = ends[number % 4] + 1
        ends[number % 4] = start + (500 if number % 10 == 3 else 5)
        times.append(None if number % 5 == 2 else (start, ends[number % 4]))
    last = max(ends, default=0.0)
    recording.timeline = Timeline('measured', 9, last, last, last, 1.0, times, [0.0] * nodes)
    return recording


def test_boxes_lie_at_their_times_or_in_their_order(browser: Browser, tmp_path: Path) -> None:
    opened(browser, tmp_path, measured(40))
    assert not browser.run('document.getElementById("clock").hidden')
    before = pixels(browser)
    spots = [browser.run(f'window.capturekit.spot({number})') for number in (3, 11)]
    browser.run('document.getElementById("clock").click()')
    assert view(browser)['timed'] and pixels(browser) != before
    assert browser.run('document.getElementById("clock").getAttribute("aria-pressed")') == 'true'
    browser.run('document.getElementById("fit").click()')
    seen = view(browser)
    line = measured(40).timeline
    assert line is not None
    assert seen['unit'] * seen['columns'] == pytest.approx(line.span_us)
    third, other = (browser.run(f'window.capturekit.spot({number})') for number in (3, 11))
    pairs = [line.nodes[number] for number in (3, 11)]
    apart = sum(pairs[1]) / 2 - sum(pairs[0]) / 2  # type: ignore[arg-type]
    assert other[0] - third[0] == pytest.approx(apart / seen['unit'] * seen['pitch'], abs=1)
    assert third[1] == other[1] == spots[0][1], 'the lanes stay where they are'
    assert 'took: 500.00 us (spread 0.00 us)' in hover(browser, 3)
    assert hover(browser, 13).startswith('#13 ')
    browser.key('t')
    browser.key('0')
    assert not view(browser)['timed']
    assert [browser.run(f'window.capturekit.spot({number})')[1] for number in (3, 11)] == [each[1] for each in spots]
    assert browser.faults() == []

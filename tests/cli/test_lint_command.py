"""``capturekit lint``, and the marks of pytest's plugin."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from tests.command import ROOT, Ran, called, python

# -- the command ----------------------------------------------------------------------------------------------

#: A script that reads and waits as scripts do, and has one function for captures.
SCRIPT = """\
import sys
import cupy as cp
import capturekit as ck
import types
pytest = types.SimpleNamespace(mark=types.SimpleNamespace(capture_safe=lambda fn: fn))
capture_safe = pytest.mark.capture_safe
x = cp.arange(4.0)
print('here', sys.argv[1:])
{mark}
def step(x=x):
    cp.cuda.Device().synchronize()
    return x * 2
if __name__ == '__main__':
    y = step()
    cp.cuda.Device().synchronize()
    assert float(y[1]) == 2
{lines}
"""
STEP = 11
BODY = 17


def lint(tmp_path: Path, lines: str, *options: str, mark: str = '', args: tuple[str, ...] = ()) -> Ran:
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT.format(lines=textwrap.indent(textwrap.dedent(lines), '    '), mark=mark))
    return called('lint', '--simulate', *options, str(path), *args)


def found_in(ran: Ran) -> list[tuple[int, str]]:
    """Line and rule of each finding that was printed."""
    lines = re.findall(r'^\S*script\.py:(\d+)[^\[\n]*: \[([\w-]+)\]', ran.stdout, re.MULTILINE)
    return [(int(line), rule) for line, rule in lines]


EAGER = 'with ck.capture() as cap:\n    y = x * 3\ncap.graph.launch()\nfloat(y[1])'
CAUGHT = """\
side = cp.cuda.Stream(non_blocking=True)
try:
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x * 3
except ck.UnjoinedError:
    pass
"""
BY_HAND = """\
s = cp.cuda.Stream(non_blocking=True)
with s:
    s.begin_capture()
    y = x * 2
    {}
    graph = s.end_capture()
graph.launch(s)
"""
GRAPHED = """\
@ck.graphed
def f(x):
    {}
    return x * 2
for _ in range(4):
    y = f(x)
assert y[1] == 2
"""


@pytest.mark.parametrize(
    ('body', 'found', 'looked'),
    [
        (EAGER, [], '1 capture'),
        (CAUGHT, [(5, 'unjoined')], '1 capture'),
        (BY_HAND.format('pass'), [], '1 capture'),
        (BY_HAND.format('s.synchronize()'), [(4, 'sync-captured')], '1 capture'),
        (GRAPHED.format('x = x / max(1, float(x[1]))'), [], '1 function (f)'),
        (GRAPHED.format('cp.random.default_rng()'), [(2, 'UnsupportedCallError')], '1 function (f)'),
    ],
)
def test_captures_are_judged(tmp_path: Path, body: str, found: list[tuple[int, str]], looked: str) -> None:
    """What no capture is to hold is not, and graphed functions are by what they can."""
    ran = lint(tmp_path, body)
    assert (ran.returncode, found_in(ran)) == (bool(found), [(BODY + line, rule) for line, rule in found])
    assert f'looked at {looked}' in ran.stdout.splitlines()[-1]


@pytest.mark.parametrize('name', sorted(path.name for path in (ROOT / 'samples').glob('[fsw]*.py')))
def test_samples_are_clean(name: str) -> None:
    ran = called('lint', '--simulate', f'samples/{name}')
    assert ran.returncode == 0, ran.stdout
    assert 'nothing found' in ran.stdout.splitlines()[-1]


def test_all_in_a_capture_is_told_up_to_what_ends_it(tmp_path: Path) -> None:
    body = """
        side = cp.cuda.Stream(non_blocking=True)
        with ck.capture() as cap:
            y = x * 3
            cp.cuda.Device().synchronize()
            side.synchronize()
            with cp.cuda.Stream.null:
                y += 1
            y = y + cp.array([1.0, 2.0, 3.0, 4.0])
            with side:
                y += 1
        print('not reached')
    """
    ran = lint(tmp_path, body)
    assert ran.returncode == 1
    assert found_in(ran) == [
        (BODY + 4, 'device-sync'),
        (BODY + 6, 'legacy-stream'),
        (BODY + 8, 'constant'),
        (BODY + 10, 'escaped-work'),
    ]
    assert ran.stdout.endswith(
        '4 found: a strict capture refuses 3, one with strict=False 0\n'
        f'looked at 1 capture, and not at everything: script.py ended at EscapedWorkError at script.py:{BODY + 9}; '
        'repair that and lint again, or lint a function without arguments in a module: `capturekit lint '
        'MODULE:FUNCTION` runs it eagerly and to its end\n'
    )
    assert ran.stdout.count('Fork it first: ') == 1 and 'Traceback' not in ran.stderr
    assert 'not reached' not in ran.stdout


@pytest.mark.parametrize(
    ('mark', 'options'),
    [('@capture_safe', ()), ('@pytest.mark.capture_safe', ()), ('@ck.graphed', ()), ('', ('--function', 'step'))],
)
def test_marked_and_named_functions_are_judged(tmp_path: Path, mark: str, options: tuple[str, ...]) -> None:
    ran = lint(tmp_path, 'pass', *options, mark=mark)
    if mark == '@ck.graphed':  # which waits for nothing in a graph: the wait becomes a join
        assert (ran.returncode, found_in(ran)) == (0, [])
    else:
        assert (ran.returncode, found_in(ran)) == (1, [(STEP, 'device-sync')])
    assert 'looked at 1 function (step)' in ran.stdout.splitlines()[-1]


def test_nothing_looked_at_is_said(tmp_path: Path) -> None:
    ran = lint(tmp_path, 'pass')
    assert ran.returncode == 2
    assert 'nothing was looked at: script.py records nothing' in ran.stdout and 'nothing found' not in ran.stdout
    ran = lint(tmp_path, 'def never(): pass', '--function', 'never', '--function', 'step', '--no-strict')
    assert ran.returncode == 2
    assert ran.stdout.splitlines()[-1].endswith('; never called, and not looked at: never')
    ran = lint(tmp_path, 'x = = 1')
    assert ran.returncode == 1 and 'SyntaxError' in ran.stderr and 'nothing was looked at' in ran.stdout
    ran = lint(tmp_path, 'pass', '--function', 'stop')
    assert (ran.returncode, ran.stdout) == (2, '')
    assert "there is no function 'stop'" in ran.stderr and 'did you mean step?' in ran.stderr


@pytest.mark.parametrize(
    ('line', 'status', 'said'),
    [
        ('raise LookupError(3)', 1, 'failed with LookupError at script.py:18'),
        ('sys.exit(3)', 1, 'left with 3 at script.py:18'),
        ('sys.exit()', 0, ''),
        ('raise KeyboardInterrupt', 130, 'was interrupted at script.py:18'),
    ],
)
def test_a_script_that_ends_early(tmp_path: Path, line: str, status: int, said: str) -> None:
    for recorded in ('y * 2', 'pass'):
        ran = lint(tmp_path, f'with ck.capture(): {recorded}\n{line}')
        assert ran.returncode == status
        assert said in ran.stdout.splitlines()[-1]
        assert ('nothing found' in ran.stdout) is (status == 0)
    assert ('LookupError: 3' in ran.stderr) is ('Lookup' in line)


NOTED = """
with ck.capture(strict=False) as cap:
    y = x + cp.array([1.0, 2.0, 3.0, 4.0]){}
    try:
        float(y[0]){}
    except ck.HostReadError:
        pass
"""


def test_rules_are_selected_and_lines_ignored(tmp_path: Path) -> None:
    both = [(BODY + 2, 'constant'), (BODY + 4, 'host-read')]
    assert found_in(lint(tmp_path, NOTED.format('', ''))) == both
    assert found_in(lint(tmp_path, NOTED.format('', ''), '--select', 'constant')) == both[:1]
    assert found_in(lint(tmp_path, NOTED.format('', ''), '--ignore', 'constant,host-write')) == both[1:]
    ran = lint(tmp_path, NOTED.format('  # capturekit: ignore', '  # capturekit: ignore[host-read]'))
    assert (ran.returncode, found_in(ran)) == (0, [])
    assert ran.stdout.splitlines()[-1] == 'nothing found (2 ignored): looked at 1 capture'
    assert found_in(lint(tmp_path, NOTED.format('', '  # capturekit: ignore[constant]'))) == both
    ran = lint(tmp_path, 'pass', '--select', 'host-raed')
    assert ran.returncode == 2 and 'did you mean host-read?' in ran.stderr


def test_output_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('NO_COLOR', raising=False)
    monkeypatch.setenv('FORCE_COLOR', '1')
    assert '\033[1;31m[host-read]\033[0m' in lint(tmp_path, NOTED.format('', '')).stdout
    monkeypatch.delenv('FORCE_COLOR')
    ran = lint(tmp_path, NOTED.format('', ''), '--output-format', 'json')
    data = json.loads(ran.stdout)
    assert [f['rule'] for f in data['findings']] == ['constant', 'host-read']
    assert data['complete'] is True and data['summary'] == 'looked at 1 capture'
    assert 'here []' in ran.stderr

    ran = lint(tmp_path, NOTED.format('', ''), '--output-format', 'github')
    second, first, last = ran.stdout.splitlines()
    file = str(tmp_path / 'script.py')
    assert first.startswith(f'::error file={file},line={BODY + 4},title=capturekit host-read::ndarray.get() on lane 0')
    assert second.startswith(f'::notice file={file},line={BODY + 2},title=capturekit constant::')
    assert last == '::notice title=capturekit lint::looked at 1 capture'


def test_command_takes_a_function(tmp_path: Path) -> None:
    (tmp_path / 'model.py').write_text(SCRIPT.format(lines='', mark=''))
    ran = called('lint', '--simulate', 'model:step', cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[1].startswith(f'model.py:{STEP} in step: [device-sync] Device.synchronize(); strict')
    ran = called('lint', '--simulate', '--no-strict', 'model:step', cwd=tmp_path)
    assert ran.returncode == 0 and ran.stdout.endswith('looked at 1 function (model:step)\n')


@pytest.mark.parametrize(
    ('args', 'said'),
    [
        (('nothing.py',), "there is no file 'nothing.py'"),
        (('--simulate', 'no_such_module:step'), "there is no module 'no_such_module'"),
        (('--simulate', 'json:no_such'), "there is no function 'no_such' in json"),
        (('--simulate', '.json:loads'), "'.json' is no name of a module"),
        (('json:dumps', '3'), 'takes no arguments'),
        (('--simulate', 'json:dumps'), "'dumps' takes no arguments here"),
        (('samples/fork_join.py:main',), 'lint --function main samples/fork_join.py'),
        ((), 'the following arguments are required: target'),
    ],
)
def test_command_usage(args: tuple[str, ...], said: str) -> None:
    ran = called('lint', *args)
    assert (ran.returncode, ran.stdout) == (2, '')
    assert said in ran.stderr


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        ('import no_such_module', "ModuleNotFoundError: No module named 'no_such_module', at model.py:1"),
        ('1 / 0', 'ZeroDivisionError: division by zero, at model.py:1'),
        ('x = (', "SyntaxError: '(' was never closed (model.py, line 1)"),
    ],
)
def test_a_module_that_can_not_be_imported(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / 'model.py').write_text(f'{line}\n')
    ran = called('lint', '--simulate', 'model:step', cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, '')
    assert ran.stderr.splitlines()[1:] == [f"capturekit: 'model' can not be imported: {said}"]


# -- pytest's plugin ------------------------------------------------------------------------------------------

TESTS = """\
import sys
import pytest
from capturekit.simulated import SimulatedDevice, install, uninstall

@pytest.fixture(autouse=True)
def cp():
    install(SimulatedDevice(0))
    yield sys.modules['cupy']
    uninstall()

@pytest.mark.capture_safe
def test_safe(cp):
    cp.arange(4.0) * 2

@pytest.mark.capture_safe
def test_reads(cp):
    float(cp.arange(4.0)[1])

@pytest.mark.capture_safe(strict=False)
def test_waits(cp):
    cp.cuda.Device().synchronize()

@pytest.mark.capture_safe
def test_waits_strictly(cp):
    cp.cuda.Device().synchronize()

@pytest.mark.capture_safe
def test_fails(cp):
    assert cp.arange(4.0)[1] == 2

@pytest.mark.capture_safe(3)
def test_wrong(cp):
    pass

def test_fixture(cp, capture_lint):
    report = capture_lint(lambda: float(cp.arange(4.0)[1]))
    assert [f.rule for f in report.findings] == ['host-read'] and report.result == 1

def test_unmarked(cp):
    float(cp.arange(4.0)[1])
"""


def test_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'test_it.py').write_text(TESTS)
    monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')
    options = ('-p', 'capturekit.cli.pytest_plugin', '--strict-markers', '-rA')
    ran = python('-m', 'pytest', *options, 'test_it.py', cwd=tmp_path, CAPTUREKIT_SIMULATE='0')
    outcomes: dict[str, set[str]] = {'PASSED': set(), 'FAILED': set()}
    for word, test in re.findall(r'^(PASSED|FAILED) test_it.py::test_(\w+)', ran.stdout, re.MULTILINE):
        outcomes[word].add(test)
    assert outcomes == {
        'PASSED': {'safe', 'waits', 'fixture', 'unmarked'},
        'FAILED': {'reads', 'waits_strictly', 'fails', 'wrong'},
    }
    assert 'not capture-safe: 1 found' in ran.stdout
    assert 'test_it.py:17 in test_reads: [host-read] ndarray.get() on lane 0, the origin' in ran.stdout
    assert 'the marker is capture_safe or capture_safe(strict=False)' in ran.stdout

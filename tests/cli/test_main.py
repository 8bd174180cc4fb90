"""``python -m capturekit``: scripts run as Python would run them, guarded, and their mistakes shown as their own."""

from __future__ import annotations

import configparser
import importlib
import os
import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from capturekit.cli import main
from capturekit.cli import run as run_command
from capturekit.model.recording import Recording
from tests.command import ROOT, Ran, called, run, started

#: A script that records by hand, with one more line inside its capture.
BY_HAND = """
import cupy as cp
stream = cp.cuda.Stream(non_blocking=True)
def record():
    with stream:
        stream.begin_capture()
        y = x * 2
        {line}
        return y, stream.end_capture()
x = cp.arange(4.0)
y, graph = record()
graph.launch()
stream.synchronize()
print(y)
"""


def errors(ran: Ran) -> list[str]:
    """Standard error after the line that says the device."""
    first, *rest = ran.stderr.splitlines()
    assert first.startswith('capturekit: on the simulated device, seed '), ran.stderr
    return rest


def test_script_sees_what_python_would_give_it(tmp_path: Path) -> None:
    (tmp_path / 'neighbour.py').write_text('value = 42')
    script = """
        import os, sys
        import neighbour
        print(sys.argv[1:], __name__, neighbour.value)
        print(__file__ == sys.argv[0], sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
        print(sys.modules['__main__'].__dict__ is globals())
    """
    args = ['--simulate', '--seed', '3', '--', '-h', 'x y']
    ran = run(tmp_path, script, args=args, way=started)
    assert errors(ran) == []
    assert ran.stdout.splitlines() == [f'{args} __main__ 42', 'True True', 'True']
    assert ran.returncode == 0


@pytest.mark.parametrize(
    ('line', 'name'),
    [
        ('stream.synchronize()', 'SynchronizationError'),
        ('stream.done', 'SynchronizationError'),
        ('float(y[0])', 'HostReadError'),
        ('cp.cuda.Device().synchronize()', 'SynchronizationError'),
        ('stream.begin_capture()', 'UnmatchedError'),
        ('cp.cuda.Stream.null.synchronize()', 'LegacyStreamError'),
    ],
)
def test_refused_call_ends_with_its_message(tmp_path: Path, line: str, name: str) -> None:
    ran = run(tmp_path, BY_HAND.format(line=line))
    message = errors(ran)
    assert ran.returncode == 1 and ran.stdout == ''
    number = BY_HAND.splitlines().index('        {line}') + 1
    file = tmp_path / 'script.py'
    assert message[:5] == [
        'Traceback (most recent call last):',
        f'  File "{file}", line {number + 3}, in <module>',
        '    y, graph = record()',
        f'  File "{file}", line {number}, in record',
        f'    {line}',
    ]
    what, *rest = message[5:]
    assert what.startswith(f'{name}: ') and f'at script.py:{number} in record' in what
    assert len(rest) == 2 and all(line.startswith('  ') for line in rest)


#: An exception from another one, and one that is raised in code of capturekit's own.
INNER = """\
def inner(x):
    return x.reshape(3)
def outer(x):
    with ck.capture() as cap:
        try:
            return inner(x)
        except ValueError as error:
            raise LookupError('not found') from error
outer(cp.arange(4))
"""
NO_NODE = """\
x = cp.arange(4)
with ck.capture() as cap:
    y = x * 2
cap.graph.set_kernel(3, grid=1)
"""


@pytest.mark.parametrize(
    ('body', 'frames', 'last'),
    [
        (INNER, ['8, in outer', '4, in inner', '11, in <module>', '10, in outer'], 'LookupError: not found'),
        (NO_NODE, ['6, in <module>'], 'IndexError: the graph has 1 node, and none has the number 3'),
        ('x = = 1', ['3'], 'SyntaxError: invalid syntax'),
    ],
)
def test_only_frames_of_the_script_are_shown(tmp_path: Path, body: str, frames: list[str], last: str) -> None:
    ran = run(tmp_path, f'import cupy as cp\nimport capturekit as ck\n{body}')
    assert ran.returncode == 1
    shown = [line.strip() for line in errors(ran) if line.startswith('  File ')]
    assert shown == [f'File "{tmp_path / "script.py"}", line {frame}' for frame in frames]
    assert errors(ran)[-1] == last


@pytest.mark.parametrize('options', [(), ('--observe',), ('--watch',)], ids=['refused', 'observed', 'watched'])
@pytest.mark.parametrize(
    ('leave', 'status', 'said'),
    [
        ('sys.exit()', 0, ''),
        ('sys.exit(7)', 7, ''),
        ('sys.exit("enough")', 1, 'enough'),
        ('raise KeyboardInterrupt', 130, 'KeyboardInterrupt'),
        ('1 / 0', 1, 'ZeroDivisionError: division by zero'),
    ],
)
def test_leaving_passes_through(tmp_path: Path, leave: str, status: int, said: str, options: tuple[str, ...]) -> None:
    ran = run(tmp_path, f'import sys\nprint("here")\n{leave}', *options)
    assert (ran.returncode, ran.stdout) == (status, 'here\n')
    reports = {'--observe': 'nothing would have been refused', '--watch': '0 captures were followed'}
    ends = [f'capturekit: {reports[option]}' for option in options] + [said] * bool(said)
    assert sorted(errors(ran)[-len(ends) or len(errors(ran)) :]) == sorted(ends)


@pytest.mark.parametrize('leave', ['', '\nimport sys; sys.exit()'])
@pytest.mark.parametrize('options', [(), ('--observe',)])
def test_a_capture_never_ended_is_named(tmp_path: Path, leave: str, options: tuple[str, ...]) -> None:
    script = f'import cupy\ns = cupy.cuda.Stream(non_blocking=True)\ns.begin_capture(){leave}'
    ran = run(tmp_path, script, *options)
    assert ran.returncode == (0 if options else 1)
    said = 'capturekit: the capture begun at script.py:3 was never ended and made no graph: call `end_capture()`'
    assert errors(ran)[:1] == [said]


def test_seed_chooses_the_order() -> None:
    code = 'import cupy; print(cupy.__capturekit_simulated__.random.random())'
    by_seed = [called('run', '--simulate', '--seed', str(seed), '-c', code).stdout for seed in (1, 1, 2)]
    assert by_seed == [f'{random.Random(seed).random()}\n' for seed in (1, 1, 2)]


@pytest.mark.parametrize(
    ('args', 'said'),
    [
        (('run', 'no_such_script.py'), "capturekit: there is no file 'no_such_script.py'\n"),
        (('run', 'samples'), "capturekit: 'samples' is a folder without a __main__.py\n"),
        (('run', '--simulate'), 'script, -m module or -c code'),
        (('run', '-c'), 'expected code'),
        (('run', '-m'), 'expected a module'),
        ((), 'usage: python -m capturekit'),
    ],
)
def test_what_is_no_program_is_said(args: tuple[str, ...], said: str) -> None:
    ran = called(*args)
    assert ran.returncode == 2 and said in ran.stderr and ran.stdout == ''


SHOWS = 'import sys, os; print(sys.argv[1:], __name__, sys.path[0] == os.getcwd()); import beside\n'


def test_modules_packages_and_code_are_run(tmp_path: Path) -> None:
    for name in ('beside.py', 'one.py', 'many/__main__.py', 'empty/__init__.py'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('' if name in ('beside.py', 'empty/__init__.py') else SHOWS)
    for option, what in (('-m', 'one'), ('-m', 'many'), ('-c', SHOWS)):
        ran = called('run', '--simulate', option, what, '--save', 'x', option, cwd=tmp_path)
        assert (ran.returncode, ran.stdout) == (0, f"['--save', 'x', '{option}'] __main__ True\n"), ran.stderr
    for name, said in (('no_such', "there is no module 'no_such'"), ('empty', "'empty' is a package without")):
        ran = called('run', '--simulate', '-m', name, cwd=tmp_path)
        assert ran.returncode == 2 and errors(ran)[0].startswith(f'capturekit: {said}') and len(errors(ran)) == 1


def test_lines_of_code_are_shown() -> None:
    code = 'import cupy, capturekit as ck\nx = cupy.ones(3)\nwith ck.capture():\n    float((x * 2)[0])'
    first, *shown = errors(called('run', '--simulate', '-c', code))[:3]
    assert first == 'Traceback (most recent call last):'
    assert shown == ['  File "<string>", line 4, in <module>', '    float((x * 2)[0])']


@pytest.mark.parametrize('option', ['--save', '--report'])
def test_paths_are_tried_before_the_script_runs(tmp_path: Path, option: str) -> None:
    ran = run(tmp_path, 'print("ran")', option, str(tmp_path / 'no' / 'file'))
    assert (ran.returncode, ran.stdout) == (2, '')
    assert ran.stderr.endswith('can not be written: No such file or directory. Nothing was run.\n')
    ran = run(tmp_path, 'print("ran")', option, str(tmp_path / 'file'))
    assert (ran.returncode, ran.stdout) == (0, 'ran\n') and not (tmp_path / 'file').exists()
    assert ('no report was written' in ran.stderr) == (option == '--report')


# -- terminals and pipes --------------------------------------------------------------------------------------


def test_a_reader_that_left_does_not_fail_a_script_that_ended() -> None:
    line = shlex.join([sys.executable, '-m', 'capturekit', 'run', '--simulate', '-c', 'print("x")'])
    piped = ['env', '-u', 'PYTHONUNBUFFERED', 'bash', '-o', 'pipefail', '-c', f'{line} | true']
    ran = subprocess.run(piped, cwd=ROOT, capture_output=True, timeout=120)
    assert (ran.returncode, ran.stderr.count(b'\n')) == (0, 1), ran.stderr
    line = shlex.join([sys.executable, '-m', 'capturekit', 'rules']) + ' | head -c 1'
    ran = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, timeout=120)
    assert (len(ran.stdout), ran.stderr) == (1, b'')


def test_a_crash_in_compiled_code_shows_the_lines(tmp_path: Path) -> None:
    ran = run(tmp_path, 'import ctypes\nctypes.string_at(0)', way=started)
    assert ran.returncode == -signal.SIGSEGV
    assert 'Segmentation fault' in ran.stderr and 'line 2 in <module>' in ran.stderr


def test_closed_streams_do_not_fail_the_script(tmp_path: Path) -> None:
    script = f'open({str(tmp_path / "ran")!r}, "w").close(); print("x")'
    line = shlex.join([sys.executable, '-m', 'capturekit', 'run', '--simulate', '-c', script])
    ran = subprocess.run(f'{line} >&- 2>&-', shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, (tmp_path / 'ran').exists()) == (0, True), ran.stderr
    assert 'Traceback' not in ran.stderr


def test_a_terminal_that_knows_ascii_only(tmp_path: Path) -> None:
    ran = run(tmp_path, 'print("\u2192 x")', way=lambda *args: started(*args, PYTHONIOENCODING='ascii'))
    assert (ran.returncode, ran.stdout) == (0, '? x\n')


def test_colour_is_for_terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('NO_COLOR', 'FORCE_COLOR'):
        monkeypatch.delenv(name, raising=False)
    script = BY_HAND.format(line='stream.done')
    assert '\033' not in run(tmp_path, script).stderr
    monkeypatch.setenv('FORCE_COLOR', '1')
    assert '\033[1;31mSynchronizationError\033[0m: ' in run(tmp_path, script).stderr
    monkeypatch.setenv('NO_COLOR', '1')
    assert '\033' not in run(tmp_path, script).stderr


def test_a_shell_is_told_what_may_come_next(tmp_path: Path) -> None:
    """By argcomplete, an optional dependency; without it nothing is said, and nothing fails."""
    asked = {'_ARGCOMPLETE': '1', 'COMP_LINE': 'capturekit li', 'COMP_POINT': '13', '_ARGCOMPLETE_STDOUT_FILENAME': ''}
    answer = tmp_path / 'answer'
    ran = started('rules', **{**asked, '_ARGCOMPLETE_STDOUT_FILENAME': str(answer)})
    assert 'Traceback' not in ran.stderr
    pytest.importorskip('argcomplete')
    assert answer.read_text().strip() == 'lint'


# -- which device ---------------------------------------------------------------------------------------------


def fake_cupy(tmp_path: Path, count: str, bindings: bool = False) -> str:
    """A folder with a ``cupy`` whose device count is the expression ``count``, and maybe no cuda-bindings."""
    (tmp_path / 'cupy.py').write_text(
        f'class cuda:\n    class runtime:\n        def getDeviceCount():\n            return {count}\n'
        "__version__ = '14.0.0'\n"
    )
    (tmp_path / 'cuda.py').write_text('' if bindings else 'raise ImportError("no bindings here")')
    return f'{tmp_path}{os.pathsep}{ROOT}'


def test_without_a_gpu_the_simulated_device_is_used(tmp_path: Path) -> None:
    ran = started('run', 'samples/first_graph.py', PYTHONPATH=fake_cupy(tmp_path, '0'))
    assert ran.stderr == 'capturekit: on the simulated device, seed 0 (no GPU: CuPy counts none)\n'
    assert ran.returncode == 0


def test_a_gpu_without_bindings_is_not_simulated(tmp_path: Path) -> None:
    path = fake_cupy(tmp_path, '1')
    ran = started('run', 'samples/first_graph.py', PYTHONPATH=path)
    assert ran.returncode == 1
    assert ran.stdout == ''
    assert 'cuda-bindings' in ran.stderr
    assert 'run --simulate samples/first_graph.py' in ran.stderr


@pytest.mark.gpu
def test_with_a_gpu_it_is_used() -> None:
    ran = started('run', 'samples/first_graph.py')
    assert ran.returncode == 0
    assert ran.stderr.startswith('capturekit: on the GPU (')


# -- called from Python ---------------------------------------------------------------------------------------


def test_main_leaves_the_process_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / 'script.py'
    script.write_text('import sys, cupy\nsys.path.append("mine")\ncupy.cuda.Stream().begin_capture()\nraise OSError')
    argv, path, real = sys.argv, sys.path[:], sys.modules.get('cupy')
    assert main.main(['run', '--simulate', str(script)]) == 1
    assert sys.argv is argv
    assert sys.path == path
    assert sys.modules.get('cupy') is real
    assert capsys.readouterr().err.endswith('OSError\n')


# -- help -----------------------------------------------------------------------------------------------------


def test_examples_of_the_help_are_commands() -> None:
    examples = [line for line in (main.EPILOG + run_command.EPILOG).splitlines() if 'python -m' in line]
    assert len(examples) >= 5
    for line in examples:
        command = shlex.split(line.strip().split('    ')[0])
        assert command[:3] == ['python', '-m', 'capturekit']
        if command[-1] == '--help':
            continue
        given: Any = main.command_parser().parse_args(command[3:])
        if given.module or given.code:
            continue
        assert given.script.endswith('.py')
        if given.script.startswith('samples'):
            assert (ROOT / given.script).exists()


@pytest.mark.parametrize('command', ['', *main.COMMANDS])
def test_help_fits_a_terminal(command: str) -> None:
    ran = called(*command.split(), '--help', COLUMNS='120')
    assert ran.returncode == 0 and ('examples:' in ran.stdout) == (command not in ('rules', 'doctor'))
    assert max(map(len, ran.stdout.splitlines())) <= 120


def test_console_script_and_plugin_are_registered() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / 'setup.cfg')
    plugin = config['options.entry_points']['pytest11'].strip()
    assert plugin == 'capturekit = capturekit.cli.pytest_plugin'
    name, _, target = config['options.entry_points']['console_scripts'].strip().partition(' = ')
    module, _, function = target.partition(':')
    found: ModuleType = importlib.import_module(module)
    assert (name, getattr(found, function)) == ('capturekit', main.main)


CAPTURES = """
import cupy as cp
import capturekit as ck

x = cp.arange(4.0)
with ck.capture() as cap:
    y = x * 2
stream = cp.cuda.Stream(non_blocking=True)
with stream:
    stream.begin_capture()
    z = x + 1
    z = z + 1
    graph = stream.end_capture()
"""


def test_recordings_are_saved(tmp_path: Path) -> None:
    script = tmp_path / 'two.py'
    script.write_text(CAPTURES)
    kept = ['--save', str(tmp_path / 'r.json'), '--report', str(tmp_path / 'r.html')]
    ran = called('run', '--simulate', *kept, str(script))
    assert ran.returncode == 0, ran.stderr
    first, second = Recording.load(tmp_path / 'r.json'), Recording.load(tmp_path / 'r-2.json')
    assert (first.node_count, first.outcome, len(first.graph)) == (1, 'good', 1)
    assert (second.node_count, second.edge_count, second.outcome) == (2, 1, 'good')
    assert [(span.count, span.at[1]) for span in second.spans if span.at] == [(1, 11), (1, 12)]
    assert 'capture' in (tmp_path / 'r.html').read_text()
    assert errors(ran)[-1] == f'capturekit: report of a good capture written to {tmp_path / "r.html"}'


LEFT_OPEN = """\
import cupy
x = cupy.arange(4.0)
with cupy.cuda.Stream(non_blocking=True) as stream:
    stream.begin_capture()
    y = x + 1
    {line}
"""


@pytest.mark.parametrize(
    ('line', 'status', 'said'),
    [
        ('float(y[0])', 1, ('HostReadError', 'by_hand.py:6')),
        ('y = 1 / 0', 1, ('ZeroDivisionError', 'by_hand.py:6')),
        ('pass', 1, ('the program ended before end_capture was called', 'by_hand.py:4')),
    ],
)
def test_a_capture_by_hand_left_open_is_reported(line: str, status: int, said: tuple[str, str], tmp_path: Path) -> None:
    script = tmp_path / 'by_hand.py'
    script.write_text(LEFT_OPEN.format(line=line))
    kept = ['--save', str(tmp_path / 'r.json'), '--report', str(tmp_path / 'r.html')]
    ran = called('run', '--simulate', *kept, str(script))
    saved = Recording.load(tmp_path / 'r.json')
    assert ran.returncode == status and 'report of a failed capture' in ran.stderr
    assert (saved.outcome, saved.node_count) == ('failed', 1)
    assert all(word in (tmp_path / 'r.html').read_text() for word in said)

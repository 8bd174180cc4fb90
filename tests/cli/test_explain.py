"""What ``explain`` and ``rules`` say: derived from the table, held against the measured cells; every example is run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from capturekit.cli import explain
from capturekit.cli import rules as rules_command
from capturekit.cli.examples import KINDS, LESSONS, MEANINGS, program
from capturekit.lab.lint import _NOTES
from capturekit.model import errors
from capturekit.model.rules import RULES, Code, Rule
from tests.command import called
from tests.measured import MODES, UNJOINED
from tests.model.test_rules import CELLS, ROWS

TOPICS = explain.topics()
CODES = {name: topic for name, topic in TOPICS.items() if isinstance(topic, Code)}
SHOWN = [name for name, lesson in LESSONS.items() if lesson.wrong and not lesson.unshown]
MODE_NAMES = {name: mode.name.lower() for name, mode in MODES.items()}


def run(code: str, name: str) -> None:
    """Run an example as a script of its own."""
    space = {'__name__': '__main__'}
    try:
        exec(compile(program(code), f'<{name}>', 'exec'), space)
    finally:
        space.clear()


def raised(code: str, name: str) -> RuntimeError:
    with pytest.raises((RuntimeError, AssertionError)) as info:
        run(code, name)
    error: Any = info.value
    return error  # type: ignore[no-any-return]


def explained_by(name: str) -> type[RuntimeError]:
    """The exception that a lesson explains."""
    topic = TOPICS[name]
    if isinstance(topic, Code):
        named = {
            'cudaErrorStreamCaptureImplicit': errors.LegacyStreamError,
            'cudaErrorGraphExecUpdateFailure': errors.UpdateError,
        }
        return named.get(name, errors.UnmatchedError)
    return topic.error if isinstance(topic, Rule) else topic


# -- examples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', SHOWN)
def test_wrong_example_raises_what_it_explains(sim: Any, name: str) -> None:
    error = raised(LESSONS[name].wrong, name)
    if LESSONS[name].raises:
        assert type(error).__name__ == LESSONS[name].raises
        assert f'\nWrong: {LESSONS[name].raises}\n' in explain.explain(name)
    else:
        assert isinstance(error, ck.CaptureError if name == 'CaptureError' else explained_by(name))
        if name in RULES and name != 'invalidated':  # which says between which lines it was lost
            assert isinstance(error, ck.CaptureError) and error.rule.startswith(RULES[name].says)
    del error


@pytest.mark.parametrize('name', [name for name in CODES if explain.lesson(CODES[name]).wrong])
def test_wrong_example_of_a_code_would_be_answered_with_it(sim: Any, name: str) -> None:
    error = raised(explain.lesson(CODES[name]).wrong, name)
    assert isinstance(error, ck.CaptureError)
    assert error.cuda_error == name
    said = explain.explain(name)
    assert f'\nWrong: {type(error).__name__}\n' in said
    del error


@pytest.mark.parametrize('name', [name for name in LESSONS if LESSONS[name].right])
def test_right_example_holds_with_its_launches_and_not_without(sim: Any, name: str) -> None:
    device = sim.__capturekit_simulated__
    launches: list[Any] = []
    launch: Callable[..., Any] = device.graph_launch

    def counted(*args: Any) -> Any:
        launches.append(args)
        return launch(*args)

    # First without, as what a launch left in memory might be found there by the next run.
    device.graph_launch = lambda *args: None
    with pytest.raises((AssertionError, ck.CaptureError)):
        run(LESSONS[name].right, name)
    device.graph_launch = counted
    run(LESSONS[name].right, name)
    assert launches


def test_every_word_has_a_lesson_and_every_lesson_a_word() -> None:
    assert set(LESSONS) <= set(TOPICS)
    assert set(MEANINGS) == set(CODES.values())
    for name, topic in TOPICS.items():
        lesson = explain.lesson(topic)
        assert lesson.met, name
        if not lesson.wrong:
            assert lesson.unshown or name == 'cudaErrorTimeout', name
        assert lesson.right or name == 'cudaErrorTimeout', name
    assert {int(code) for code in CODES.values()} >= set(range(900, 911))
    for name in RULES:
        assert LESSONS[name].met and LESSONS[name].wrong and LESSONS[name].right, name
    assert all(explain.find(name) is topic for name, topic in TOPICS.items()), 'no two topics share a word'


def test_kinds_of_steps_and_of_findings_are_explained() -> None:
    assert set(KINDS) >= {'adapted', 'assumed', 'constant', 'drawn', 'seam', *_NOTES}
    for name, kind in KINDS.items():
        said = explain.explain(name)
        assert said.startswith(f'{name}  a kind of step in recordings\n  {kind.says.split()[0]} ')
        assert '\nRight\n' in said and name in explain.listing()


@pytest.mark.gpu
@pytest.mark.skipif(sys.version_info < (3, 12), reason='before 3.12 every array there is is kept')
@pytest.mark.parametrize('name', [name for name, lesson in LESSONS.items() if lesson.wrong and lesson.unshown])
def test_wrong_example_that_needs_a_gpu(name: str) -> None:
    assert type(raised(LESSONS[name].wrong, name)) is explained_by(name)
    run(LESSONS[name].right, name)


# -- what it says is the table's ------------------------------------------------------------------------------


@pytest.mark.parametrize('name', TOPICS)
def test_explanations_fit_a_terminal(name: str) -> None:
    said = explain.explain(name)
    assert max(map(len, said.splitlines())) <= 100
    assert said.endswith('\n') and not said.endswith('\n\n')
    assert '``' not in said and ':class:' not in said
    if name in RULES:
        assert all(word in said for word in (RULES[name].error.__name__, 'CUDA answers', 'Instead'))
        assert RULES[name].says in ' '.join(said.split()) and RULES[name].remedy in ' '.join(said.split())


def test_what_the_table_says_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table, another explanation: nothing of it is written down twice."""
    said = ' '.join(explain.explain('904').split())
    assert 'every mode: 904 cudaErrorStreamCaptureUnjoined; the status is then None, ending gives 401' in said
    said = ' '.join(explain.explain('invalidated').split())
    assert '901 cudaErrorStreamCaptureInvalidated; the status is then Invalidated, ending gives 901' in said

    def lenient(row: Any) -> Any:
        return (*row[:3], ROWS['malloc'][3], row[4]) if row[4] == 'isolation' else row

    explain.cases.cache_clear()
    monkeypatch.setattr(explain, 'ROWS', tuple(map(lenient, explain.ROWS)))
    try:
        said = explain.explain('isolation')
        assert 'relaxed: allowed' in said
        assert 'global, thread_local: 900 cudaErrorStreamCaptureUnsupported; the status is then Invalidated' in said
        assert '905' not in said
        assert 'waitEvent(outside event)' in explain.explain('900')
        assert 'Instead: Wait before the capture begins' in explain.explain('IsolationError')
    finally:
        explain.cases.cache_clear()


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        ('malloc', 'global, thread_local; relaxed'),
        ('malloc other thread', 'global; thread_local, relaxed'),
        ('deviceSynchronize', 'every mode'),
        ('memset sync', 'every mode, non-blocking origin; every mode, blocking origin'),
        (
            'streamSynchronize(legacy)',
            'global, thread_local, non-blocking origin; every mode, blocking origin; relaxed, non-blocking origin',
        ),
    ],
)
def test_situations_are_said_shortly(call: str, said: str) -> None:
    assert '; '.join(where for where, _answer in explain.situations(ROWS[call][3])) == said


# -- words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('words', 'name'),
    [
        ('905 cudaerrorstreamcaptureisolation CUDA_ERROR_STREAM_CAPTURE_ISOLATION StreamCaptureIsolation',
         'cudaErrorStreamCaptureIsolation'),
        ('host-read host_read', 'host-read'),
        ('HostReadError capturekit.HostReadError', 'HostReadError'),
        ('401', 'cudaErrorIllegalState'),
    ],
)  # fmt: skip
def test_words_as_people_write_them(words: str, name: str) -> None:
    assert [word for word in words.split() if explain.find(word) is not TOPICS[name]] == []


def test_a_word_is_explained_and_without_one_all_are_listed() -> None:
    ran = called('explain', '905')
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, '', explain.explain('905'))
    assert ran.stdout.startswith('905  cudaErrorStreamCaptureIsolation\n')
    lines = called('explain').stdout.splitlines()
    assert len(lines) == len(TOPICS) and max(map(len, lines)) <= 100
    assert all(name in line.split()[:2] for name, line in zip(TOPICS, lines))


@pytest.mark.parametrize(
    ('word', 'close'), [('isolatoin', 'isolation'), ('HostReedError', 'HostReadError'), ('9005', '905'), ('%%', '')]
)
def test_an_unknown_word_is_answered_with_close_ones(word: str, close: str) -> None:
    ran = called('explain', word)
    assert (ran.returncode, ran.stdout) == (2, '')
    assert ran.stderr.startswith(f'capturekit: there is no code, rule, kind of step or exception {word!r}')
    if close:
        near = ran.stderr.strip().partition('close to it: ')[2].split(', ')
        assert close in near or TOPICS[near[0]] is explain.find(close)
    else:
        assert 'close' not in ran.stderr


# -- the table ------------------------------------------------------------------------------------------------


def test_the_table_as_json_has_every_measured_cell() -> None:
    ran = called('rules', '--json')
    assert ran.returncode == 0
    entries = {(e['call'], e['mode'], e['origin']): e for e in json.loads(ran.stdout)}
    for cell in CELLS:
        label, result = str(cell['operation']), str(cell['result'])
        origin = {'nonblocking': 'non-blocking'}.get(str(cell['origin']), str(cell['origin']))
        entry = entries[label, MODE_NAMES[str(cell['mode'])], origin]
        if result.startswith('cudaError') or result == 'cudaSuccess':
            assert entry['name'] == result, cell
        assert entry['refused'] == (result not in ('cudaSuccess', 'CUDA_SUCCESS'))
        if label != 'end (nothing illegal)':
            assert entry['status_after'] == cell['status_after'], cell
            # where a side stream is left so that a good capture ends unjoined, that is what was measured
            assert label in UNJOINED or entry['end_capture'] == cell['end_capture'], cell
        assert entry['rule'] == '' or entry['raises'] == RULES[entry['rule']].error.__name__


@pytest.mark.parametrize('args', [(), ('--mode', 'global'), ('--mode', 'thread_local'), ('--mode', 'relaxed')])
def test_the_table_fits_a_terminal(args: tuple[str, ...]) -> None:
    ran = called('rules', *args)
    assert ran.returncode == 0
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines if line != line.rstrip()]
    refusals = [line.split()[-1] for line in lines if line.startswith('  ') and '90' in line]
    assert len(refusals) > 30 and set(refusals) <= set(RULES)
    assert len([line for line in lines if line.startswith('  ')]) > len(explain.cases()) / 2


def test_cells_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(rules_command.table_of(list(MODES.values())))
    at = lines.index('streamSynchronize')
    assert lines[at + 3].split() == 'outside 900! 900! 900! 900! ok ok unsafe-sync-in-mode'.split()
    assert lines[at + 4].split() == 'legacy 900! 906! 900! 906! ok 906! legacy-stream'.split()
    at = lines.index('endCapture')
    assert [line.split()[-2:] for line in lines[at:] if line.startswith('  origin, from')] == [
        ['ends', 'end-wrong-thread']
    ]
    one = list(rules_command.table_of([MODES['Relaxed']]))
    assert one[0].split() == ['non-blocking', 'blocking', 'rule']
    (legacy,) = [line for line in one if line.startswith('  legacy, from another thread')]
    assert 'allowed' in legacy and '906, Invalidated' in legacy and legacy.endswith('legacy-stream')

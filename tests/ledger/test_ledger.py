"""The launch ledger: what is noted of calls, two ledgers compared, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed import faster_way, policy
from tests.corpus.harness import GUIDE
from tests.ledger import __main__ as command
from tests.ledger.compare import KEPT, Ledger, compared, merged, read, reasons, sums, table, write
from tests.ledger.outcomes import absent, general, noted
from tests.ledger.programs import KINDS

WATCHED = 'eager: to see what they read'
OLD = Ledger({'python': '3.13'}, {
    'wild/one': [WATCHED, 'launched', 'launched'], 'wild/two': [WATCHED, 'in parts'], 'random/0': ['eager: why'],
    'random/1': ['not there: no module'], 'random/2': ['launched'],
})  # fmt: skip


@pytest.mark.parametrize(
    ('reason', 'want'),
    [
        ('because f (train.py:12) holds 3 of 0x7f3a, at /home/me/x/train.py:7', 'f a line holds # of #, at a line'),
        ('n is 2.5e-3 and was -1, \'a\' and "b"', "n is # and was #, '...' and '...'"),
        ('One. Two of float32. Three', 'One. Two of float32'),
        ('it hands on decimal.Decimal.ln: what', 'it hands on a function: what'),
    ],
)
def test_reasons_have_no_values_lines_and_addresses(reason: str, want: str) -> None:
    assert general(reason) == want


def test_what_becomes_of_calls_is_noted(sim: Any) -> None:
    rates = [1.0]

    @ck.graphed
    def inner(v: Any) -> Any:
        return v * rates[0]

    @ck.graphed(pieces=True)
    def outer(v: Any) -> Any:
        return inner(v) + sim.linalg.eigvalsh(sim.diag(v))

    x = sim.arange(3.0)
    with noted() as calls:
        for number in range(6):
            outer(x + number)
        del calls[:-1]
        for rate in (1.0, 1.0, 2.0):
            rates[0] = rate
            inner(x)
        inner(sim.ones(4))
        with ck.capture():
            inner(x)
    inner(x)
    assert calls[0] == 'in parts'
    assert calls[1:3] == [WATCHED, 'launched']
    assert calls[3].startswith(f'{WATCHED}: variable rates[#] of the closure of ')
    assert calls[4:] == [f'{WATCHED}, of a new kind', 'eager: as a plain call']


@pytest.mark.parametrize('name', ['ledger.json', 'ledger.json.gz'])
def test_a_ledger_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    write(OLD, tmp_path / name)
    assert read(tmp_path / name) == OLD
    before = (tmp_path / name).read_bytes()
    write(read(tmp_path / name), tmp_path / name)
    assert (tmp_path / name).read_bytes() == before


def test_kinds_that_were_not_run_stay() -> None:
    found = merged(OLD, Ledger(OLD.about, {'wild/three': []}))
    assert list(found.programs) == ['random/0', 'random/1', 'random/2', 'wild/three']


def test_sums() -> None:
    assert dict(sums(OLD)) == {
        'wild': [2, 2, 2, 5, 2, 1, 2], 'random': [3, 2, 1, 2, 1, 0, 1], 'all': [5, 4, 3, 7, 3, 1, 3],
    }  # fmt: skip
    assert '| all | 5 | 4 | 3 | 7 | 3 | 1 | 3 |' in table(OLD)
    assert reasons(OLD) == {WATCHED: 2, 'eager: why': 1}


def test_what_is_no_longer_launched_is_told_with_its_reason() -> None:
    assert compared(OLD, OLD) == ([f'Old:\n{table(OLD)}New:\n{table(OLD)}'], False)
    lost = Ledger(
        {'python': '3.12'}, {**OLD.programs, 'wild/two': [WATCHED, 'eager: a loop'], 'random/0': ['launched']}
    )
    lines, fewer = compared(OLD, lost)
    assert not fewer  # as many as before
    assert lines[:-1] == [
        'python: 3.13 and 3.12', 'No longer launched: 1', '  wild/two: 1 and 0 of 2 calls; eager: a loop',
        'Launched now: 1', '  random/0: 0 and 1 of 1 calls',
    ]  # fmt: skip
    less = {**OLD.programs, 'wild/one': [WATCHED, WATCHED, 'launched'], 'random/1': ['launched'] * 9}
    lines, fewer = compared(OLD, Ledger(OLD.about, less))
    assert fewer  # a program that did not run before is none of those launched now
    assert lines[:-1] == [
        'Launched less often: 1', f'  wild/one: 2 and 1 of 3 calls; {WATCHED}',
        'Ran in the new one only: 1, as random/1',
    ]  # fmt: skip
    gone = {**OLD.programs, 'random/2': [absent('no module')]}
    lines, fewer = compared(OLD, Ledger(OLD.about, gone))
    assert not fewer and lines[:-1] == ['Ran in the old one only: 1, as random/2; not there: no module']


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def called(*args: object) -> int:
        monkeypatch.setattr('sys.argv', ['ledger', *map(str, args)])
        return command.main()

    for module, name in ((policy, 'LONGEST'), (faster_way, 'STOPWATCH')):  # the command sets them for its process
        monkeypatch.setattr(module, name, getattr(module, name))
    old, new = tmp_path / 'old.json', tmp_path / 'new.json.gz'
    for path in (old, new):
        assert called('--only', 'random', '--random', 4, '--out', path) == 0
    assert read(old) == read(new)
    assert '| random | 4 | 4 | ' in capsys.readouterr().out
    write(OLD, tmp_path / 'other.json')
    with pytest.raises(SystemExit):
        called('--only', 'random', '--out', tmp_path / 'other.json')
    assert 'other.json was made on ' in capsys.readouterr().err
    assert called('--compare', old, new) == 0
    found = read(new)
    found.programs = {name: [WATCHED for _ in calls] for name, calls in found.programs.items()}
    write(found, new)
    assert called('--compare', old, new) == 1
    assert 'No longer launched: ' in capsys.readouterr().out


def test_the_kept_ledger_is_of_the_programs_that_are_there() -> None:
    kept = read(KEPT)
    assert {name.partition('/')[0] for name in kept.programs} == KINDS.keys()
    assert {f'corpus/{case.name}' for case in GUIDE} == {name for name in kept.programs if name.startswith('corpus/')}
    assert KEPT.stat().st_size < 200_000

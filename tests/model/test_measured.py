"""The command that measures the driver, made to measure what answers otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capturekit.model import rules
from tests import measured
from tests.gpu import measure_rules

pytestmark = pytest.mark.slow

#: A driver that answers as the files say, but for what ``ODD`` does.
FAKE = """
import os, time
from tests import measured

KNOWN = {{measured.key(cell): cell for cell in measured.read(measured.files())}}
OPERATIONS = list(dict.fromkeys(at[0] for at in KNOWN))


def risky(name):
    return name.startswith('profiler')


def machine():
    return {{'device': 'NVIDIA T0', 'driver': '1.2.3', 'driver_version': 13000, 'runtime_version': 13000,
            'cuda_bindings': '13.0.0'}}


def cell(name, mode, blocking):
    found = dict(KNOWN[name, mode, 'blocking' if blocking else 'nonblocking'])
    del found['driver_version']
    if (name, mode, blocking) == {where!r}:
        {odd}
    return found
"""
#: Made odd: a cell in the middle of those that share a process.
WHERE = ('streamSynchronize(perthread)', 'ThreadLocal', True)
AT = 'streamSynchronize(perthread), ThreadLocal, blocking origin'

Run = Callable[[str], tuple[int, list[str], dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command on a fake driver, for one operation; its status, what it printed, what it wrote."""

    def go(odd: str) -> tuple[int, list[str], dict[str, Any]]:
        (tmp_path / 'fake_driver.py').write_text(FAKE.format(where=WHERE, odd=odd))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(measure_rules.sys.modules, 'fake_driver', raising=False)
        out = tmp_path / 'out.json'
        asked = ['--cells', 'fake_driver', '--out', str(out), '--jobs', '2', '--patience', '60', '--only', WHERE[0]]
        status = measure_rules.main(asked)
        return status, capsys.readouterr().out.splitlines(), json.loads(out.read_text())

    return go


def test_cells_are_written_and_one_that_differs_is_named(run: Run) -> None:
    status, said, written = run("found.update({'result': 'cudaSuccess', 'status_after': 'Active'})")
    assert status == 1
    files = ' + '.join(path.name for path in measured.files())
    assert said == [
        'NVIDIA T0, driver 1.2.3, 12 cells',
        f'1 of 12 differ from {files}',
        f'  {AT}: result was cudaErrorStreamCaptureUnsupported, is cudaSuccess; '
        'status_after was Invalidated, is Active',
        '1 of 12 differ from capturekit/model/rules.py',
        f'  {AT}: the table says cudaErrorStreamCaptureUnsupported, Invalidated, cudaErrorStreamCaptureInvalidated; '
        'it is cudaSuccess, Active, cudaErrorStreamCaptureInvalidated',
    ]
    first = json.loads((measured.DATA / 'driver_rules.json').read_text())
    assert first.keys() <= written.keys()
    assert written['device'] in written['about'] and written['date'] in written['about']
    status, said, again = run('pass')
    assert status == 0 and sum('0 of 12 differ from ' in line for line in said) == 2
    held = {measured.key(cell): cell for cell in measured.read(measured.files())}
    for number, cell in enumerate(again['cells']):
        wanted = dict(held[measured.key(cell)])
        del wanted['driver_version']
        assert cell == wanted
        assert (cell == written['cells'][number]) == (measured.key(cell) != (*WHERE[:2], 'blocking'))


# -- the calls themselves -------------------------------------------------------------------------------------


class Anything:
    """Stands for each stream, event and address of a bench; handles are null."""

    def __init__(self, rt: Any) -> None:
        self.note, self.mode, self._rt = '', rt.cudaStreamCaptureMode(2), rt
        self.relaxed = self.other = lambda call: call()
        self.cubin = b''

    def __getattr__(self, name: str) -> Any:
        kinds = {
            'cudaStream_t': ('origin', 'side', 'free', 'free_blocking', 'spare_stream'),
            'cudaEvent_t': ('captured', 'outside', 'outside2', 'never', 'scratch', 'dead'),
            'cudaGraph_t': ('graph', 'spare_graph'),
            'cudaGraphExec_t': ('exec', 'spare_exec'),
            'cudaMemPool_t': ('pool', 'spare_pool'),
        }
        kind = next((kind for kind, names in kinds.items() if name in names), None)
        return 0 if kind is None else getattr(self._rt, kind)(0)


def test_the_command_lists_the_operations_in_file_order() -> None:
    cells = pytest.importorskip('tests.gpu.rule_cells')
    held = measured.read([measured.DATA / name for name in ('driver_rules.json', 'driver_rules_more.json')])
    assert list(cells.OPERATIONS) == list(dict.fromkeys(cell['operation'] for cell in held))
    assert {row[0] for row in rules.ROWS} - set(cells.OPERATIONS) == {'memsetAsync(side captured)'}
    assert 20 < sum(map(cells.risky, cells.OPERATIONS)) < 60


def test_calls_fit_the_signatures_of_cuda_bindings() -> None:
    """Without a driver every call is refused; one that is written wrongly is a TypeError or AttributeError."""
    cells = pytest.importorskip('tests.gpu.rule_cells')
    if int(cells.rt.cudaGetDeviceCount()[0]) == 0:
        pytest.skip('there is a driver: null handles would be used')
    bench, said = Anything(cells.rt), set()
    for name, call in cells.OPERATIONS.items():
        try:
            said.add(call(bench)[0].name)
        except RuntimeError as error:  # ok(): an answer that must be a success; or no libcuda to load
            assert any(one in str(error) for one in ('InsufficientDriver', 'NoDevice', 'libcuda', 'driver library')), (
                name
            )
    assert len(said) < 5

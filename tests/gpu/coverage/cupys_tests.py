"""CuPy's own tests with each CuPy side recorded, too: ``python -m tests.gpu.coverage.cupys_tests FOLDER``.

FOLDER is ``tests`` of CuPy's sources. Its tests call a function with NumPy and with CuPy and compare the two. This is a
plugin of pytest's that makes, behind each call with CuPy that raised nothing, the same call once more eagerly, four
times under ``ck.graphed``, and once in a block with a rehearsal and ``pieces=True`` whose graph is launched twice.
Answers have to be equal; calls that give something else in two eager runs are left out. Assertions are compiled as they
are written: pytest would make calls of its own of them.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: The folders of the tests, as CuPy names them.
FOLDERS = (
    *(f'cupyx_tests/scipy_tests/{name}_tests' for name in
      ('signal', 'ndimage', 'interpolate', 'sparse', 'stats', 'special', 'fft', 'linalg', 'spatial')),
    'cupy_tests/random_tests',
)  # fmt: skip
COLUMNS = ('graphed', 'pieces')
#: The environment variables by which the command tells its plugin the share of tests, the folder for rows, the columns.
SHARE, ROWS, WAYS = 'CAPTUREKIT_CUPYS_SHARE', 'CAPTUREKIT_CUPYS_ROWS', 'CAPTUREKIT_CUPYS_COLUMNS'
#: What can't be told of a call: two eager runs differ, or its answer is of a class that nothing here compares.
UNSTEADY, UNKNOWN = 'two eager runs differ', 'not compared'
#: Why calls are eager that no variant has a reason for.
OTHER_VALUES = 'each call reads other values on the host than the recordings'
NAMES = ('equal', 'refused', 'lost', 'wrong', 'other error')


class Plugin:
    """Judges the calls of CuPy's tests, and writes a row of JSON for each."""

    def __init__(self) -> None:
        self.share = int(os.environ.get(SHARE, '1'))
        worker = os.environ.get('PYTEST_XDIST_WORKER', 'main')
        self.rows = open(Path(os.environ[ROWS]) / f'{worker}-{os.getpid()}.jsonl', 'a')  # noqa: SIM115
        self.test = ''

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        random.Random(1).shuffle(items)  # mixed: a run that is stopped is a sample
        del items[len(items) // self.share :]

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = item.nodeid

    def judge(self, call: Callable[[], Any]) -> None:
        """Make one call in all ways, and write what came of it."""
        from tests.gpu.coverage import child
        from tests.gpu.coverage.values import difference

        try:
            first, second = child.eager(call), child.eager(call)
        except TypeError as error:
            self.write({'left out': f'{UNKNOWN}: {error}'})
            return
        except Exception as error:
            self.write({'left out': f'{UNSTEADY}: {type(error).__name__}: {error}'[:200]})
            return
        if text := difference(first, second):
            self.write({'left out': f'{UNSTEADY}: {text}'})
            return
        for column in os.environ[WAYS].split():
            self.write({'begun': column})
            row: dict[str, Any] = {'column': column}
            child.judge(self.test, call, lambda: first, row)
            child.KEPT.clear()
            self.write(row)

    def write(self, row: dict[str, Any]) -> None:
        self.rows.write(json.dumps({'test': self.test, **row}, default=str) + '\n')
        self.rows.flush()


def pytest_configure(config: Any) -> None:
    hands_out = config.getoption('dist', 'no') != 'no' and 'PYTEST_XDIST_WORKER' not in os.environ
    if ROWS not in os.environ or hands_out:
        return
    from cupy.testing import _loops

    plugin = Plugin()
    config.pluginmanager.register(plugin, 'capturekit-cupys-tests')
    plain = _loops._call_func_cupy

    def judged(impl: Any, args: Any, kw: Any, name: str, sp_name: Any, scipy_name: Any) -> Any:
        result, error = plain(impl, args, kw, name, sp_name, scipy_name)
        if error is None:
            names = module_names(name, sp_name, scipy_name)
            plugin.judge(lambda: impl(*args, **kw, **names))
        return result, error

    _loops._call_func_cupy = judged


def module_names(name: str, sp_name: str | None, scipy_name: str | None) -> dict[str, Any]:
    """CuPy's modules under the names by which a test asks for them."""
    import cupy
    import cupyx.scipy.sparse

    modules = {name: cupy, sp_name: cupyx.scipy.sparse, scipy_name: cupyx.scipy}
    return {name: module for name, module in modules.items() if name}


def rows_in(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob('*.jsonl')):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def tell(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The counts of each column, and the reasons for what is not equal or stays eager."""
    left_out = collections.Counter(row['left out'].split(':')[0] for row in rows if 'left out' in row)
    yield f'left out: {dict(left_out)}'
    begun = collections.Counter((row['test'], row['begun']) for row in rows if 'begun' in row)
    begun.subtract((row['test'], row['column']) for row in rows if 'column' in row)
    for (test, column), _ in (+begun).items():
        yield f'{column}: no answer, the process ended or was stopped in {test}'
    for column in COLUMNS:
        mine = [row for row in rows if row.get('column') == column]
        counts = collections.Counter(row['outcome'] for row in mine)
        ways = collections.Counter(row.get('how', '') for row in mine if row['outcome'] == 'equal')
        words = ', '.join(f'{counts[name]} {name}' for name in NAMES if counts[name])
        yield f'{column}: {len(mine)} calls: {words}; {dict(ways) if any(ways) else ""}'
        reasons = collections.Counter(reason_of(row) for row in mine if reason_of(row))
        for reason, count in reasons.most_common(25):
            example = next(row['test'] for row in mine if reason_of(row) == reason)
            yield f'  {count} x {reason}   ({example.split("/")[-1][:90]})'


def reason_of(row: dict[str, Any]) -> str:
    if row['outcome'] != 'equal':
        return f'{row["outcome"]}: {row.get("error", "")}: {" ".join(row.get("text", "").split())[:230]}'
    if row.get('how') == 'eager':
        return 'eager: ' + next((one['reason'][:230] for one in row.get('variants', ()) if one['reason']), OTHER_VALUES)
    return ''


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.gpu.coverage.cupys_tests', description=__doc__)
    parser.add_argument('folder', type=Path, help="the folder 'tests' of CuPy's sources")
    parser.add_argument('--only', nargs='+', default=FOLDERS, help='folders or files in it (default: cupyx and random)')
    parser.add_argument('--columns', nargs='+', choices=COLUMNS, default=COLUMNS, help='what to try (default: both)')
    parser.add_argument('--share', type=int, default=1, help='run one test of so many (default: all)')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), help='processes at once (default: one a core)')
    parser.add_argument('--limit', type=float, default=3600, help='seconds after which it stops (default: an hour)')
    parser.add_argument('--json', type=Path, help='a file for all rows')
    given = parser.parse_args()
    here = Path(__file__).parents[3]
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(here), os.environ.get('PYTHONPATH', '')])
        chosen = {SHARE: str(given.share), ROWS: folder, WAYS: ' '.join(given.columns)}
        environment = {**os.environ, **chosen, 'PYTHONPATH': paths}
        command = [
            sys.executable, '-m', 'pytest', '-q', '-p', __spec__.name, '-p', 'no:cacheprovider', '-n', str(given.jobs),
            '--tb=no', '--assert=plain', '-c', os.devnull, '--rootdir', str(given.folder),
            *(str(given.folder / one) for one in given.only),
        ]  # fmt: skip
        try:
            said = subprocess.run(
                command, env=environment, timeout=given.limit, stdout=subprocess.PIPE, text=True
            ).stdout
        except subprocess.TimeoutExpired:
            said = 'not finished: the limit of time was reached'
        print(*said.splitlines()[-3:], sep='\n')
        rows = list(rows_in(Path(folder)))
    print(*tell(rows), sep='\n')
    if given.json is not None:
        given.json.write_text(json.dumps(rows))
    return 0


if __name__ == '__main__':
    sys.exit(main())

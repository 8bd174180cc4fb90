"""``python -m tests.benchmarks.readme RESULTS.json``: the tables in docs/evidence/costs.md of a committed run of
``workloads``, ``peers`` or ``memory``, as Markdown. A test holds the page against it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

#: The columns: the ways that every workload has, and the ratio of the fusion of a graph to fusion by hand.
BY_ITSELF = 'graph, fused / fused graph'
WAYS = ('fused', 'graph', 'fused graph', 'graph, fused', BY_ITSELF, 'graphed', 'torch eager', 'torch graph')
PEERS = ('eager', 'graphed', 'graphed, fused', 'graph', 'graph, fused', 'torch eager', 'torch compile', 'jax')
PEER_HEAD = (
    'CuPy eager', '`@ck.graphed`', '`@ck.graphed(fuse=True)`', 'graph', 'fused graph', 'torch eager', 'torch.compile',
    'jax.jit',
)  # fmt: skip
HEAD = (
    'CuPy eager, us', 'fused', 'graph', 'fused + graph', 'graph, `fuse=True`', 'that / fused + graph', '`@ck.graphed`',
    'torch eager', 'torch graph',
)  # fmt: skip


def machine(about: dict[str, str]) -> str:
    """One sentence about what the numbers hold for."""
    packages = [
        name for name in ('cupy-cuda13x', 'cupy-cuda12x', 'torch', 'jax') if about.get(name, 'absent') != 'absent'
    ]
    versions = ', '.join(f'{name} {about[name]}' for name in packages)
    tf32 = f', TF32 {about["TF32"]}' if 'TF32' in about else ''
    return f'{about["device"]}, {about["runtime"]}, {versions}{tf32}.'


def workloads(results: dict[str, Any]) -> str:
    """A row for each workload: microseconds of the eager call, and the ratio of each other way to it."""
    lines = {line['name']: line for line in results['lines']}
    rows = []
    further = []
    for name, line in lines.items():
        title, _, way = name.rpartition(': ')
        if way != 'eager':
            continue
        cells = [cell(lines.get(f'{title}: {way_of(other)}')) for other in WAYS]
        rows.append([title, number(line['medians']['eager']), *cells])
        further += [
            f'{title}: {other} {cell(lines.get(f"{title}: {other} / eager"))}'
            for other in line['medians']
            if other not in (*WAYS, 'eager', 'graph, fast')
        ]
    text = table(('workload', *HEAD), rows)
    return text + ''.join(f'\n{line}.' for line in further) + '\n' * bool(further)


def peers(results: dict[str, Any]) -> str:
    """A row for each program: microseconds of a call in each library; '-' where it is not there."""
    rows = []
    for line in results['lines']:
        title, _, way = line['name'].rpartition(': ')
        if way == 'eager':
            rows.append([title, *(number(line['medians'][one]) if one in line['medians'] else '-' for one in PEERS)])
    return table(('microseconds a call', *PEER_HEAD), rows)


def memory(results: dict[str, Any]) -> str:
    """A row for each line: megabytes, and the ratio to what the eager run takes."""
    rows = []
    for line in results['lines']:
        name = line['name'].removeprefix('memory, ').removesuffix(' / eager')
        held, eager = list(line['medians'].values())[:2]
        rows.append([name, number(held), number(eager), cell(line)])
    return table(('memory', 'MB', 'eager, MB', 'ratio'), rows)


def way_of(name: str) -> str:
    """The ratio that a column shows: that of a way to the eager run, or the one that it names itself."""
    return name if ' / ' in name else f'{name} / eager'


def cell(line: dict[str, Any] | None) -> str:
    return '-' if line is None or line['ratio'] is None else f'{line["ratio"]:.2f}'


def number(value: float) -> str:
    return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ['---'] * len(head), *rows]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def rendered(results: dict[str, Any]) -> str:
    parts = {line['part'] for line in results['lines']}
    with_jax = any(line['name'].endswith(': jax / eager') for line in results['lines'])
    made = memory if parts == {'memory'} else peers if with_jax else workloads
    return f'{machine(results["machine"])}\n\n{made(results)}'


if __name__ == '__main__':
    print(rendered(json.loads(Path(sys.argv[1]).read_text(encoding='utf-8'))), end='')

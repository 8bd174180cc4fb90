"""``python -m tests.notebooks`` runs the notebooks of samples/ on the simulated device and saves what they show.

The cells are run by ``exec``, and not by nbclient: that brings Jupyter's client, a kernel and ZeroMQ, and starts a
process with sockets, to run some twenty lines whose outputs are prints, values and pictures. What is saved is
nbformat 4, as Jupyter writes it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import sys
from pathlib import Path
from typing import Any

from capturekit.model.progress import each
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.pages import ROOT, without_handles

NOTEBOOKS = sorted((ROOT / 'samples').glob('*.ipynb'))
#: What is kept of a value's pictures: a page would be large, and GitHub shows none of it.
_SHOWN = ('text/plain', 'image/svg+xml')


def run(path: Path) -> dict[str, Any]:
    """The notebook with the outputs that its cells have on a simulated device of their own.

    Whatever a cell raises comes through: no notebook shows a traceback.
    """
    notebook: dict[str, Any] = json.loads(path.read_text(encoding='utf-8'))
    names: dict[str, Any] = {'__name__': '__main__'}
    count = 0
    install(SimulatedDevice(0))
    try:
        for cell in notebook['cells']:
            if cell['cell_type'] == 'code':
                count += 1
                cell['execution_count'] = count
                cell['outputs'] = outputs(''.join(cell['source']), f'cell {count}', names)
    finally:
        uninstall()
    return notebook


def outputs(code: str, name: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell: what it prints, and the value of its last line if that is an expression."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, name, 'exec'), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, 'eval'), names)
    found: list[dict[str, Any]] = []
    if said.getvalue():
        found.append({'name': 'stdout', 'output_type': 'stream', 'text': lines(said.getvalue())})
    if value is not None:
        bundle = value._repr_mimebundle_() if hasattr(value, '_repr_mimebundle_') else {'text/plain': repr(value)}
        data = {mime: lines(text) for mime, text in bundle.items() if mime in _SHOWN}
        count = int(name.split()[1])
        found.append({'data': data, 'execution_count': count, 'metadata': {}, 'output_type': 'execute_result'})
    return found


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def saved(notebook: dict[str, Any]) -> str:
    """A notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'


def main() -> None:
    for path in each('notebooks', NOTEBOOKS):
        text = saved(run(path))
        if without_handles(text) != without_handles(path.read_text(encoding='utf-8')):
            path.write_text(text, encoding='utf-8')
            print(path.relative_to(ROOT))


if __name__ == '__main__':
    sys.exit(main())

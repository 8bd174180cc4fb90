"""``python -m tests.pages`` brings README.md and docs/ up to date: what examples print, tables and pictures made of the
code. ``--check`` changes nothing and says what would change; tests do the same.

Every page is one script: its ``python`` blocks, in order, on the lines that they have in the page. A ``text`` block is
what the ``python`` block before it prints.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import capturekit as ck
from capturekit.cli.examples import KINDS, LESSONS, MEANINGS, program
from capturekit.model.progress import each
from capturekit.model.rules import ROWS, RULES, Effect, Rule
from capturekit.simulated import SimulatedDevice, install, uninstall
from capturekit.simulated.cupy.surface import ABSENT, READING, SCIPY
from tests import evidence
from tests.command import ROOT, started
from tests.corpus.harness import GUIDE

DOCS = ROOT / 'docs'
PICTURE = DOCS / 'pictures' / 'readme.svg'
#: The examples of ``capturekit explain`` by name, as they are written: both programs in one, as a diff.
EXAMPLES = {
    part.partition('\n')[0]: part.partition('\n\n')[2]
    for part in (ROOT / 'capturekit' / 'cli' / 'examples.diff').read_text().removeprefix('== ').split('\n== ')
}
#: Ends what one block prints, and begins the next block's.
_MARK = '\x1e'


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, and its text."""

    language: str
    line: int
    text: str


def pages() -> list[Path]:
    """The README and all pages of docs/."""
    return [ROOT / 'README.md', *sorted(DOCS.rglob('*.md'))]


def examples() -> list[Path]:
    """The pages that have examples."""
    return [path for path in pages() if any(block.language == 'python' for block in blocks(path.read_text()))]


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page."""
    found = re.finditer(r'^```(\w*)\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    return [Block(match[1], text.count('\n', 0, match.start(2)) + 1, match[2]) for match in found]


def without_handles(text: str) -> str:
    """A text without what differs from run to run: handles, addresses, and what ``explain()`` has measured."""
    text = re.sub(r'up to \d+ us at a call(.*) \d+ ms;', r'up to 0 us at a call\1 0 ms;', text)
    return re.sub(r'0x[0-9a-f]+', '0x', text)


# -- what examples print --------------------------------------------------------------------------------------


def script(text: str, *, marked: bool) -> str:
    """The python blocks of a page, each line where the page has it; ``marked``: each ends by printing a mark."""
    lines: list[str] = []
    for block in blocks(text):
        if block.language == 'python':
            lines += [''] * (block.line - 1 - len(lines))
            lines += block.text.splitlines()
            lines += [f'print({_MARK!r}, end="")'] * marked  # on the line of the fence
    return '\n'.join(lines) + '\n'


def ran(name: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run a script of that name on the simulated device, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(code)
        return started('run', '--simulate', str(path))


def printed(path: Path) -> list[tuple[Block, str]]:
    """Each python block of a page and what it prints.

    Raises:
        RuntimeError: the script failed, or said something on standard error.
    """
    text = path.read_text()
    done = ran(path.name, script(text, marked=True))
    said = done.stderr.splitlines()[1:]  # the first line says the device
    if done.returncode or said:
        raise RuntimeError(f'{path.name}: {done.stdout}{done.stderr}')
    return list(zip([one for one in blocks(text) if one.language == 'python'], done.stdout.split(_MARK)))


def shown(path: Path) -> list[str]:
    """What the page shows for each python block: the text block after it, or ''."""
    found: list[str] = []
    for block in blocks(path.read_text()):
        if block.language == 'python':
            found.append('')
        elif block.language == 'text' and found and not block.text.startswith('usage: '):
            found[-1] += block.text
    return found


def with_outputs(path: Path) -> str:
    """The page, with its text blocks as its examples print them now. Handles that only differ stay as they are."""
    text = path.read_text()
    for (block, new), old in zip(printed(path), shown(path)):
        if without_handles(new) != without_handles(old):
            fence = f'```python\n{block.text}```\n```text\n'
            assert f'{fence}{old}```' in text, f'{path.name}:{block.line} prints something, and no text block follows'
            text = text.replace(f'{fence}{old}```', f'{fence}{new}```')
    return text


# -- what is made of the code ---------------------------------------------------------------------------------


def errors() -> str:
    """A section for each exception: what it means, CUDA's codes, its rules, and an example with its repair."""
    sections = []
    for name in ck.__all__:
        kind = getattr(ck, name)
        if isinstance(kind, type) and issubclass(kind, ck.CaptureError) and kind is not ck.CaptureError:
            says = ' '.join((kind.__doc__ or '').split('\n\n')[0].split()).replace('``', '`')
            says = re.sub(r' [(](?:[0-9, ]+|[0-9]+, or .*?)[)]', '', says)
            mine = [rule for rule in RULES.values() if rule.error is kind]
            own = '\n'.join(map(section, mine)) or f'**Where:** {LESSONS[name].met}\n\n{diff(name)}'
            sections.append(f'### {name}\n{says} CUDA would say {codes(kind)}.\n\n{own}')
    return '\n'.join(sections)


def section(rule: Rule) -> str:
    adapted = adaptation(rule)
    more = f' `strict=False` records it: *{adapted}*.' if adapted else ''
    if raises := LESSONS[rule.name].raises:
        more = f' The call is left to CUDA, and the example ends with `{raises}`.'
    return f'#### {rule.name}\n{rule.says}. **Instead:** {rule.remedy}{more}\n\n{diff(rule.name)}'


def diff(name: str) -> str:
    """The example of a rule or an exception: lines of the wrong program have a minus, those of the right one a plus."""
    code = EXAMPLES[name].rstrip()
    before, _, last = code.rpartition('\n')
    return f'```diff\n{before if last.startswith("+ assert ") else code}\n```\n'


def adaptation(rule: Rule) -> str:
    """What ``strict=False`` makes of the wrong example of a rule, by a run on the simulated device; '' if nothing."""
    code = program(LESSONS[rule.name].wrong).replace('ck.capture(', 'ck.capture(strict=False, ')
    names: dict[str, Any] = {}
    install(SimulatedDevice(0))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code.replace('strict=False, )', 'strict=False)'), 'example.py', 'exec'), names)
    except RuntimeError:
        return ''
    finally:
        uninstall()
    texts = [re.sub(r'stream 0x[0-9a-f]+', 'the stream', step.text) for step in names['cap'].recording.adaptations]
    return '; '.join(texts)


def by_code() -> str:
    """What each of CUDA's codes means, and what capturekit raises instead."""
    kinds = [getattr(ck, name) for name in ck.__all__ if name.endswith('Error')]
    lines = []
    for code, meaning in MEANINGS.items():
        raises = [
            f'[{kind.__name__}](#{kind.__name__.lower()})'
            for kind in kinds
            if str(int(code)) in codes(kind).split(', ')
        ]
        told = f' capturekit raises {", ".join(raises)}.' if raises else ''
        lines.append(f'- **{int(code)}** `{code.name}`: {meaning}{told}')
    return '\n'.join(lines) + '\n'


def steps() -> str:
    """The kinds of steps in a recording that are not rules."""
    return '\n'.join(f'- `{kind.name}`: {kind.says}' for kind in KINDS.values()) + '\n'


def understood() -> str:
    """The sentences that the launch ledger's programs stand for."""
    return '\n'.join(f'- {says}' for says in dict.fromkeys(case.says for case in GUIDE)) + '\n'


#: What the driver says where the table has no row: a lane left unjoined, a capture lost before, an update refused.
_BY_PAST = {'UnjoinedError': '904', 'InvalidatedError': '901', 'UpdateError': '910', 'HostReadError': '900'}


def codes(kind: type) -> str:
    """The codes with which the driver answers calls that this exception refuses; 'nothing' where it lets them run."""
    names = {rule.name for rule in RULES.values() if rule.error is kind}
    answers = [answer for row in ROWS if row[4] in names for answer in row[3].answers]
    found = [str(code) for code in sorted({int(answer.code) for answer in answers if answer.refused})]
    if any(answer.effect is Effect.ESCAPES for answer in answers):
        found.append('or nothing' if found else 'nothing')
    return ', '.join(found) or _BY_PAST.get(kind.__name__, 'nothing')


def picture() -> str:
    """The recording of the README's first example, as an SVG."""
    readme = ROOT / 'README.md'
    first = blocks(readme.read_text())[0]
    code = '\n' * (first.line - 1) + first.text
    install(SimulatedDevice(0))
    try:
        names: dict[str, Any] = {}
        exec(compile(code, str(readme), 'exec'), names)
        return ck.render.to_svg(names['cap'].graph.describe())
    finally:
        uninstall()


def simulated() -> str:
    """What the simulated CuPy has: of each module, how much of CuPy's."""
    rows = ['| module | what it has |', '| --- | --- |']
    absent = ', '.join(f'`{name}`' for name in sorted(ABSENT))
    rows.append(f'| `cupy` | all of CuPy 14 but {absent} |')
    rows.append(
        '| `cupy.cuda`, `.fft`, `.linalg`, `.random` | nearly all; no textures, surfaces and memory pools by handle |'
    )
    for module, names in SCIPY.items():
        reads = len(READING.get(module, ()))
        seen = f'; {reads} of them read on the host, as in CuPy' if reads else ''
        rows.append(f'| `cupyx.scipy.{module}` | {len(names.split())} functions, where SciPy is installed{seen} |')
    rows.append('| `cupyx.scipy.sparse` | `csr_matrix`, and with SciPy other formats and their arithmetic; `eigsh` |')
    return '\n'.join(rows) + '\n'


_PARTS: dict[str, Callable[[], str]] = {
    'errors': errors,
    'codes': by_code,
    'steps': steps,
    'understood': understood,
    'simulated': simulated,
    **{name: lambda part=part: '\n'.join(part()) + '\n' for name, part in evidence.PARTS.items()},
}


def with_parts(text: str) -> str:
    """A page, with what lies between its marks made anew."""
    for name, make in _PARTS.items():
        start = f'<!-- {name} -->\n'
        if start in text:
            before, rest = text.split(start)
            text = f'{before}{start}\n{make()}\n<!-- end -->{rest.split("<!-- end -->", 1)[1]}'
    return text


# -- the command ----------------------------------------------------------------------------------------------


def stale() -> Iterator[tuple[Path, str]]:
    """What is no longer as the code has it, and what it should be."""
    for path in each('pages', pages()):
        text = path.read_text()
        new = with_parts(text) if '<!-- end -->' in text else text
        if path in examples():
            new = with_outputs(path)
        if new != text:
            yield path, new
    drawn = picture()
    if not PICTURE.exists() or without_handles(PICTURE.read_text()) != without_handles(drawn):
        yield PICTURE, drawn


def main(check: bool) -> int:
    found = list(stale())
    for path, new in found:
        print(path.relative_to(ROOT))
        if not check:
            path.write_text(new)
    # what is written moves the lines below it, which messages name
    return int(bool(found)) if check or not found else main(check)


if __name__ == '__main__':
    sys.exit(main('--check' in sys.argv[1:]))

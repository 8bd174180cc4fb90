"""The README, docs/ and the notebooks are checked against the code: examples run, what they print is so, tables and
pictures are what the code makes, links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from capturekit.cli.examples import LESSONS, program
from tests import evidence, notebooks, pages
from tests.command import ROOT, called
from tests.pages import DOCS, without_handles
from tests.test_layers import LAYERS

README = ROOT / 'README.md'


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- examples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'path',
    [path if path == README else pytest.param(path, marks=pytest.mark.slow) for path in pages.examples()],
    ids=name_of,
)
def test_examples_run_and_print_what_is_shown(path: Path) -> None:
    """All python blocks of a page, in order, as one script whose line numbers are the page's."""
    printed = [text for _block, text in pages.printed(path)]
    assert [without_handles(text) for text in printed] == [without_handles(text) for text in pages.shown(path)]


@pytest.mark.parametrize('path', pages.examples(), ids=name_of)
def test_each_block_prints_or_asserts_something(path: Path) -> None:
    found = pages.blocks(path.read_text())
    for block, after in zip(found, [*found[1:], None]):
        if block.language == 'python':
            assert (after and after.language == 'text') or 'assert ' in block.text, (path.name, block.line)


def test_examples_of_explain_assert_something() -> None:
    assert [name for name, lesson in LESSONS.items() if lesson.right and 'assert ' not in program(lesson.right)] == []


def test_samples_fail_where_results_differ() -> None:
    assert [path for path in (ROOT / 'samples').glob('*.py') if 'raise SystemExit(' not in path.read_text()] == []


def test_every_page_of_the_guide_has_an_example() -> None:
    assert set(pages.examples()) >= set((DOCS / 'guide').glob('*.md'))


def test_the_pages_have_at_most_20000_words() -> None:
    words = {name_of(path): len(path.read_text().split()) for path in DOCS.rglob('*.md')}
    assert sum(words.values()) <= 20_000, words


def test_an_example_that_fails_is_named(tmp_path: Path) -> None:
    path = tmp_path / 'page.md'
    path.write_text('```python\n1 / 0\n```\n')
    with pytest.raises(RuntimeError, match=r'(?s)^page\.md:.*ZeroDivisionError'):
        pages.printed(path)


# -- what is made of the code ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('name', ['reference/rules', 'reference/limits', 'reference/simulated', 'evidence'])
def test_pages_made_of_the_code_are_up_to_date(name: str) -> None:
    text = (DOCS / f'{name}.md').read_text()
    assert text == pages.with_parts(text), 'python -m tests.pages'


def test_the_readmes_picture_is_of_its_first_example() -> None:
    assert without_handles(pages.PICTURE.read_text()) == without_handles(pages.picture()), 'python -m tests.pages'
    assert name_of(pages.PICTURE) in README.read_text()


def test_the_architecture_lists_and_draws_the_packages() -> None:
    page = (DOCS / 'contributing' / 'architecture.md').read_text()
    listed = re.findall(r'^\| `(\w+/)`', page, re.MULTILINE)
    drawn = re.findall(r'class="name"[^>]*>(\w+/)<', (DOCS / 'pictures' / 'architecture.svg').read_text())
    assert listed == [f'{name}/' for name in LAYERS]
    assert sorted(drawn) == sorted(listed)


# -- links ----------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    outside = re.sub(r'^```.*?^```$', '', path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r'^#+ (.+)$', outside, re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


@pytest.mark.parametrize('path', [*pages.pages(), *notebooks.NOTEBOOKS], ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    if path.suffix == '.ipynb':
        cells = json.loads(text)['cells']
        text = '\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'markdown')
    text = re.sub(r'^```.*?^```$|`[^`\n]+`', '', text, flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r'\]\(([^)\s]+)\)', text):
        if not link.startswith('https://'):
            file, _, anchor = link.partition('#')
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_sites_contents() -> None:
    listed = set(re.findall(r'^   ([\w/-]+)$', (DOCS / 'index.rst').read_text(), re.MULTILINE))
    there = {str(path.relative_to(DOCS).with_suffix('')) for path in DOCS.rglob('*') if path.suffix in ('.md', '.rst')}
    assert listed == there - {'README', 'index'}


# -- commands -------------------------------------------------------------------------------------------------


def usages() -> list[str]:
    page = pages.blocks((DOCS / 'guide' / 'commands.md').read_text())
    return [block.text.strip() for block in page if block.text.startswith('usage: ')]


@pytest.mark.parametrize('usage', usages(), ids=lambda usage: usage.split()[4])
def test_usage_is_shown_as_it_is(usage: str) -> None:
    assert called(usage.split()[4], '--help', COLUMNS='200').stdout.split('\n\n')[0] == usage


def test_all_commands_are_in_the_guide_and_in_the_readme() -> None:
    table = called('--help').stdout.split('\ncommands:\n')[1].split('\n\n')[0]
    commands = sorted(re.findall(r'^    (\w+)', table, re.MULTILINE))
    assert sorted(usage.split()[4] for usage in usages()) == commands
    shown = re.findall(r'^python -m capturekit (\w+)', README.read_text(), re.MULTILINE)
    assert sorted(shown) == commands


# -- notebooks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('path', notebooks.NOTEBOOKS, ids=name_of)
def test_notebooks_show_what_they_give(path: Path) -> None:
    found = notebooks.saved(notebooks.run(path))
    assert without_handles(path.read_text(encoding='utf-8')) == without_handles(found), 'python -m tests.notebooks'


# -- committed results, of which docs/evidence.md is made -----------------------------------------------------------


@pytest.mark.parametrize('path', sorted(evidence.BENCHMARKS.glob('*.json')), ids=lambda path: path.stem)
def test_committed_runs_name_their_machine_and_have_no_errors(path: Path) -> None:
    run = json.loads(path.read_text())
    assert {'device', 'driver', 'runtime', 'python', 'torch', 'numpy'} <= run['machine'].keys()
    assert [line['name'] for line in run['lines'] if line.get('error')] == []


def test_every_guarded_call_left_the_capture_good() -> None:
    calls = evidence.rows(evidence.GUARDED)
    assert len(calls) > 350
    assert {(row['origin'], row['lane'], row['launched']) for row in calls} == {('Active', 'Active', 'yes')}

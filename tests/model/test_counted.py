"""Counts in words: 1 node, 2 nodes; and nobody writes them any other way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import capturekit
from capturekit.model.counted import counted, plural
from capturekit.model.recording import LaneRecord, Recording, Timeline

PACKAGE = Path(capturekit.__file__).parent
#: What capturekit counts. A bare number before one of these, in the plural, is wrong for 1.
_NOUNS = 'arguments arrays branches bytes calls edges findings launches nodes pairs races rounds runs variants'
_UNCOUNTED = re.compile(r'\{(?!counted\()[^{}"\']*\} (?:' + '|'.join(_NOUNS.split()) + r')\b')


@pytest.mark.parametrize(
    ('said', 'number', 'noun'),
    [
        ('1 node', 1, 'node'), ('0 nodes', 0, 'node'), ('1,204 edges', 1204, 'edge'), ('2 launches', 2, 'launch'),
        ('1 launch', 1, 'launch'), ('3 branches', 3, 'branch'), ('2 passes', 2, 'pass'), ('4 copies', 4, 'copy'),
    ],
)  # fmt: skip
def test_a_number_and_a_noun(said: str, number: int, noun: str) -> None:
    assert counted(number, noun) == said
    assert said.endswith(plural(noun, number))
    assert counted(number, noun, ' of it') == f'{said} of it'


def test_messages_count_with_it() -> None:
    found = {
        f'{path.relative_to(PACKAGE)}:{number}: {line.strip()}'
        for path in PACKAGE.rglob('*.py')
        if 'simulated' not in path.parts and path.name != 'examples.py'
        for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1)
        if _UNCOUNTED.search(line) and '{at.words}' not in line
    }
    assert found == set()


def test_one_of_each() -> None:
    told = str(Recording(node_count=1, edge_count=1, memory_bytes=1, lanes=[LaneRecord(0, 16)], outcome='good'))
    assert told.startswith('good recording on : 1 node, 1 edge, 1 lane, 1 byte of its own memory')
    assert 'medians of 1 launch, 1 node with times' in str(Timeline(launches=1, nodes=[(0, 1)], spread_us=[0]))

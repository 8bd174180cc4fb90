"""The addresses in a graph's nodes, by themselves: which are found in memory, and which can not be moved."""

from __future__ import annotations

from typing import Any

import pytest

from capturekit.driver.node_reader import NodeInfo
from capturekit.graph.addresses import AddressWord, CopySlot, Index, Move, NodeAt, within
from capturekit.model.errors import UpdateError

#: What the errors tell the user to do.
WHOLE, AGAIN = 'Rebind the whole array', 'record again with the new one'


def node(number: int, kind: str = 'memcpy', name: str = '') -> NodeAt:
    info: Any = NodeInfo(number, kind, name)
    return NodeAt('Graph.rebind()', number, number, number, info)


def word(address: int, reach: int = 1, at: NodeAt | None = None) -> AddressWord:
    return AddressWord(address, reach, CopySlot(at or node(0)), 'dst')


def addresses(words: list[AddressWord]) -> list[int]:
    return [one.address for one in words]


def test_words_are_found_by_what_they_reach() -> None:
    index = Index(None, [word(300), word(100, 50), word(140, 5), word(200, 8)], [])
    assert addresses(index.words) == [100, 140, 200, 300]
    assert addresses(index.between(144, 201)) == [100, 140, 200]
    assert addresses(index.between(150, 200)) == []
    assert addresses(index.between(207, 300)) == [200]


def test_what_reaches_out_of_the_array_is_not_moved() -> None:
    with pytest.raises(UpdateError, match='reaches beyond the end') as beyond:
        within(word(100, 50), 100, 149)
    with pytest.raises(UpdateError, match='memory before it'):
        within(word(100, 50), 101, 200)
    assert WHOLE in str(beyond.value)
    assert within(word(100, 50), 100, 150) == 100


def test_what_a_child_graph_uses_is_not_moved() -> None:
    index = Index(None, [word(100)], [200, 120])
    assert addresses(index.movable(100, 120)) == [100]
    with pytest.raises(UpdateError, match=AGAIN):
        index.movable(100, 121)


@pytest.mark.parametrize(
    ('kind', 'name', 'is_refused'),
    [
        ('kernel', 'theirs', True),
        ('kernel', 'cupy_add', False),
        ('kernel', 'capturekit_fetch', False),
        ('memset', '', False),
    ],
)
def test_an_address_behind_an_array_may_be_an_end(kind: str, name: str, is_refused: bool) -> None:
    index = Index(None, [word(100), word(108, at=node(3, kind, name)), word(116)], [])
    if is_refused:
        with pytest.raises(UpdateError, match=r'node 3 \(kernel theirs\) uses the address after the old array'):
            index.no_end_at(108)
    else:
        index.no_end_at(108)
    index.no_end_at(107)


def test_moved_words_are_found_where_they_are_now() -> None:
    index, move = Index(None, [word(100), word(104), word(300)], []), Move(100, 108, 400)
    index.move({number: move(index.words[number].address) for number in (0, 1)})
    assert addresses(index.words) == [300, 400, 404]
    assert addresses(index.between(100, 108)) == []
    assert addresses(index.between(400, 408)) == [400, 404]

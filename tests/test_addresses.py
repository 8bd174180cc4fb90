"""Blocks behind addresses, also while Python collects garbage in the middle of a look-up."""

import threading

import numpy as np

from capturekit.simulated.addresses import AddressSpace


class Collecting(int):
    """An address whose comparison does what a finalizer does when garbage is collected at that very moment."""

    def __new__(cls, value: int, collect):
        self = super().__new__(cls, value)
        self.collect = collect
        return self

    def __lt__(self, other: int) -> bool:
        self.collect()
        return int(self) < int(other)


def in_time(call):
    """What the call returns, or a failure where it waits for a lock that it holds itself."""
    returned = []
    thread = threading.Thread(target=lambda: returned.append(call()), daemon=True)
    thread.start()
    thread.join(10)
    assert returned, 'the call waits for a lock that it holds itself'
    return returned[0]


def space(*starts: int) -> AddressSpace:
    made = AddressSpace()
    for start in starts:
        made.add(start, np.full(16, start % 251, np.uint8))
    return made


def test_any_address_inside_a_block_is_found():
    blocks = space(100, 200)
    assert blocks.find(99) is None
    assert blocks.find(107)[1] == 7
    assert blocks.find(200, 16)[0][0] == 200
    assert blocks.find(200, 17) is None
    assert blocks.find(116) is None


def test_what_was_removed_is_not_found():
    blocks = space(100, 200)
    blocks.remove(100)
    blocks.remove(150)
    assert blocks.find(100) is None
    assert blocks.find(200) is not None


def test_a_finalizer_during_a_look_up_neither_waits_nor_moves_what_is_looked_up():
    blocks = space(100, 200, 300)
    # every comparison of the search removes the block before, which would shift the list that is being searched
    block, offset = in_time(lambda: blocks.find(Collecting(300, lambda: blocks.remove(100))))
    assert (block[0], offset) == (300 % 251, 0)
    assert blocks.find(100) is None


def test_what_comes_to_the_address_of_a_removed_block_stays():
    blocks = space(100)
    in_time(lambda: blocks.find(Collecting(100, lambda: blocks.remove(100))))
    blocks.add(100, np.full(16, 9, np.uint8))
    assert blocks.find(100)[0][0] == 9

"""Which temporaries may lie elsewhere: what is known of each address, and what is read before it is written."""

from __future__ import annotations

from typing import Any

import pytest

from capturekit.driver.node_accesses import Access, Touched, linear
from capturekit.driver.node_reader import NodeInfo
from capturekit.lanes.packing import SeenNode, Temporary, examined
from capturekit.launch.declared import Declared

LOW, SIZE = 1 << 33, 4096
OTHER = LOW + SIZE
CALL, EARLY = 'cublas.sgemm', 'it is read before the launch has written it'


def block(low: int = LOW, **more: object) -> Temporary:
    return Temporary(low, low + SIZE, **more)  # type: ignore[arg-type]


def kernel(*touches: Access, name: str = 'cupy_add') -> SeenNode:
    return SeenNode(NodeInfo(1, 'kernel', name), Touched(touches), touches)


def on(address: int, writes: bool, nbytes: int = SIZE, argument: int = 0) -> Access:
    return linear(address, nbytes, writes, argument=argument)


def of_library(words: list[int], *said: Access, call: str = CALL, complete: bool = True) -> SeenNode:
    """A kernel whose arguments have these addresses, and what its call says that it touches."""
    touched = Touched(tuple(Access(one, (), (), 0, None, False, 0, 8 * n) for n, one in enumerate(words)), complete)
    memory = tuple(said)
    return SeenNode(NodeInfo(2, 'kernel', 'gemm'), touched, memory, Declared(True, True, said, call=call), True)


def stranger(*words: int, name: str = 'mine') -> SeenNode:
    return SeenNode(NodeInfo(3, 'kernel', name, words=words), Touched(), None)


def why(nodes: list[SeenNode], **more: object) -> str:
    return examined(nodes, [block(**more)])[0].stays


def test_kernels_that_write_it_first_let_it_move() -> None:
    nodes = [kernel(on(LOW, True, argument=1)), kernel(on(LOW, False), on(OTHER, True, argument=2))]
    (found,) = examined(nodes, [block()])
    assert not found.stays and found.uses == {0, 1}
    assert [(word.place, word.address) for word in found.words] == [((1, 0), LOW), ((0, 0), LOW)]


@pytest.mark.parametrize(
    ('written', 'read', 'stays'),
    [
        ([(0, 4096)], (0, 4096), False),
        ([(0, 2048), (2048, 4096)], (1024, 4096), False),
        ([(0, 2048)], (1024, 4096), True),
        ([], (0, 8), True),
        ([(0, 1024), (2048, 4096)], (0, 4096), True),
    ],
)
def test_what_is_read_has_to_be_written(written: list[tuple[int, int]], read: tuple[int, int], stays: bool) -> None:
    nodes = [kernel(on(LOW + low, True, high - low)) for low, high in written]
    nodes.append(kernel(on(LOW + read[0], False, read[1] - read[0])))
    assert why(nodes) == ('it is read before the launch has written it' if stays else '')


WRITTEN, READ = on(LOW, True), on(LOW, False)
INEXACT = linear(LOW, SIZE, True, exact=False, argument=0)
EVERY_OTHER = Access(LOW, (512,), (8,), 4, True, True, 0)
CHILD = SeenNode(NodeInfo(5, 'graph', inner=9), Touched((WRITTEN,)), (WRITTEN,))
#: Nodes, what else is known of the temporary, and why it stays.
STAYS: dict[str, tuple[list[SeenNode], dict[str, Any], str]] = {
    'a write of more or less': ([kernel(INEXACT), kernel(READ)], {}, EARLY),
    'a write of a part': ([kernel(EVERY_OTHER), kernel(READ)], {}, EARLY),
    'a node reads before it writes': ([kernel(READ, on(LOW, True, argument=1))], {}, EARLY),
    'beyond its end': ([kernel(on(LOW, True, 2 * SIZE))], {}, 'a node reaches beyond it'),
    'before its beginning': ([kernel(on(LOW - 512, True))], {}, 'a node reaches beyond it'),
    'a child graph': ([CHILD], {}, 'a node of kind graph uses it'),
    'its address in an unknown node': ([stranger(LOW + 8)], {'lives': [(5, 6)]}, 'it is not known what mine touches'),
    'another address there': ([stranger(OTHER)], {'lives': [(5, 6)]}, ''),
    "a kernel of CuPy's and a workspace": ([stranger(name='cupy_concatenate')], {'of_library': True}, ''),
    "a kernel of CuPy's": ([stranger(name='cupy_concatenate')], {}, 'it is not known what cupy_concatenate touches'),
    'another kernel and a workspace': ([stranger()], {'of_library': True}, 'it is not known what mine touches'),
    'no node has its address': ([of_library([OTHER], WRITTEN)], {}, f'{CALL} does not show its address'),
    'another node of the call has it': ([of_library([OTHER + 8], WRITTEN), of_library([LOW], WRITTEN)], {}, ''),
    'unknown addresses': ([of_library([LOW], WRITTEN, complete=False)], {}, 'it is not known what gemm touches'),
    'no call': ([of_library([LOW], WRITTEN, call='')], {}, 'it is not known what gemm touches'),
}


@pytest.mark.parametrize('what', STAYS)
def test_why_it_stays(what: str) -> None:
    nodes, more, stays = STAYS[what]
    assert why(nodes, **more) == stays


def test_an_address_inside_an_array_stays() -> None:
    assert 'is not one of its arrays' in why([of_library([LOW, LOW + 64], WRITTEN)])


def test_a_copy_moves_if_it_is_one_row() -> None:
    ends = (on(LOW, True, argument=-1), on(OTHER, False, argument=-1))
    flat = NodeInfo(4, 'memcpy', '', {'dst': LOW, 'src': OTHER, 'bytes': SIZE})
    (found, other) = examined([SeenNode(flat, Touched(ends), ends)], [block(), block(OTHER)])
    assert not found.stays and [word.place for word in found.words] == ['dst']
    assert other.stays == 'it is read before the launch has written it'
    rows = NodeInfo(4, 'memcpy', '', {'dst': LOW, 'src': OTHER, 'bytes': 64})
    assert examined([SeenNode(rows, Touched(ends), ends)], [block()])[0].stays == 'a copy of several rows uses it'


# -- nodes of unknown memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('lives', 'stays'),
    [(None, True), ([(0, 1)], True), ([(-1, 0)], False), ([(1, 3)], False), ([(-1, 0), (0, 3)], True)],
)
def test_who_may_know_it_keeps_it(lives: list[tuple[int, int]] | None, stays: bool) -> None:
    nodes = [kernel(on(LOW, True)), stranger(), kernel(on(LOW, False))]
    assert why(nodes, lives=lives) == ('it is not known what mine touches' if stays else '')


# -- kernels of libraries ---------------------------------------------------------------------------------------


def test_an_array_that_its_call_names_moves() -> None:
    written, read = on(LOW, True), on(LOW, False)
    nodes = [of_library([LOW, 77, OTHER + 8], written), kernel(read)]
    (found,) = examined(nodes, [block()])
    assert not found.stays and [word.place for word in found.words] == [(0, 0), (0, 0)]


def test_memory_that_the_call_does_not_name_moves_as_a_whole() -> None:
    (found,) = examined([of_library([LOW, LOW + 512, OTHER], on(OTHER, True))], [block()])
    assert not found.stays and [word.address for word in found.words] == [LOW, LOW + 512]


def test_an_address_at_its_end_keeps_it() -> None:
    end = [of_library([LOW, OTHER], on(LOW, True))]
    assert why(end) == f'{CALL} has the address of its end, or of the next one'
    named = [of_library([LOW, OTHER], on(LOW, True), on(OTHER, True))]
    assert not why(named), 'it is the beginning of an array'
    first, second = examined(end, [block(), block(OTHER)])
    assert first.stays and second.stays
    scratch = [of_library([LOW + 8, OTHER], on(OTHER + SIZE, True))]
    assert all(one.stays for one in examined(scratch, [block(), block(OTHER)])), 'the node has both'
    first, second = examined([of_library([OTHER], on(OTHER + SIZE, True))], [block(), block(OTHER)])
    assert not first.stays and not second.stays, 'of the first it has nothing else'

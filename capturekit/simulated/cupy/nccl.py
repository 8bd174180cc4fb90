"""``cupy.cuda.nccl``: communicators over the simulated machine's devices, which compute what NCCL would.

A collective is two pieces of work on each rank's stream: one takes what the rank sends, as it is then; the other comes
after all of those and writes what the rank receives. All ranks are of this process, and are given in one group. Outside
of a group, or in graphs that are launched one by one, NCCL would let the ranks meet while they run: the simulated
device runs one thing after the other, so that is refused.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import runtime, runtime_calls, runtime_memory

NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64 = 4
NCCL_UINT64 = 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)

available = True

_DTYPES = ('i1', 'u1', 'i4', 'u4', 'i8', 'u8', 'f2', 'f4', 'f8')
_FOLDS: tuple[Callable[..., Any], ...] = (np.add, np.multiply, np.maximum, np.minimum, np.add)
_INVALID_ARGUMENT, _INVALID_USAGE = 4, 5
_NAMES = {_INVALID_ARGUMENT: 'NCCL_ERROR_INVALID_ARGUMENT', _INVALID_USAGE: 'NCCL_ERROR_INVALID_USAGE'}

Array = NDArray[Any]


class NcclError(RuntimeError):
    """An error of NCCL's, in ``status``."""

    def __init__(self, status: int, why: str = '') -> None:
        self.status = status
        super().__init__(f'{_NAMES.get(status, status)}: {why or "invalid"}')


class _Clique:
    """The communicators that work together, as ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.here: set[int] = set()


class _Call(NamedTuple):
    """What one rank was asked to do. ``send`` and ``receive`` are an address and a number of elements each."""

    comm: NcclCommunicator
    kind: str
    send: tuple[int, int]
    receive: tuple[int, int]
    dtype: np.dtype[Any]
    stream: int
    op: int = 0
    root: int = 0
    peer: int = -1


def get_version() -> int:
    """Return the version that is simulated."""
    return 22809


get_build_version = get_version


def get_unique_id() -> bytes:
    return os.urandom(20).ljust(128, b'\0')


def _thread() -> Any:
    """How many groups this thread has begun, and the calls of the outermost."""
    thread = runtime_calls.state.thread
    if not hasattr(thread, 'depth'):
        thread.depth, thread.calls = 0, []
    return thread


def groupStart() -> None:
    """Begin a group: what follows begins when it ends."""
    _thread().depth += 1


def groupEnd() -> None:
    """End a group: all that was asked for in it is done."""
    thread = _thread()
    if not thread.depth:
        raise NcclError(_INVALID_USAGE, 'groupEnd without groupStart')
    thread.depth -= 1
    if not thread.depth:
        calls, thread.calls = thread.calls, []
        for clique in dict.fromkeys(call.comm._clique for call in calls):
            for together in _matched(clique, [call for call in calls if call.comm._clique is clique]):
                _run(together)


def _matched(clique: _Clique, calls: list[_Call]) -> list[list[_Call]]:
    """The calls of a group that belong together: the first collective of each rank, the second, and so on."""
    pairs = [call for call in calls if call.peer >= 0]
    found = [pairs] if pairs else []
    by_rank = [[c for c in calls if c.peer < 0 and c.comm._rank == rank] for rank in range(clique.size)]
    for together in itertools.zip_longest(*by_rank):
        if None in together or len({(c.kind, c.dtype, c.op, c.root) for c in together}) > 1:
            raise NcclError(_INVALID_USAGE, 'ranks that ask for different things, or for nothing, would wait for ever')
        found.append(list(together))
    return found


def _run(calls: list[_Call]) -> None:
    before, sent = runtime.getDevice(), dict[int, Array]()

    def take(number: int) -> None:
        address, count = calls[number].send
        sent[number] = _elements(address, count, calls[number].dtype).copy() if count else np.empty(0)

    def give(number: int) -> None:
        address, count = calls[number].receive
        if count:
            _elements(address, count, calls[number].dtype)[:] = _received(number, calls, sent)

    try:
        for number, call in enumerate(calls):
            runtime.setDevice(call.comm._device)
            runtime_calls.submit(call.stream, functools.partial(take, number), 'nccl', 'wait event')
        runtime_calls.meet([call.stream for call in calls])
        for number, call in enumerate(calls):
            runtime.setDevice(call.comm._device)
            runtime_calls.submit(call.stream, functools.partial(give, number), f'ncclDevKernel_{call.kind}')
    finally:
        runtime.setDevice(before)


def _elements(address: int, count: int, dtype: Any) -> Array:
    found: Array = runtime_memory.device_bytes(address, count * dtype.itemsize).view(dtype)
    return found


def _received(number: int, calls: Sequence[_Call], sent: dict[int, Array]) -> Any:
    call, rank = calls[number], calls[number].comm._rank
    if call.kind == 'SendRecv':  # the first send meets the first receive
        mine = [n for n, c in enumerate(calls) if c.receive[1] and c.comm is call.comm and c.peer == call.peer]
        theirs = [n for n, c in enumerate(calls) if c.send[1] and c.comm._rank == call.peer and c.peer == rank]
        if len(theirs) <= mine.index(number):
            raise NcclError(_INVALID_USAGE, f'rank {call.peer} sends nothing: this would wait for ever')
        return sent[theirs[mine.index(number)]]
    of_ranks = [sent[n] for n in sorted(sent, key=lambda n: calls[n].comm._rank)]
    if call.kind == 'Broadcast':
        return of_ranks[call.root]
    if call.kind == 'AllGather':
        return np.concatenate(of_ranks)
    total: Any = functools.reduce(_FOLDS[call.op], of_ranks)
    if call.op == NCCL_AVG:
        total = total / len(of_ranks)
    return np.split(total, len(of_ranks))[rank] if call.kind == 'ReduceScatter' else total


class NcclConfig:
    """How a communicator is made."""

    def __init__(self, split_share: int = 0) -> None:
        self.split_share = split_share


class NcclCommunicator:
    """One rank."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: NcclConfig | None = None) -> None:
        if len(commId) != 128:
            raise ValueError(f'commId length {len(commId)} != 128.')
        self._join(runtime_calls.state.cliques.setdefault(commId, _Clique(ndev)), rank, runtime.getDevice())

    def _join(self, clique: _Clique, rank: int, device: int) -> None:
        self._clique, self._rank, self._device = clique, rank, device
        clique.here.add(rank)
        self._open = True

    @property
    def comm(self) -> int:
        """A number that stands for the handle."""
        return id(self) if self._open else 0

    @staticmethod
    def initAll(devices: Any) -> list[NcclCommunicator]:
        """Return a communicator for each of ``devices``, a number of them or a list."""
        if not isinstance(devices, (int, list)):
            raise ValueError('"devices" should be an int or a list of int.')
        numbers = list(range(devices)) if isinstance(devices, int) else devices
        clique = _Clique(len(numbers))
        found = []
        for rank, number in enumerate(numbers):
            runtime.check_device(number)
            comm = NcclCommunicator.__new__(NcclCommunicator)
            comm._join(clique, rank, number)
            found.append(comm)
        return found

    def destroy(self) -> None:
        self._open = False

    def abort(self) -> None:
        self._open = False

    def device_id(self) -> int:
        """Return the number of its device."""
        return self._device

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        """Return how many ranks there are."""
        return self._clique.size

    def check_async_error(self) -> None:
        """Raise nothing: nothing goes wrong behind one's back."""

    def commSplit(self, color: int, key: int, config: NcclConfig | None = None) -> Any:
        """Not simulated."""
        raise NotImplementedError('cupy.cuda.nccl.NcclCommunicator.commSplit is not simulated')

    def _ask(
        self, kind: str, send: tuple[int, int], receive: tuple[int, int], datatype: int, stream: int, **more: Any
    ) -> None:
        if not self._open or not 0 <= datatype < len(_DTYPES):
            raise NcclError(_INVALID_ARGUMENT)
        thread, size = _thread(), self._clique.size
        if len(self._clique.here) < size:
            raise NotImplementedError(
                f'the simulated device has all ranks of a communicator in one process, and {size} are not here. '
                'Write: NcclCommunicator.initAll(devices), or start one process'
            )
        if not thread.depth and size > 1:
            raise NotImplementedError('the simulated device lets ranks meet in a group: groupStart() ... groupEnd()')
        call = _Call(self, kind, send, receive, np.dtype(_DTYPES[datatype]), stream, **more)
        if thread.depth:
            thread.calls.append(call)
        else:
            _run([call])

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        """Give every rank the sum (``op``) of what all have."""
        self._ask('AllReduce', (sendbuf, count), (recvbuf, count), datatype, stream, op=op)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        """Give rank ``root`` the sum (``op``) of what all have."""
        receives = count if self._rank == root else 0
        self._ask('Reduce', (sendbuf, count), (recvbuf, receives), datatype, stream, op=op, root=root)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        """Give every rank what ``root`` has."""
        sends = count if self._rank == root else 0
        self._ask('Broadcast', (sendbuff, sends), (recvbuff, count), datatype, stream, root=root)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        """Give every rank what ``root`` has, in place."""
        self.broadcast(buff, buff, count, datatype, root, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        """Give each rank its part of the sum (``op``) of what all have."""
        sends = recvcount * self._clique.size
        self._ask('ReduceScatter', (sendbuf, sends), (recvbuf, recvcount), datatype, stream, op=op)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._ask('AllGather', (sendbuf, count), (recvbuf, count * self._clique.size), datatype, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._ask('SendRecv', (sendbuf, count), (0, 0), datatype, stream, peer=peer)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._ask('SendRecv', (0, 0), (recvbuf, count), datatype, stream, peer=peer)

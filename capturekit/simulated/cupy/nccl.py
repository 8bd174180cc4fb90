"""``cupy.cuda.nccl``: communicators over the devices of one process, which compute what NCCL would.

A collective is two pieces of work on each rank's stream: one takes what the rank sends, as it is then; the other comes
after all of those and writes what the rank receives. All ranks of a collective are given in one group. Outside of a
group, or in graphs that are launched one by one, NCCL would let the ranks meet while they run: the simulated device
runs one thing after the other, so that is refused.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import runtime, runtime_calls

NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = range(6, 9)
NCCL_CHAR, NCCL_INT, NCCL_HALF, NCCL_FLOAT, NCCL_DOUBLE = 0, 2, 6, 7, 8
NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)

available = True

_DTYPES = ('i1', 'u1', 'i4', 'u4', 'i8', 'u8', 'f2', 'f4', 'f8')
_FOLDS: tuple[Callable[..., Any], ...] = (np.add, np.multiply, np.maximum, np.minimum)
_INVALID_ARGUMENT, _INVALID_USAGE = 4, 5
_NAMES = {_INVALID_ARGUMENT: 'NCCL_ERROR_INVALID_ARGUMENT', _INVALID_USAGE: 'NCCL_ERROR_INVALID_USAGE'}
_ids = itertools.count(1)

Array = NDArray[Any]


class NcclError(RuntimeError):
    """An error of NCCL's, in ``status``."""

    def __init__(self, status: int, why: str = '') -> None:
        self.status = status
        super().__init__(f'{_NAMES.get(status, status)}: {why or "invalid"}')


@dataclass(eq=False)
class _Call:
    """What one rank was asked to do on a ``stream``: the ``kind`` of it, elements of which ``dtype``.

    ``send`` and ``receive`` are an address and a number of elements each; ``sent`` is what was sent, once it was taken.
    """

    comm: NcclCommunicator
    kind: str
    dtype: Any
    stream: int
    send: tuple[int, int]
    receive: tuple[int, int]
    op: int = 0
    root: int = 0
    peer: int = -1
    sent: Array | None = None

    @property
    def rank(self) -> int:
        return self.comm._rank


def get_version() -> int:
    return 22809


get_build_version = get_version


def get_unique_id() -> bytes:
    return (os.urandom(16) + next(_ids).to_bytes(4, 'little')).ljust(128, b'\0')


def groupStart() -> None:
    runtime_calls.state.thread.groups += 1


def groupEnd() -> None:
    thread = runtime_calls.state.thread
    if not thread.groups:
        raise NcclError(_INVALID_USAGE, 'groupEnd without groupStart')
    thread.groups -= 1
    if not thread.groups:
        calls, thread.calls = thread.calls, ()
        for clique in {id(call.comm._clique): call.comm._clique for call in calls}.values():
            for together in _matched(clique, [call for call in calls if call.comm._clique is clique]):
                _run(together)


def _matched(clique: range, calls: Sequence[_Call]) -> list[list[_Call]]:
    """The calls of a group that belong together: the first collective of each rank, the second, and so on."""
    pairs = [call for call in calls if call.peer >= 0]
    found = [pairs] if pairs else []
    by_rank = [[c for c in calls if c.peer < 0 and c.rank == rank] for rank in clique]
    for together in itertools.zip_longest(*by_rank):
        if None in together or len({(c.kind, c.dtype, c.op, c.root) for c in together}) > 1:
            raise NcclError(_INVALID_USAGE, 'ranks that ask for different things, or for nothing, would wait for ever')
        found.append(list(together))
    return found


def _run(calls: list[_Call]) -> None:
    """Let the streams take what is sent, meet, and then write what is received."""
    for call in calls:
        with runtime._on(call.comm._device):
            runtime_calls.submit(call.stream, functools.partial(_take, call), 'nccl', 'wait event')
    runtime_calls.ask(runtime_calls.device().meet, [call.stream for call in calls])
    for call in calls:
        with runtime._on(call.comm._device):
            runtime_calls.submit(call.stream, functools.partial(_give, call, calls), f'ncclDevKernel_{call.kind}')


def _elements(address: int, count: int, dtype: Any) -> Array:
    return runtime.device_bytes(address, count * dtype.itemsize).view(dtype)


def _take(call: _Call) -> None:
    call.sent = _elements(*call.send, call.dtype).copy() if call.send[1] else None


def _give(call: _Call, calls: Sequence[_Call]) -> None:
    if call.receive[1]:
        _elements(*call.receive, call.dtype)[:] = _received(call, calls)


def _received(call: _Call, calls: Sequence[_Call]) -> Any:
    if call.kind == 'SendRecv':
        return _from_peer(call, calls)
    sent = [one.sent for one in sorted(calls, key=lambda one: one.rank)]
    if call.kind == 'Broadcast':
        return sent[call.root]
    if call.kind == 'AllGather':
        return np.concatenate([one for one in sent if one is not None])
    total: Any = functools.reduce(_FOLDS[0 if call.op == NCCL_AVG else call.op], sent)
    if call.op == NCCL_AVG:
        total = total / len(sent)
    return np.split(total, len(sent))[call.rank] if call.kind == 'ReduceScatter' else total


def _from_peer(call: _Call, calls: Sequence[_Call]) -> Any:
    """What the peer sends here: the first send meets the first receive."""
    mine = [c for c in calls if c.receive[1] and c.rank == call.rank and c.peer == call.peer]
    theirs = [c for c in calls if c.send[1] and c.rank == call.peer and c.peer == call.rank]
    if len(theirs) <= mine.index(call):
        raise NcclError(_INVALID_USAGE, f'rank {call.peer} sends nothing: this would wait for ever')
    return theirs[mine.index(call)].sent


class NcclCommunicator:
    """One rank."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: Any = None) -> None:
        if len(commId) != 128:
            raise ValueError(f'commId length {len(commId)} != 128.')
        if ndev > 1:
            raise NotImplementedError(
                'the simulated CuPy has NCCL in one process alone, and makes all ranks of it together. '
                'Write: nccl.NcclCommunicator.initAll(number of devices)'
            )
        self._join(range(ndev), rank, runtime.getDevice())

    def _join(self, clique: range, rank: int, device: int) -> NcclCommunicator:
        self._clique, self._rank, self._device, self._open = clique, rank, device, True
        return self

    @property
    def comm(self) -> int:
        return id(self) if self._open else 0

    @staticmethod
    def initAll(devices: Any) -> list[NcclCommunicator]:
        if not isinstance(devices, (int, list)):
            raise ValueError('"devices" should be an int or a list of int.')
        numbers = list(range(devices)) if isinstance(devices, int) else devices
        for number in numbers:
            runtime.check_device(number)
        clique = range(len(numbers))
        return [NcclCommunicator.__new__(NcclCommunicator)._join(clique, *one) for one in enumerate(numbers)]

    def destroy(self) -> None:
        self._open = False

    abort = destroy

    def device_id(self) -> int:
        return self._device

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return len(self._clique)

    def check_async_error(self) -> None:
        """Raise nothing: nothing goes wrong behind one's back."""

    def commSplit(self, color: int, key: int, config: Any = None) -> Any:
        raise NotImplementedError('cupy.cuda.nccl.NcclCommunicator.commSplit is not simulated')

    def _ask(
        self, kind: str, send: tuple[int, int], receive: tuple[int, int], datatype: int, stream: int, **more: Any
    ) -> None:
        if not self._open or not 0 <= datatype < len(_DTYPES):
            raise NcclError(_INVALID_ARGUMENT)
        call = _Call(self, kind, np.dtype(_DTYPES[datatype]), stream, send, receive, **more)
        if runtime_calls.state.thread.groups:
            runtime_calls.state.thread.calls += (call,)
        elif len(self._clique) > 1:
            raise NotImplementedError('the simulated device lets ranks meet in a group: groupStart() ... groupEnd()')
        else:
            _run([call])

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._ask('AllReduce', (sendbuf, count), (recvbuf, count), datatype, stream, op=op)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        receives = count if self._rank == root else 0
        self._ask('Reduce', (sendbuf, count), (recvbuf, receives), datatype, stream, op=op, root=root)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        sends = count if self._rank == root else 0
        self._ask('Broadcast', (sendbuff, sends), (recvbuff, count), datatype, stream, root=root)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self.broadcast(buff, buff, count, datatype, root, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        sends = recvcount * len(self._clique)
        self._ask('ReduceScatter', (sendbuf, sends), (recvbuf, recvcount), datatype, stream, op=op)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._ask('AllGather', (sendbuf, count), (recvbuf, count * len(self._clique)), datatype, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._ask('SendRecv', (sendbuf, count), (0, 0), datatype, stream, peer=peer)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._ask('SendRecv', (0, 0), (recvbuf, count), datatype, stream, peer=peer)

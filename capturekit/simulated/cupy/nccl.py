"""``cupy.cuda.nccl``: communicators over the simulated machine's devices, which compute what NCCL would.

A collective is two pieces of work on each rank's stream: one takes what the rank sends, as it is then; the other comes
after all of those and writes what the rank receives. All ranks of a collective are given in one group. Outside of a
group, or in graphs that are launched one by one, NCCL would let the ranks meet while they run: the simulated device
runs one thing after the other, so that is refused.

Ranks of several processes: each has a simulated device of its own, and what ranks send goes through a socket. The
process of rank 0 gathers what all ranks send in one group of calls, and gives it to all. So every rank has to take part
in every group, in the same order, as NCCL asks of collectives. A launch waits for the other processes'.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import pickle
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import runtime, runtime_calls

#: How long the others may take to come, and to answer, in seconds.
PATIENCE = 60.0
_PAUSE = 0.01


class NobodyError(RuntimeError):
    """Ranks of other processes did not come, or have gone."""


class Processes:
    """The processes of one communicator, by its id. ``here``: the ranks of this one; there are ``size`` in all."""

    def __init__(self, name: bytes, size: int, here: Collection[int]) -> None:
        self._name, self._size, self._here = name, size, sorted(here)
        #: Of the process of rank 0: the others'; else rank 0's alone.
        self._peers: list[Any] = []
        self._sockets: list[socket.socket] = []

    def exchange(self, mine: list[Any]) -> list[Any]:
        """Give what this process's ranks send, and return what all of them send."""
        try:
            if not self._peers:
                self._meet()
            if 0 not in self._here:
                _tell(self._peers[0], mine)
                everybody: list[Any] = _told(self._peers[0])
                return everybody
            every = mine + [one for peer in self._peers for one in _told(peer)]
            for peer in self._peers:
                _tell(peer, every)
        except (OSError, EOFError) as error:
            raise NobodyError(f'a process of another rank is gone, or asks for nothing ({error})') from error
        return every

    def close(self) -> None:
        for one in [*self._peers, *self._sockets]:
            one.close()
        self._peers, self._sockets = [], []

    # -- meeting ------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> Path:
        return Path(tempfile.gettempdir()) / f'capturekit-nccl-{hashlib.sha256(self._name).hexdigest()[:32]}'

    def _meet(self) -> None:
        if not hasattr(socket, 'AF_UNIX'):
            raise NotImplementedError('ranks of several processes are simulated with Unix sockets alone')
        if 0 in self._here:
            self._wait_for_all()
        else:
            self._join(self._find())
            _tell(self._peers[0], self._here)

    def _wait_for_all(self) -> None:
        """Let the other processes come, until all ranks are there."""
        ranks = set(self._here)
        self._place.mkdir(mode=0o700)
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.bind(str(self._place / 's'))
                door.listen(self._size)
                door.settimeout(PATIENCE)
                while len(ranks) < self._size:
                    self._join(door.accept()[0])
                    ranks |= set(_told(self._peers[-1]))
        finally:
            shutil.rmtree(self._place, ignore_errors=True)

    def _find(self) -> socket.socket:
        until = time.monotonic() + PATIENCE
        while True:
            one = socket.socket(socket.AF_UNIX)
            try:
                one.connect(str(self._place / 's'))
            except OSError:
                one.close()
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE)
            else:
                return one

    def _join(self, one: socket.socket) -> None:
        one.settimeout(PATIENCE)
        self._sockets.append(one)
        self._peers.append(one.makefile('rwb'))


def _tell(peer: Any, what: Any) -> None:
    pickle.dump(what, peer)
    peer.flush()


def _told(peer: Any) -> Any:
    """What the same user's process has sent: nobody else can reach the socket's folder."""
    return pickle.load(peer)


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


class _Clique:
    """The communicators that work together: the id that they were made by, and the ranks of this process."""

    def __init__(self, size: int, name: bytes = b'') -> None:
        self.size, self.name = size, name
        self.here: set[int] = set()
        self.processes: Processes | None = None

    @property
    def several_here(self) -> bool:
        return (len(self.here) if self.name else self.size) > 1

    @property
    def others(self) -> Processes | None:
        """The other processes that have ranks of it; None where all are of this one."""
        if self.processes is None and self.name and len(self.here) < self.size:
            self.processes = Processes(self.name, self.size, self.here)
        return self.processes


@dataclass(eq=False)
class _Call:
    """What one rank was asked to do on a ``stream``: the ``kind`` of it, elements of which ``dtype``.

    ``send`` and ``receive`` are an address and a number of elements each; ``sent`` is what was sent, once it was taken.
    ``comm``: None where the rank is of another process.
    """

    rank: int
    kind: str
    dtype: Any
    op: int = 0
    root: int = 0
    peer: int = -1
    sent: Array | None = None
    comm: Any = None
    stream: int = 0
    send: tuple[int, int] = (0, 0)
    receive: tuple[int, int] = (0, 0)


def get_version() -> int:
    return 22809


get_build_version = get_version


def get_unique_id() -> bytes:
    return (os.urandom(16) + next(_ids).to_bytes(4, 'little')).ljust(128, b'\0')


def _group() -> list[_Call]:
    calls: list[_Call] = runtime_calls.of_thread('calls', list)
    return calls


def groupStart() -> None:
    runtime_calls.state.thread.depth = getattr(runtime_calls.state.thread, 'depth', 0) + 1


def groupEnd() -> None:
    depth = getattr(runtime_calls.state.thread, 'depth', 0)
    if not depth:
        raise NcclError(_INVALID_USAGE, 'groupEnd without groupStart')
    runtime_calls.state.thread.depth = depth - 1
    if depth == 1:
        calls, runtime_calls.state.thread.calls = _group(), []
        for clique in dict.fromkeys(call.comm._clique for call in calls):
            for together in _matched(clique, [call for call in calls if call.comm._clique is clique]):
                _run(together)


def _matched(clique: _Clique, calls: list[_Call]) -> list[list[_Call]]:
    """The calls of a group that belong together: the first collective of each rank, the second, and so on."""
    pairs = [call for call in calls if call.peer >= 0]
    found = [pairs] if pairs else []
    ranks = range(clique.size) if clique.others is None else sorted(clique.here)
    by_rank = [[c for c in calls if c.peer < 0 and c.rank == rank] for rank in ranks]
    for together in itertools.zip_longest(*by_rank):
        if None in together or len({(c.kind, c.dtype, c.op, c.root) for c in together}) > 1:
            raise NcclError(_INVALID_USAGE, 'ranks that ask for different things, or for nothing, would wait for ever')
        found.append(list(together))
    return found


def _run(calls: list[_Call]) -> None:
    before, everybody = runtime.getDevice(), _Everybody(calls, calls[0].comm._clique.others)
    try:
        for call in calls:
            runtime.setDevice(call.comm._device)
            runtime_calls.submit(call.stream, functools.partial(everybody.take, call), 'nccl', 'wait event')
        runtime_calls.meet([call.stream for call in calls])
        for call in calls:
            runtime.setDevice(call.comm._device)
            runtime_calls.submit(call.stream, functools.partial(everybody.give, call), f'ncclDevKernel_{call.kind}')
    finally:
        runtime.setDevice(before)


class _Everybody:
    """Calls that belong together, with those of the other processes, which are asked once for each launch."""

    def __init__(self, calls: Sequence[_Call], others: Processes | None) -> None:
        self._calls, self._others = calls, others
        self._every: Sequence[_Call] | None = None

    def take(self, call: _Call) -> None:
        address, count = call.send
        call.sent = _elements(address, count, call.dtype).copy() if count else None
        self._every = None

    def give(self, call: _Call) -> None:
        if self._every is None:
            self._every = self._calls if self._others is None else self._asked(self._others)
        address, count = call.receive
        if count:
            _elements(address, count, call.dtype)[:] = _received(call, self._every)

    def _asked(self, others: Processes) -> Sequence[_Call]:
        mine = [replace(one, comm=None, stream=0, send=(0, one.send[1]), receive=(0, 0)) for one in self._calls]
        try:
            told: list[_Call] = others.exchange(mine)
        except NobodyError as error:
            raise NcclError(_INVALID_USAGE, str(error)) from error
        if len({(one.kind, one.dtype, one.op, one.root) for one in told if one.peer < 0}) > 1:
            raise NcclError(_INVALID_USAGE, 'ranks that ask for different things would wait for ever')
        here = {one.rank for one in self._calls}
        return [*self._calls, *(one for one in told if one.rank not in here)]


def _elements(address: int, count: int, dtype: Any) -> Array:
    return runtime.device_bytes(address, count * dtype.itemsize).view(dtype)


def _received(call: _Call, calls: Sequence[_Call]) -> Any:
    if call.kind == 'SendRecv':
        return _from_peer(call, calls)
    sent = [one.sent for one in sorted(calls, key=lambda one: one.rank)]
    if call.kind == 'Broadcast':
        return sent[call.root]
    if call.kind == 'AllGather':
        return np.concatenate([one for one in sent if one is not None])
    total = functools.reduce(_FOLDS[0 if call.op == NCCL_AVG else call.op], sent)
    assert total is not None
    if call.op == NCCL_AVG:
        total = total / len(sent)
    if call.kind == 'ReduceScatter':
        return np.split(np.asarray(total), len(sent))[call.rank]
    return total


def _from_peer(call: _Call, calls: Sequence[_Call]) -> Any:
    """What the peer sends here: the first send meets the first receive."""
    mine = [c for c in calls if c.receive[1] and c.rank == call.rank and c.peer == call.peer]
    theirs = [c for c in calls if c.send[1] and c.rank == call.peer and c.peer == call.rank]
    if len(theirs) <= mine.index(call):
        raise NcclError(_INVALID_USAGE, f'rank {call.peer} sends nothing: this would wait for ever')
    return theirs[mine.index(call)].sent


class NcclConfig:
    """How a communicator is made."""

    def __init__(self, split_share: int = 0) -> None:
        self.split_share = split_share


class NcclCommunicator:
    """One rank."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: NcclConfig | None = None) -> None:
        if len(commId) != 128:
            raise ValueError(f'commId length {len(commId)} != 128.')
        clique = runtime_calls.state.cliques.setdefault(commId, _Clique(ndev, commId.rstrip(b'\0')))
        clique.here.add(rank)
        self._join(clique, rank, runtime.getDevice())

    def _join(self, clique: _Clique, rank: int, device: int) -> None:
        self._clique, self._rank, self._device = clique, rank, device
        self._open = True

    @property
    def comm(self) -> int:
        return id(self) if self._open else 0

    @staticmethod
    def initAll(devices: Any) -> list[NcclCommunicator]:
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
        return self._device

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._clique.size

    def check_async_error(self) -> None:
        """Raise nothing: nothing goes wrong behind one's back."""

    def commSplit(self, color: int, key: int, config: NcclConfig | None = None) -> Any:
        raise NotImplementedError('cupy.cuda.nccl.NcclCommunicator.commSplit is not simulated')

    def _ask(
        self, kind: str, send: tuple[int, int], receive: tuple[int, int], datatype: int, stream: int, **more: Any
    ) -> None:
        if not self._open or not 0 <= datatype < len(_DTYPES):
            raise NcclError(_INVALID_ARGUMENT)
        if not getattr(runtime_calls.state.thread, 'depth', 0) and self._clique.several_here:
            raise NotImplementedError('the simulated device lets ranks meet in a group: groupStart() ... groupEnd()')
        dtype = np.dtype(_DTYPES[datatype])
        call = _Call(self._rank, kind, dtype, comm=self, stream=stream, send=send, receive=receive, **more)
        if getattr(runtime_calls.state.thread, 'depth', 0):
            _group().append(call)
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
        sends = recvcount * self._clique.size
        self._ask('ReduceScatter', (sendbuf, sends), (recvbuf, recvcount), datatype, stream, op=op)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._ask('AllGather', (sendbuf, count), (recvbuf, count * self._clique.size), datatype, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._ask('SendRecv', (sendbuf, count), (0, 0), datatype, stream, peer=peer)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._ask('SendRecv', (0, 0), (recvbuf, count), datatype, stream, peer=peer)

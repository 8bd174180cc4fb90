"""Ranks of several processes: each has a simulated device of its own, and what ranks send goes through a socket.

The process of rank 0 gathers what all ranks send in one group of calls, and gives it to all. So every rank has to take
part in every group, in the same order, as NCCL asks of collectives. A launch waits here for the other processes'.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import socket
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

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
        """Go to rank 0's process, as soon as it is there."""
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


def new_id() -> bytes:
    return os.urandom(16)

"""Arrays exchanged with other libraries, in both directions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams, Placeholders
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, VARIANTS, Operation
from capturekit.model.source_line import here

_O = Operation
_EXCHANGE = replace(
    RULES['sync-captured'],
    says=f'{RULES["sync-captured"].says}, and CuPy waits on the host for the stream that an array of another library '
    'names',
    remedy='Make that stream current for the call, `with side:`; or let the library name no stream, and order the two: '
    '`stream.wait_event(side.record())`.',
)


class _Exchanging(threading.local):
    """Whether this thread is converting an array of another library for which CuPy need not wait."""

    settled = False


_EXCHANGING = _Exchanging()


@dataclass(eq=False)
class Exchange:
    """Judges the exchange of arrays with other libraries."""

    state: State
    verdicts: Verdicts
    lanes: Lanes
    outside: OutsideStreams
    placeholders: Placeholders

    def exchanged(self, live: OpenCapture, obj: Any) -> Any:
        """Return an array of another library without its stream, for which CuPy would wait on the host."""
        interface = dict(obj.__cuda_array_interface__)
        named = interface.get('stream')
        if named is None:
            return obj
        stream = self.placeholders.meant(int(named))
        lane = self.state.ledger.lane(stream)
        call = 'Use of an array of another library'
        if lane is None or lane.capture is not live.capture:
            verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if verdict.answer.refused:
                self.verdicts.refuse(verdict, call, stream, _EXCHANGE if lane is not None else None)
            if stream == named and stream not in live.outside.held:
                return obj
            self.outside.release(stream)
            self.state.own('cupy.cuda.runtime.streamSynchronize', stream)  # as CuPy would outside of captures
            self.outside.hold_again()
        elif lane is not (here_lane := self.lanes.current_lane(live)):
            verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if live.strict:
                self.verdicts.refuse(verdict, call, stream, _EXCHANGE)
            at = here()
            self.lanes.wait_on(live, here_lane, self.lanes.record_on(live, lane, at), at)
            live.note('adapted', here_lane, f'exchange of an array became a join of lane {lane.number}', at)
        interface['stream'] = None
        return WithoutStream(interface, obj)

    def memory_of_another(
        self, original: Callable[..., Any], ptr: int, size: int, owner: Any, device_id: int = -1
    ) -> Any:
        """Make an array of memory that another library holds. CuPy's next call waits for the stream that it names.

        This is also called for operands of compiled functions: ``a + obj``.
        """
        _EXCHANGING.settled = False
        settled = self._settled(owner)
        memory = original(ptr, size, owner, device_id)
        _EXCHANGING.settled = settled
        return memory

    def _settled(self, owner: Any) -> bool:
        """Whether the stream that an array names is ordered already, so that CuPy need not wait for it."""
        kind = (self.state.platform.cupy.ndarray, WithoutStream)
        interface = None if isinstance(owner, kind) else getattr(owner, '__cuda_array_interface__', None)
        if not interface or interface.get('stream') is None:
            return False
        if not self.state.installation.originals['cupy._util.CUDA_ARRAY_INTERFACE_SYNC']:
            return False
        with self.state.lock:
            mine = self.verdicts.start()
            if mine is not None:
                return self.exchanged(mine, owner) is not owner
            stream = int(interface['stream'])
            verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if self.state.ledger.lane(stream) is not None and verdict.answer.refused:
                self.verdicts.refuse(verdict, 'Use of an array of another library', stream, _EXCHANGE)
            return False

    def exchange_waits(self, original: bool) -> bool:
        """Whether CuPy has to wait for the stream of the array that it is making."""
        settled, _EXCHANGING.settled = _EXCHANGING.settled, False
        return original and not settled

    def array_dlpack(self, original: Callable[..., Any], array: Any, *args: Any, **kwargs: Any) -> Any:
        """Export an array by DLPack. A consumer that names no stream means the legacy one."""
        with self.state.lock:
            mine = self.verdicts.start()
            stream, device = kwargs.get('stream'), kwargs.get('dl_device')
            to_host = device is not None and tuple(device) != tuple(array.__dlpack_device__())
            if to_host and array.size:
                self.verdicts.refuse_read_elsewhere('ndarray.__dlpack__()', array.data.mem)
            if mine is not None:
                if to_host and mine.parts.answers is None:
                    self.verdicts.refuse_read(self.state.platform.cupy.cuda.get_current_stream().ptr)
                if not to_host and (stream is None or stream in LEGACY_HANDLES):
                    verdict = self.verdicts.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
                    rule = VARIANTS['dlpack-legacy']
                    self.verdicts.refuse(verdict, 'ndarray.__dlpack__()', LEGACY_HANDLES[0], rule)
        return original(array, *args, **kwargs)


class WithoutStream:
    """An array of another library, without the stream that CuPy would wait for."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__cuda_array_interface__ = interface
        self.owner = owner

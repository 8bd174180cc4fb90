"""Values going between host and device: reads refused, constants uploaded aside, exchange with other libraries."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import numpy

from capturekit.guard.host_waits import Waits
from capturekit.guard.open_capture import Live
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.host_reads import signature
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, VARIANTS, Code, Operation
from capturekit.model.source_line import here

_O = Operation
#: CuPy joins more arrays than this with one kernel, if they have fewer bytes each on the average
#: (``_concatenate`` in ``cupy/_core/_routines_manipulation.pyx``, 14.0 to 14.2).
_JOINED, _SMALL = 8, 2 << 20


_EXCHANGE = replace(
    RULES['sync-captured'],
    says=f'{RULES["sync-captured"].says}, and CuPy waits on the host for the stream that an array of another library '
    'names',
    remedy='Make that stream current for the call, `with side:`; or let the library name no stream, and order the two: '
    '`stream.wait_event(side.record())`.',
)


class _Exchanging(threading.local):
    """Whether the array of another library that this thread is making needs no wait."""

    settled = False


_EXCHANGING = _Exchanging()


class Arrays(Waits):
    """Values going between host and device: reads refused, constants uploaded aside, exchange with other libraries."""

    def array_get(
        self, original: Callable[..., Any], array: Any, stream: Any = None, order: str = 'C', out: Any = None,
        blocking: bool = True,
    ) -> Any:  # fmt: skip
        rehearsal = self.rehearsals.get(threading.get_ident())
        if rehearsal is not None and self.mine() is None:
            with self.inside():
                value = original(array, stream, order, out, True)
            rehearsal.add(value, here(), signature())
            return value
        where = self.meant(stream if stream is not None else self.platform.cupy.cuda.get_current_stream())
        if stream is None and where.ptr in LEGACY_HANDLES:
            stream = where
        with self.lock:
            mine = self._start()
            lane = self.topology.lane(where.ptr)
            captured = lane is not None and lane.capture in self.lives
            ours = mine is not None and mine.memory is not None and self._in_graph(mine, array)
            if mine is not None and mine.given is not None:
                return self._given_back(mine, array, order, out)
            if array.size and (captured or ours):
                self._refuse_read(where.ptr if captured else None)
            if mine is not None:
                self.spring(where.ptr)
            verdict = self.judge(_O.STREAM_SYNCHRONIZE, stream=where.ptr)

        def go() -> Any:
            with self.inside():
                return original(array, stream, order, out, blocking)

        if mine is not None and where.ptr in LEGACY_HANDLES and not verdict.lost:
            return go()
        try:
            return self._pass(verdict, 'ndarray.get()', where.ptr, go) if array.size else go()
        finally:
            if mine is not None:
                self._trap_again()

    def _given_back(self, live: Live, array: Any, order: str, out: Any) -> Any:
        """What the rehearsal read here; a check of it is recorded, and all that follows runs only if it holds."""
        assert live.given is not None
        self.not_in_body(live, 'ndarray.get()', 'Read before the decision, or behind it.')
        at = here()
        found = live.given.answer(array.shape, array.dtype, signature())
        if found is None:
            raise errors.HostReadError(
                'ndarray.get()',
                location=at,
                rule=f'The rehearsal has no read of {array.dtype}{list(array.shape)} here: it went another way.',
                remedy='Rehearse on the inputs that are recorded, in the same state of caches and generators.',
            )
        lane = self._current_lane(live)
        text = f'host read {found}: {counted(found.value.nbytes, "byte")} assumed, and checked at every launch'
        live.note('assumed', lane, text, at, nbytes=found.value.nbytes)
        if array.size:
            flat = array if array.flags.c_contiguous else self.platform.cupy.ascontiguousarray(array)
            if self.gates_of(live) == 'device':
                self.cut_on_device(live, flat, found.value, at)
            else:
                self.check_on_host(live, flat, found.value, at)
        value = found.value.copy('C' if order == 'C' else 'F' if order == 'F' else 'K')
        if out is not None:
            out[...] = value
            return out
        return value

    def _refuse_read(self, ptr: int | None) -> NoReturn:
        rule = RULES['host-read']
        raise rule.error(
            'ndarray.get()',
            stream=ptr,
            lane=None if ptr is None or (lane := self.topology.lane(ptr)) is None else lane.number,
            subject=self.subject(ptr),
            location=here(),
            rule=f'{rule.says} (float(), int(), bool(), print(), cp.asnumpy() and boolean masks read like this).',
            remedy=rule.remedy,
            cuda_error=Code.cudaErrorStreamCaptureUnsupported.name,
        )

    @staticmethod
    def _in_graph(live: Live, array: Any) -> bool:
        """True when the array lies in memory that the open capture allocated, so that nothing has computed it yet."""
        return live.memory is not None and live.memory.owns(array.data.mem)

    def array_set(self, original: Callable[..., Any], array: Any, arr: Any, stream: Any = None) -> Any:
        where = stream if stream is not None else self.platform.cupy.cuda.get_current_stream()
        with self.lock:
            mine = self._start()
            lane = self.topology.lane(where.ptr)
            if array.size and (mine is not None or (lane is not None and lane.capture in self.lives)):
                rule = RULES['host-write']
                raise rule.error(
                    'ndarray.set()',
                    stream=where.ptr,
                    lane=None if lane is None else lane.number,
                    subject=self.subject(where.ptr),
                    location=here(),
                    rule=f'{rule.says}.',
                    remedy=rule.remedy,
                    cuda_error=Code.cudaErrorStreamCaptureUnsupported.name,
                )
        return original(array, arr, stream)

    def array_from(self, original: Callable[..., Any], obj: Any, *args: Any, **kwargs: Any) -> Any:
        """``cupy.array`` and its kin: values of the host are uploaded aside, at once, and kept with the graph."""
        mine = self.mine()
        if mine is None or mine.memory is None or isinstance(obj, self.platform.cupy.ndarray):
            return original(obj, *args, **kwargs)
        with self.lock:
            self.check(mine)
            if hasattr(obj, '__cuda_array_interface__'):
                return original(self._exchanged(mine, obj), *args, **kwargs)
            if _holds_arrays(obj, self.platform.cupy.ndarray):
                flat = list(_flat(obj))
                if _by_table(flat, getattr(flat[0], 'dtype', None), self.platform.cupy.ndarray):
                    raise _table_refused('cupy.array()', flat, 'Use `cp.stack`, of eight at most at a time')
                return original(obj, *args, **kwargs)
            if _is_scalar(obj):
                return original(obj, *args, **kwargs)
            array = self._constant(mine, lambda: original(obj, *args, **kwargs), 'cupy.array()')
            if mine.given is None:
                return array
        return array.copy(order='K')  # the work may change it, and every launch is to start from what was uploaded

    def arrays_joined(
        self, original: Callable[..., Any], tup: Any, axis: int, out: Any = None, dtype: Any = None,
        casting: str = 'same_kind',
    ) -> Any:  # fmt: skip
        """``cupy.concatenate`` and its kin: of many arrays CuPy copies the addresses from the host, for one kernel."""
        mine = self.mine()
        arrays = list(tup) if isinstance(tup, (list, tuple)) else tup
        kind = self.platform.cupy.ndarray
        if mine is None or not isinstance(arrays, list) or not arrays or not isinstance(arrays[0], kind):
            return original(tup, axis, out, dtype, casting)
        wanted = out.dtype if isinstance(out, kind) else arrays[0].dtype if dtype is None else numpy.dtype(dtype)
        if not _by_table(arrays, wanted, kind):
            return original(tup, axis, out, dtype, casting)
        if mine.strict:
            words = f'Join {_JOINED} at most at a time, or record with `strict=False`, which does that'
            raise _table_refused('cupy.concatenate()', arrays, words)
        with self.lock:
            text = f'{counted(len(arrays), "array")} are joined {_JOINED} at a time'
            mine.note('adapted', self._current_lane(mine), text, here())
        while len(arrays) > _JOINED:
            groups = range(0, len(arrays), _JOINED)
            arrays = [original(arrays[n : n + _JOINED], axis, None, dtype, casting) for n in groups]
        return original(arrays, axis, out, dtype, casting)

    def _constant(self, live: Live, make: Callable[[], Any], call: str) -> Any:
        """Upload a host value on a stream of its own and wait for it. Its memory stays taken as long as the graph."""
        array = self._uploaded(live, make)
        lane = self._current_lane(live)
        text = f'{call}: {array.dtype} {array.shape} uploaded while recording, the same at every launch'
        live.note('constant', lane, text, here(), nbytes=int(array.nbytes))
        return array

    def _exchanged(self, live: Live, obj: Any) -> Any:
        """An array of another library: CuPy would synchronise the stream that it names."""
        interface = dict(obj.__cuda_array_interface__)
        named = interface.get('stream')
        if named is None:
            return obj
        stream = self.meant(int(named))
        lane = self.topology.lane(stream)
        call = 'Use of an array of another library'
        if lane is None or lane.capture is not live.capture:
            verdict = self.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if verdict.answer.refused:
                self.refuse(verdict, call, stream, _EXCHANGE if lane is not None else None)
            if stream == named and stream not in live.trapped:
                return obj
            self.spring(stream)
            self.own('cupy.cuda.runtime.streamSynchronize', stream)  # as CuPy would, where nothing is in its way
            self._trap_again()
        elif lane is not (here_lane := self._current_lane(live)):
            verdict = self.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if live.strict:
                self.refuse(verdict, call, stream, _EXCHANGE)
            at = here()
            self._wait_on(live, here_lane, self._record_on(live, lane, at), at)
            live.note('adapted', here_lane, f'exchange of an array became a join of lane {lane.number}', at)
        interface['stream'] = None
        return _Exchanged(interface, obj)

    def memory_of_another(
        self, original: Callable[..., Any], ptr: int, size: int, owner: Any, device_id: int = -1
    ) -> Any:
        """CuPy makes an array of what another library holds: the next it does is to wait for the stream named there.

        Operands of compiled functions come by here as well: ``a + obj``.
        """
        _EXCHANGING.settled = False
        settled = self._settled(owner)
        memory = original(ptr, size, owner, device_id)
        _EXCHANGING.settled = settled
        return memory

    def _settled(self, owner: Any) -> bool:
        """Whether there is no need to wait any more."""
        kind = (self.platform.cupy.ndarray, _Exchanged)
        interface = None if isinstance(owner, kind) else getattr(owner, '__cuda_array_interface__', None)
        if not interface or interface.get('stream') is None:
            return False
        if not self.installation.originals['cupy._util.CUDA_ARRAY_INTERFACE_SYNC']:
            return False
        with self.lock:
            mine = self._start()
            if mine is not None:
                return self._exchanged(mine, owner) is not owner
            stream = int(interface['stream'])
            verdict = self.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if self.topology.lane(stream) is not None and verdict.answer.refused:
                self.refuse(verdict, 'Use of an array of another library', stream, _EXCHANGE)
            return False

    def exchange_waits(self, original: bool) -> bool:
        """Whether CuPy is to wait for the stream of the array that it is making."""
        settled, _EXCHANGING.settled = _EXCHANGING.settled, False
        return original and not settled

    def array_getitem(self, original: Callable[..., Any], array: Any, key: Any) -> Any:
        mine = self.mine()
        return original(array, key if mine is None else self._index(mine, key))

    def array_setitem(self, original: Callable[..., Any], array: Any, key: Any, value: Any) -> Any:
        mine = self.mine()
        if (mine is not None and mine.memory is not None) or threading.get_ident() in self.rehearsals:
            mask = self._whole_mask(array, key)
            if mask is not None and (one := self._one_value(array, value)) is not None:
                # CuPy counts the mask on the host even where one value goes to all that it selects.
                cupy = self.platform.cupy
                wide = mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim))
                cupy.copyto(array, one, where=cupy.broadcast_to(wide, array.shape))
                return None
        return original(array, key if mine is None else self._index(mine, key), value)

    def _whole_mask(self, array: Any, key: Any) -> Any:
        """The mask of the device's that is all of an index and fits the array's first axes; else None."""
        if isinstance(key, tuple) and len(key) == 1:
            key = key[0]
        if not isinstance(key, self.platform.cupy.ndarray) or key.dtype.kind != 'b' or not key.ndim:
            return None
        return key if key.shape == array.shape[: key.ndim] and array.dtype.fields is None else None

    def _one_value(self, array: Any, value: Any) -> Any:
        """A value that goes to every element alike, as an array without axes of the same dtype; else None."""
        if array.dtype.kind != 'c' and numpy.dtype(getattr(value, 'dtype', type(value))).kind in 'cO':
            return None
        if _is_scalar(value):
            try:
                host = numpy.array(value, array.dtype)
            except (TypeError, ValueError, OverflowError):
                return None  # as CuPy does it, which refuses it where the mask selects anything
            return self.platform.cupy.full((), host, array.dtype)
        if isinstance(value, self.platform.cupy.ndarray) and value.ndim == 0:
            return value.astype(array.dtype)  # a copy: it may be an element of the array
        return None

    def _index(self, live: Live, key: Any) -> Any:
        """Lists, inner tuples and NumPy arrays in an index are uploaded; a mask takes one place for each axis."""
        if not isinstance(key, tuple):
            parts = self._index_parts(live, key)
            return parts[0] if len(parts) == 1 else tuple(parts)
        return tuple(found for part in key for found in self._index_parts(live, part))

    def _index_parts(self, live: Live, part: Any) -> list[Any]:
        if live.memory is None or not isinstance(part, (list, tuple, numpy.ndarray)) or _is_scalar(part):
            return [part]
        if _holds_arrays(part, self.platform.cupy.ndarray):
            return [part]
        host = numpy.asarray(part)
        if host.size == 0 and not isinstance(part, numpy.ndarray):
            host = host.astype(numpy.intp)
        hosts = list(host.nonzero()) if host.dtype == bool else [host]
        original = self.installation.originals['cupy._core.array']
        with self.lock:
            return [self._constant(live, functools.partial(original, one), 'index') for one in hosts]

    def array_dlpack(self, original: Callable[..., Any], array: Any, *args: Any, **kwargs: Any) -> Any:
        """DLPack export: a consumer that names no stream means the legacy one."""
        with self.lock:
            mine = self._start()
            stream = kwargs.get('stream')
            if mine is not None:
                device = kwargs.get('dl_device')
                if device is not None and tuple(device) != tuple(array.__dlpack_device__()):
                    self._refuse_read(self.platform.cupy.cuda.get_current_stream().ptr)
                if stream is None or stream in LEGACY_HANDLES:
                    verdict = self.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
                    rule = VARIANTS['dlpack-legacy']
                    self.refuse(verdict, 'ndarray.__dlpack__()', LEGACY_HANDLES[0], rule)
        return original(array, *args, **kwargs)


class _Exchanged:
    """An array of another library, without the stream that CuPy would wait for."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__cuda_array_interface__ = interface
        self.owner = owner


def _by_table(arrays: list[Any], dtype: Any, kind: Any) -> bool:
    """Whether CuPy joins these with one kernel that finds them by a table of addresses."""
    if len(arrays) <= _JOINED or not all(isinstance(one, kind) and one.dtype == dtype for one in arrays):
        return False
    return sum(int(one.nbytes) for one in arrays) < _SMALL * len(arrays)


def _table_refused(call: str, arrays: list[Any], instead: str) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        call,
        location=here(),
        rule=f'CuPy joins {len(arrays)} small arrays of one dtype with one kernel, and copies a table of their '
        'addresses from the host for it: no such copy can be recorded.',
        remedy=f'{instead}; or write each array into its part of one: `out = cp.empty(shape, dtype)`, '
        '`out[:, n : n + k] = x`.',
        cuda_error=Code.cudaErrorStreamCaptureUnsupported.name,
    )


def _flat(obj: Any) -> Iterator[Any]:
    """What is in a nested list."""
    if isinstance(obj, (list, tuple)):
        for part in obj:
            yield from _flat(part)
    else:
        yield obj


def _is_scalar(obj: Any) -> bool:
    return isinstance(obj, (bool, int, float, complex, numpy.generic)) or (
        isinstance(obj, numpy.ndarray) and obj.ndim == 0
    )


def _holds_arrays(obj: Any, kind: type) -> bool:
    """True when a nested list holds arrays of the device."""
    if isinstance(obj, (list, tuple)):
        return any(_holds_arrays(part, kind) for part in obj)
    return isinstance(obj, kind) or hasattr(obj, '__cuda_array_interface__')

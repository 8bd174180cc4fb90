"""Values that go between host and device: host reads are refused, constants are uploaded at once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy

from capturekit.driver.node_accesses import Access, linear, overlap
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.stream_calls import CallsOnStreams
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.errors import CudaCallError
from capturekit.model.host_reads import signature
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Code, Operation, Rule
from capturekit.model.source_line import here

_O = Operation
_USE = 'Use of an array of another library'
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


#: CuPy concatenates more arrays than this with one kernel, if they have fewer bytes each on average
#: (``_concatenate`` in ``cupy/_core/_routines_manipulation.pyx``, 14.0 to 14.2).
_JOINED, _SMALL = 8, 2 << 20


class Arrays(CallsOnStreams):
    """Refuses host reads, uploads constants at once, and judges the exchange of arrays with other libraries."""

    def array_get(
        self, original: Callable[..., Any], array: Any, stream: Any = None, order: str = 'C', out: Any = None,
        blocking: bool = True,
    ) -> Any:  # fmt: skip
        if out is not None:
            self._fills(out)
        rehearsal = self.state.rehearsals.get(threading.get_ident())
        if rehearsal is not None and self.state.mine() is None:
            with self.state.inside:
                value = original(array, stream, order, out, True)
            rehearsal.add(value, here())
            return value
        where = self.streams.meant(self.state.current_stream() if stream is None else stream)
        if stream is None and where.ptr in LEGACY_HANDLES:
            stream = where
        with self.state.lock:
            mine = self.verdicts.start()
            if mine is not None and mine.parts.answers is not None:
                return self._given_back(mine, array, order, out)
            if array.size:
                self._refuse_unlaunched(array, where.ptr, out)
                self.verdicts.refuse_read_elsewhere('ndarray.get()', array.data.mem)
            if mine is not None:
                # where the legacy stream is meant, its placeholder has the work
                held, _ = mine.devices.placeholders.get(self.state.current_device(), (where, None))
                self.streams.release(held.ptr if where.ptr in LEGACY_HANDLES else where.ptr)
            verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=where.ptr)
        if array.size:
            self.inputs.reads(array)

        def go() -> Any:
            with self.state.inside:
                return original(array, stream, order, out, blocking)

        if mine is not None and where.ptr in LEGACY_HANDLES and not verdict.lost:
            return go()
        try:
            return self.verdicts.carry_out(verdict, 'ndarray.get()', where.ptr, go) if array.size else go()
        finally:
            self.streams.hold_again()

    def _fills(self, out: Any) -> None:
        """Refuse to fill a NumPy array of the caller, because a launch would not fill it again."""
        mine, rehearsal = self.state.mine(), self.state.rehearsals.get(threading.get_ident())
        if mine is not None and mine.caller is not None:
            if any(root_of(out) is one for one in mine.caller.filled):
                raise self.callers.not_recorded(
                    'ndarray.get(out=...)', None, "It fills an array of the caller's", 'Return `x.get()` instead.'
                )
        elif rehearsal is not None:
            rehearsal.filled.append(root_of(out))

    def _given_back(self, live: OpenCapture, array: Any, order: str, out: Any) -> Any:
        """Return the value that the rehearsal read here, and record a check of it, on which all later work depends."""
        assert live.parts.answers is not None
        self.bodies.not_in_body(live, 'ndarray.get()', 'Read before the decision, or after it.')
        at = here()
        found = live.parts.answers.answer(array.shape, array.dtype, signature())
        if found is None:
            raise errors.HostReadError(
                'ndarray.get()',
                location=at,
                rule=f'The rehearsal has no read of {array.dtype}{list(array.shape)} here: it took another way.',
                remedy='Rehearse on the inputs that are recorded, in the same state of caches and generators.',
            )
        late = live.parts.answers.late(found, array) if array.size else None
        lane = self.lanes.current_lane(live)
        if late is not None:
            value, outcomes = late
            live.note('note', lane, f'host read {found}: made anew at every launch', at)
            if outcomes is not None:
                self.parts.check(live, *outcomes, at)
            return _as_asked(value, order, out)
        text = f'host read {found}: {counted(found.value.nbytes, "byte")} assumed, and checked at every launch'
        live.note('assumed', lane, text, at, nbytes=found.value.nbytes)
        if array.size:
            self.parts.check(live, array, found.value, at)
        return _as_asked(found.value, order, out)

    def _refuse_unlaunched(self, array: Any, ptr: int, out: Any) -> None:
        """Refuse to read an array on a lane, and on any stream one that this thread's captures may write."""
        if self.state.open_on(ptr) is not None:
            self.verdicts.refuse_read(ptr, RULES['host-read'] if out is None else VARIANTS['host-read-into'])
        for live in self.state.threads.get(threading.get_ident(), ()):
            rule = rule_for_read(self.state, live, array)
            if rule is not None:
                self.verdicts.refuse_read(None, rule)

    def array_set(self, original: Callable[..., Any], array: Any, arr: Any, stream: Any = None) -> Any:
        where = stream if stream is not None else self.state.current_stream()
        with self.state.lock:
            mine = self.verdicts.start()
            if array.size and (mine is not None or self.state.open_on(where.ptr) is not None):
                raise self._host_write(RULES['host-write'], 'ndarray.set()', where.ptr)
        return original(array, arr, stream)

    def array_from(self, original: Callable[..., Any], obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Make an array from values of the host. They are uploaded at once, and the graph keeps them."""
        mine, kind = self.state.mine(), self.state.platform.cupy.ndarray
        if mine is None or isinstance(obj, kind):
            return original(obj, *args, **kwargs)
        of_host = not hasattr(obj, '__cuda_array_interface__') and not _is_scalar(obj)
        if mine.memory is None:
            if of_host and not _holds_arrays(obj, kind):
                self._refuse_values(mine, obj, 'cupy.array()')
            return original(obj, *args, **kwargs)
        with self.state.lock:
            self.verdicts.check(mine)
            if not of_host:
                return original(obj, *args, **kwargs)
            if _holds_arrays(obj, kind):
                flat = list(_flat(obj))
                if _by_table(flat, getattr(flat[0], 'dtype', None), kind) and _nested_shape(obj) is not None:
                    joined = self.state.installation.originals['cupy._core.concatenate_method']
                    obj = self.arrays_joined(joined, [one.reshape(-1) for one in flat], 0).reshape(_nested_shape(obj))
                return original(obj, *args, **kwargs)
            array = self.constant(mine, lambda: original(obj, *args, **kwargs), 'cupy.array()')
        return array.copy(order='K')  # the work may change it, but every launch must start from the upload

    def _refuse_values(self, live: OpenCapture, values: Any, call: str) -> None:
        """Refuse values of the host on a lane of a capture that a script began by hand: there CuPy copies them."""
        ptr = self.state.current_stream().ptr
        if self.state.open_on(ptr) is live and numpy.size(values):
            raise self._host_write(VARIANTS['host-values'], call, ptr)

    def _host_write(self, rule: Rule, call: str, ptr: int) -> errors.CaptureError:
        """Return the error for values that the host would copy to the device once and now."""
        code = Code.cudaErrorStreamCaptureUnsupported
        return self.verdicts.error(call, ptr, rule=f'{rule.says}.', remedy=rule.remedy, code=code, kind=rule.error)

    def arrays_joined(
        self, original: Callable[..., Any], tup: Any, axis: int, out: Any = None, dtype: Any = None,
        casting: str = 'same_kind',
    ) -> Any:  # fmt: skip
        """Concatenate arrays, many small ones a few at a time: CuPy copies a table of their addresses from the host for
        one kernel, which no graph can hold."""
        mine = self.state.mine()
        arrays = list(tup) if isinstance(tup, (list, tuple)) else tup
        kind = self.state.platform.cupy.ndarray
        if mine is None or not isinstance(arrays, list) or not arrays or not isinstance(arrays[0], kind):
            return original(tup, axis, out, dtype, casting)
        wanted = out.dtype if isinstance(out, kind) else arrays[0].dtype if dtype is None else numpy.dtype(dtype)
        if not _by_table(arrays, wanted, kind):
            return original(tup, axis, out, dtype, casting)
        if mine.memory is None:
            raise self.verdicts.error(
                'cupy.concatenate()',
                rule=f'CuPy joins {len(arrays)} small arrays of one dtype with one kernel, and copies a table of their '
                'addresses from the host for it: no such copy can be recorded.',
                remedy=f'Join {_JOINED} at most at a time; or write each array into its part of one: '
                '`out = cp.empty(shape, dtype)`, `out[:, n : n + k] = x`.',
                code=Code.cudaErrorStreamCaptureUnsupported,
            )
        with self.state.lock:
            text = f'{counted(len(arrays), "array")} are joined {_JOINED} at a time'
            mine.note('note' if mine.strict else 'adapted', self.lanes.current_lane(mine), text, here())
        while len(arrays) > _JOINED:
            groups = range(0, len(arrays), _JOINED)
            arrays = [original(arrays[n : n + _JOINED], axis, None, dtype, casting) for n in groups]
        return original(arrays, axis, out, dtype, casting)

    def constant(self, live: OpenCapture, make: Callable[[], Any], call: str) -> Any:
        """Upload a host value on a separate stream and wait for it. The graph keeps its memory."""
        array = self.uploads.upload_made_by(live, make)
        lane = self.lanes.current_lane(live)
        text = f'{call}: {array.dtype} {array.shape} uploaded while recording, the same at every launch'
        live.note('constant', lane, text, here(), nbytes=int(array.nbytes))
        return array

    def array_getitem(self, original: Callable[..., Any], array: Any, key: Any) -> Any:
        mine = self.state.mine()
        return original(array, key if mine is None else self._index(mine, key))

    def array_setitem(self, original: Callable[..., Any], array: Any, key: Any, value: Any) -> Any:
        mine = self.state.mine()
        if (mine is not None and mine.memory is not None) or threading.get_ident() in self.state.rehearsals:
            mask = self._whole_mask(array, key)
            if mask is not None and (one := self._one_value(array, value)) is not None:
                # CuPy counts the mask on the host even if one value is assigned to all selected elements.
                cupy = self.state.platform.cupy
                wide = mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim))
                cupy.copyto(array, one, where=cupy.broadcast_to(wide, array.shape))
                if mine is None:  # counting would have waited for the device, which work on other devices may rely on
                    self.state.own('cupy.cuda.runtime.streamSynchronize', cupy.cuda.get_current_stream().ptr)
                return None
        return original(array, key if mine is None else self._index(mine, key), value)

    def _whole_mask(self, array: Any, key: Any) -> Any:
        """Return the mask if an index is a single mask on the device that fits the array's first axes; else None."""
        if isinstance(key, tuple) and len(key) == 1:
            key = key[0]
        if not isinstance(key, self.state.platform.cupy.ndarray) or key.dtype.kind != 'b' or not key.ndim:
            return None
        return key if key.shape == array.shape[: key.ndim] and array.dtype.fields is None else None

    def _one_value(self, array: Any, value: Any) -> Any:
        """Return a single value as an array without axes, of the array's dtype; None if it is not a single value."""
        if array.dtype.kind != 'c' and numpy.dtype(getattr(value, 'dtype', type(value))).kind in 'cO':
            return None
        if _is_scalar(value):
            try:
                host = numpy.array(value, array.dtype)
            except (TypeError, ValueError, OverflowError):
                return None  # CuPy raises for it if the mask selects anything
            one = self.state.platform.cupy.empty((), array.dtype)
            one.fill(host)  # as CuPy does, which treats -0.0 as 0
            return one
        if isinstance(value, self.state.platform.cupy.ndarray) and value.ndim == 0:
            return value.astype(array.dtype)  # a copy: it may be an element of the array
        return None

    def _index(self, live: OpenCapture, key: Any) -> Any:
        """Upload the lists, inner tuples and NumPy arrays in an index. A mask takes one place for each axis."""
        if isinstance(key, tuple):
            return tuple(found for part in key for found in self._index_parts(live, part))
        parts = self._index_parts(live, key)
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _index_parts(self, live: OpenCapture, part: Any) -> list[Any]:
        of_host = isinstance(part, (list, tuple, numpy.ndarray)) and not _is_scalar(part)
        if not of_host or _holds_arrays(part, self.state.platform.cupy.ndarray):
            return [part]
        if live.memory is None:
            self._refuse_values(live, part, 'An index of values of the host')
            return [part]
        host = numpy.asarray(part)
        if host.size == 0 and not isinstance(part, numpy.ndarray):
            host = host.astype(numpy.intp)
        hosts = list(host.nonzero()) if host.dtype == bool else [host]
        original = self.state.installation.originals['cupy._core.array']
        with self.state.lock:
            return [self.constant(live, functools.partial(original, one), 'index') for one in hosts]

    def ordered(self, live: OpenCapture, named: int) -> bool:
        """Order the work of a capture after the stream that an array of another library names. False where CuPy can
        wait for it on the host, as it does elsewhere."""
        stream = self.streams.meant(named)
        lane = self.state.ledger.lane(stream)
        if lane is None or lane.capture is not live.capture:
            verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if verdict.answer.refused:
                raise self.verdicts.refusal(verdict, _USE, stream, _EXCHANGE if lane is not None else None)
            if stream == named and stream not in live.outside.held:
                return False
            self.streams.release(stream)
            self.state.own('cupy.cuda.runtime.streamSynchronize', stream)  # as CuPy would outside of captures
            self.streams.hold_again()
        elif lane is not (here_lane := self.lanes.current_lane(live)):
            verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if live.strict:
                raise self.verdicts.refusal(verdict, _USE, stream, _EXCHANGE)
            at = here()
            self.lanes.wait_on(live, here_lane, self.lanes.record_on(live, lane, at), at)
            live.note('adapted', here_lane, f'exchange of an array became a join of lane {lane.number}', at)
        return True

    def memory_of_another(
        self, original: Callable[..., Any], ptr: int, size: int, owner: Any, device_id: int = -1
    ) -> Any:
        """Make an array of memory that another library holds, also for an operand of a compiled function: ``a + obj``.

        CuPy's next call waits for the stream that it names."""
        _EXCHANGING.settled = False
        settled = self._settled(owner)
        memory = original(ptr, size, owner, device_id)
        _EXCHANGING.settled = settled
        return memory

    def _settled(self, owner: Any) -> bool:
        """Whether the stream that an array names is ordered already, so that CuPy need not wait for it."""
        kind = self.state.platform.cupy.ndarray
        interface = None if isinstance(owner, kind) else getattr(owner, '__cuda_array_interface__', None)
        if not interface or interface.get('stream') is None:
            return False
        if not self.state.installation.originals['cupy._util.CUDA_ARRAY_INTERFACE_SYNC']:
            return False
        with self.state.lock:
            mine, stream = self.verdicts.start(), int(interface['stream'])
            if mine is not None:
                return self.ordered(mine, stream)
            verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=stream)
            if self.state.ledger.lane(stream) is not None and verdict.answer.refused:
                raise self.verdicts.refusal(verdict, _USE, stream, _EXCHANGE)
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
                    self.verdicts.refuse_read(self.state.current_stream().ptr)
                if not to_host and (stream is None or stream in LEGACY_HANDLES):
                    verdict = self.verdicts.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
                    rule = VARIANTS['dlpack-legacy']
                    raise self.verdicts.refusal(verdict, 'ndarray.__dlpack__()', LEGACY_HANDLES[0], rule)
        return original(array, *args, **kwargs)


def root_of(array: Any) -> Any:
    """The array whose memory this one is a view of."""
    while isinstance(getattr(array, 'base', None), numpy.ndarray):
        array = array.base
    return array


def _as_asked(found: Any, order: str, out: Any) -> Any:
    """A value of the host as ``ndarray.get`` returns it."""
    value = found.copy('C' if order == 'C' else 'F' if order == 'F' else 'K')
    if out is not None:
        out[...] = value
        return out
    return value


def _by_table(arrays: list[Any], dtype: Any, kind: Any) -> bool:
    """Whether CuPy concatenates these with one kernel that reads a table of their addresses."""
    if len(arrays) <= _JOINED or not all(isinstance(one, kind) and one.dtype == dtype for one in arrays):
        return False
    return sum(int(one.nbytes) for one in arrays) < _SMALL * len(arrays)


def _nested_shape(obj: Any) -> tuple[int, ...] | None:
    """The shape of what ``cupy.array`` makes of a nested list of arrays; None where the arrays do not fit together."""
    if not isinstance(obj, (list, tuple)):
        return tuple(obj.shape)
    shapes = {_nested_shape(part) for part in obj}
    shape = shapes.pop() if len(shapes) == 1 else None
    return None if shape is None else (len(obj), *shape)


def _flat(obj: Any) -> Iterator[Any]:
    """Yield what a nested list holds; anything else itself."""
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
    """True if a nested list holds arrays of the device."""
    return any(isinstance(one, kind) or hasattr(one, '__cuda_array_interface__') for one in _flat(obj))


def rule_for_read(state: State, live: OpenCapture, array: Any) -> Rule | None:
    """The rule by which the host can not read an array during a capture, or None.

    Memory that was allocated for recorded work has no values yet. Other memory is looked for among the arguments of the
    nodes: a library's kernel does not tell which of its arguments it writes."""
    mem = array.data.mem
    if live.memory.owns(mem) if live.memory is not None else live.records(mem):
        return RULES['host-read']
    mine = Access(int(array.data.ptr), array.shape, array.strides, int(array.itemsize), False)
    block = linear(int(mem.ptr), int(mem.size), False)
    found: Rule | None = None
    try:
        with state.inside:
            for access in _accesses(live, state.platform.device):
                shared = False if access.writes is False else overlap(access, mine if access.itemsize else block)
                if shared and access.writes:
                    return RULES['host-read']
                if shared is not False:
                    found = VARIANTS['host-read-unknown']
    except CudaCallError:  # this driver, or an eager run, does not tell what recorded work is given
        return VARIANTS['host-read-unseen']
    return found


def _accesses(live: OpenCapture, device: Any) -> Iterator[Access]:
    """Yield the accesses of the nodes that a capture has so far, and of the bodies of decisions among them."""
    info = device.capture_info(live.origin.ptr)
    if info.status is not CaptureStatus.ACTIVE:
        return
    graphs = [info.graph, *(decision.graph for decision in live.decisions.open)]
    for graph in graphs:
        for node, touched in device.graph_accesses(graph).items():
            graphs += [body for body in live.decisions.bodies.get(node, ()) if body not in graphs]
            yield from touched.accesses

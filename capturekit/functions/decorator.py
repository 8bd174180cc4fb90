"""``@graphed``: a function of CuPy code, run eagerly once, then recorded, then launched.

The first call of a kind runs eagerly, and is the rehearsal: it answers, and shows which host values the function reads.
The second is recorded, with arguments in the graph's own memory, and launched; further ones only launch. What a launch
would not do again is either compared at each call (the values of globals, of closures, of attributes and of arguments
that are no arrays), checked on the device (host reads), or reason enough to stay eager, which is always right.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from capturekit.driver.cuda import Platform, current
from capturekit.functions.binding import AsFunction, function_of, lazy
from capturekit.functions.explanation import Newness, explanation
from capturekit.functions.kinds import Kind, all_are, apart, clear_of, fits_here, fitting, same_way, shared, to_front
from capturekit.functions.pending import Call
from capturekit.functions.recordable import only_arrays, values_of
from capturekit.functions.variant import Variant, VariantRecorder, opaque
from capturekit.functions.watch import Watch
from capturekit.functions.written import given_back
from capturekit.guard import GUARD
from capturekit.launch.plan import Feed
from capturekit.model import errors
from capturekit.model.cleanup import GARBAGE
from capturekit.model.counted import counted
from capturekit.model.counters import LOG, count
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Rehearsal
from capturekit.model.pytree import held_in, take_apart
from capturekit.model.source_line import Place
from capturekit.model.sparse import packed
from capturekit.model.value_changes import shape_of_change, snapshot

P = ParamSpec('P')
Q = ParamSpec('Q')
R_co = TypeVar('R_co', covariant=True)
Checks = Literal['now', 'later']

#: Calls in a row that did not fit what was recorded, after which a kind of call stays eager.
PATIENCE = 8
#: Host reads up to which the device decides whether to go on: a launch of many conditional nodes costs more.
CHAIN = 16
#: Calls by the host between graphs up to which pieces are likely to be worth it.
FEW_SEAMS = 4


class _Busy(threading.local):
    """Whether this thread is in a graphed function already: inner ones are then part of the outer one's work."""

    depth = 0


_BUSY = _Busy()


class Graphed(AsFunction, Generic[P, R_co]):
    """A function that launches graphs of itself; made by :func:`graphed`. Calls from several threads take turns."""

    def __init__(self, fn: Callable[P, R_co], strict: bool, checks: str, pieces: bool, limit: int, pool: Any) -> None:
        self._given: Any = fn
        plain: Callable[..., Any] = function_of(fn)
        functools.update_wrapper(self, plain)
        self.__wrapped__: Callable[..., Any] = plain
        self._newness = Newness(plain, limit)
        self._strict = strict
        self._later = checks == 'later'
        self._pieces = pieces
        self._limit = limit
        self._pool = pool
        self._lock = threading.RLock()
        self._kinds: OrderedDict[Any, Kind] = OrderedDict()
        self._platform: Platform | None = None
        self._said: set[str] = set()
        self._recordings = 0
        self._local = threading.local()
        self._used: Kind | None = None
        #: A call that may yet turn out to have failed, and has to be undone then before the next.
        self._pending: Call | None = None

    @property
    def variants(self) -> list[Variant]:
        """What has been rehearsed and recorded so far, by kind of call, the last used first."""
        with self._lock:
            return [variant for kind in reversed(self._kinds.values()) for variant in kind.variants]

    @property
    def last(self) -> Call | None:
        """The last call of this thread that was launched with ``checks='later'``."""
        found: Call | None = getattr(self._local, 'last', None)
        return found

    def clear(self) -> None:
        """Forget everything recorded, and give its memory back. Waits for the device."""
        with self._lock:
            kinds, self._kinds, self._used = self._kinds, OrderedDict(), None
            self._pending = None
            self._said.clear()
        for kind in kinds.values():
            with kind.lock:
                for variant in kind.variants:
                    variant.close()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Graphed[P, R_co]: ...

    @overload
    def __get__(
        self: Graphed[Concatenate[Any, Q], R_co], instance: object, owner: type | None = None
    ) -> Graphed[Q, R_co]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return super().__get__(instance, owner)

    def explain(self, file: Any = None) -> None:
        """Print, for each kind of call: its state, what is compared, why it is eager and what would change that."""
        with self._lock:
            kinds = dict(self._kinds)
        print(explanation(self._name, kinds, self._newness.said), file=file)

    def __repr__(self) -> str:
        return f'<graphed {self.__wrapped__!r}, {counted(len(self.variants), "variant")}>'

    # -- a call -----------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        fn = self.__wrapped__
        if _BUSY.depth or ((GUARD.state.rehearsals or GUARD.lives) and GUARD.occupied()):
            return fn(*args, **kwargs)  # type: ignore[no-any-return]
        platform = self._platform
        if platform is None or platform.simulated or GUARD.lives:
            platform = self._current()
        array = platform.cupy.ndarray
        leaves: Any
        form: Any
        if not kwargs and all_are(array, args):
            leaves, form = args, len(args)  # the quick way to say the same
            head: Any = form
        else:
            try:
                met: set[int] = set()
                is_array = lambda value: isinstance(value, array)  # noqa: E731
                leaves, form = take_apart(packed((args, kwargs)), is_array, opaque, met=met)
            except TypeError as error:
                self._say(f'its arguments can not be compared: {error}')
                return fn(*args, **kwargs)  # type: ignore[no-any-return]
            head = (form, *map(type, leaves))
            if self._reaches(met):
                self._say('a container is an argument and is reached in another way, too')
                return fn(*args, **kwargs)  # type: ignore[no-any-return]
        key = (head, platform.cupy.cuda.get_device_id(), *[(a.shape, a.strides, a.dtype) for a in leaves])
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._new_kind(key, leaves)
            if self._passing(kind, args, kwargs):
                return fn(*args, **kwargs)  # type: ignore[no-any-return]
        elif self._pending is None:
            if kind is not self._used:
                self._touch(key, kind)
            with kind.lock:
                first = kind.variants[0] if kind.variants else None
                if first is not None and first.quick is not None and first.changed() is None:
                    pointers = [leaf.data.ptr for leaf in leaves]
                    graph = first.graph
                    if apart(pointers, kind.reach, first.outside) and graph is not None and not graph.closed:
                        first.calls += 1
                        kind.misses = kind.strange = 0
                        if self._later:
                            self._local.last = None
                        return first.quick(leaves, pointers)  # type: ignore[no-any-return]
        alike = shared([leaf.data.ptr for leaf in leaves], kind.reach)
        if alike:
            key = (*key, alike)
            kind = self._kinds.get(key) or self._new_kind(key, leaves, alike)
        return self._answer(platform, kind, args, kwargs, leaves, form)  # type: ignore[no-any-return]

    def _reaches(self, met: set[int]) -> bool:
        """Whether what was recorded reaches one of these containers otherwise than as an argument."""
        environments = [v.environment for kind in self._kinds.values() for v in kind.variants if v.state != 'eager']
        return any(found is not None and not found.reached.isdisjoint(met) for found in environments)

    def _touch(self, key: Any, kind: Kind) -> None:
        """This kind is the last used."""
        with self._lock:
            if key in self._kinds:
                self._kinds.move_to_end(key)
                self._used = kind

    def _current(self) -> Platform:
        platform = current()
        if self._platform is None or self._platform.cupy is not platform.cupy:
            self.clear()
            self._platform = platform
        return platform

    def _passing(self, kind: Kind, args: Any, kwargs: Any) -> bool:
        """Whether a new kind of call is one of many that never come back: such are not watched."""
        words = self._newness.seen(args, kwargs)
        if words:
            self._say(words)
        return self._newness.said != ''

    def _new_kind(self, key: Any, leaves: list[Any], alike: tuple[Any, ...] = ()) -> Kind:
        with self._lock:
            kind = self._kinds.setdefault(key, Kind(leaves, alike))
            while len(self._kinds) > self._limit:
                _key, old = self._kinds.popitem(last=False)
                with old.lock:
                    for variant in old.variants:
                        variant.close()
                        self._newness.came_back += variant.launches
            return kind

    def _answer(self, platform: Platform, kind: Kind, args: Any, kwargs: Any, leaves: list[Any], form: Any) -> Any:
        with kind.lock:
            if self._pending is not None:
                self._pending.holds()
                self._pending = None
            if self._later:
                self._local.last = None
            for variant in [v for v in kind.variants if v.graph is not None and v.graph.closed]:
                kind.variants.remove(variant)  # closed by somebody who got hold of its graph
                variant.close()
            for fences in {v.fences for v in kind.variants if v.fences is not None}:
                fences.wait()
            here_now = platform.cupy.cuda.get_current_stream().ptr
            for number, variant in enumerate(kind.variants):
                if not fits_here(kind, variant, here_now):
                    continue
                environment = variant.environment
                if environment is not None and environment.changed() is not None:
                    continue
                if number:
                    kind.variants.insert(0, kind.variants.pop(number))
                variant.calls += 1
                pointers = [leaf.data.ptr for leaf in leaves]
                if not clear_of(pointers, kind.reach, variant.outside):
                    self._say('an argument lies on an array that the function also reaches otherwise')
                    break
                if variant.run is not None:
                    return self._launch(platform, kind, variant, args, kwargs, leaves, form)
                if variant.state == 'rehearsed':
                    return self._record(platform, kind, variant, args, kwargs, leaves, form)
                break
            else:
                return self._rehearse(platform, kind, args, kwargs)
        return self.__wrapped__(*args, **kwargs)

    def _launch(
        self, platform: Platform, kind: Kind, variant: Variant, args: Any, kwargs: Any, leaves: list[Any], form: Any
    ) -> Any:
        tried = [variant]
        while True:
            assert variant.run is not None
            try:
                result = variant.run(leaves, not self._later)
            except errors.AssumptionError as error:
                other = fitting(kind, tried, error)
                if other is None:
                    return self._take_over(platform, kind, variant, error, args, kwargs)
                variant.restore(error)
                to_front(kind, other)
                other.calls += 1
                if other.run is None:
                    return self._record(platform, kind, other, args, kwargs, leaves, form)
                variant = other
                tried.append(other)
            except Exception as error:  # a call between two parts raised: so does the eager run, as if only it had run
                LOG.info('%s: %r; this call runs eagerly', self._name, error)
                count('fallbacks')
                variant.restore()
                return self._again(platform, args, kwargs, variant.drawn())
            except BaseException:
                variant.restore()
                raise
            else:
                kind.misses = kind.strange = 0
                if self._later and variant.plan is not None:
                    stream = platform.cupy.cuda.get_current_stream()
                    self._local.last = Call(variant, variant.plan.launches, stream)
                    self._pending = self._local.last if variant.backups else None
                return result

    def _take_over(
        self, platform: Platform, kind: Kind, variant: Variant, error: errors.AssumptionError, args: Any, kwargs: Any,
        drawn: list[Feed] | None = None,
    ) -> Any:  # fmt: skip
        """An assumption failed: nothing has happened as far as the caller can see, and the eager run answers."""
        variant.restore(error)
        kind.misses += 1
        count('fallbacks')
        LOG.info('%s: %s; this call runs eagerly', self._name, str(error).replace('\n ', ''))
        drawn = drawn or variant.drawn()
        if kind.misses >= PATIENCE:
            at = f' at {error.location}' if error.location else ''
            kind.misses = 0
            self._stay_eager(kind, variant, f'the host read{at} gives another value at nearly each call')
        return self._rehearse(platform, kind, args, kwargs, drawn)

    def _stay_eager(self, kind: Kind, variant: Variant, reason: str) -> None:
        for other in kind.variants:
            if other is not variant:
                other.close()
        kind.variants[:] = [variant]
        variant.give_up(reason)
        self._say(reason)

    def _rehearse(self, platform: Platform, kind: Kind, args: Any, kwargs: Any, drawn: list[Feed] | None = None) -> Any:
        """Run eagerly, and see what a launch would not do again."""
        fn = self.__wrapped__
        if kind.variants and kind.variants[0].state == 'eager' and drawn is not None:
            return self._again(platform, args, kwargs, drawn)
        array = platform.cupy.ndarray
        is_array = lambda value: isinstance(value, array)  # noqa: E731
        before = snapshot((args, kwargs), is_array, opaque)
        rehearsal = Rehearsal()
        _BUSY.depth += 1
        GARBAGE.hold()  # finalizers and the collector's callbacks would be taken for a part of the function
        try:
            watch = Watch(fn, is_array=is_array, ignore=lambda value: not opaque(value), arguments=(args, kwargs))
            with GUARD.rehearsing(platform, rehearsal, drawn), watch:
                result = fn(*args, **kwargs)
        finally:
            GARBAGE.release()
            _BUSY.depth -= 1
        environment = watch.environment
        written = environment.written() or next(iter(rehearsal.effects), None) or lazy(fn)
        if written is not None and not kind.sure:
            # An object that the run made may lie where one lay that has died since: seen once more, it is no chance.
            kind.sure = True
            return result
        reason = written or shape_of_change(before, (args, kwargs), is_array) or given_back(environment, result)
        if reason is None:
            try:
                _leaves, held = take_apart(packed(result), only_arrays(platform.cupy), opaque, name='the result')
            except TypeError as error:
                reason = str(error)
        now = platform.cupy.cuda.get_current_stream().ptr
        here = [v for v in kind.variants if fits_here(kind, v, now)]
        same = next((v for v in here if reason is None and same_way(v, rehearsal)), None)
        if same is not None:
            to_front(kind, same)
            return result
        kind.strange += 1
        lasting = kind.strange > self._limit + PATIENCE
        if lasting:
            reason = reason or 'what it depends on besides its arguments is different at nearly each call'
        variant = Variant(None if lasting else environment, rehearsal, reason or '')
        variant.calls = 1
        variant.rehearsed_on = now
        if lasting:
            self._stay_eager(kind, variant, variant.reason)
            return result
        if reason is None:
            variant.held, variant.values = held_in(held), values_of(result, platform.cupy)
        kind.variants.insert(0, variant)
        if reason is not None:
            self._say(reason)
        for old in kind.variants[self._limit :]:
            old.close()
        del kind.variants[self._limit :]
        return result

    def _record(
        self, platform: Platform, kind: Kind, variant: Variant, args: Any, kwargs: Any, leaves: list[Any], form: Any
    ) -> Any:
        """Record, and answer this call by it; what can't be recorded runs eagerly, now and from now on."""
        drawn: list[Feed] = []
        reason = ''
        if isinstance(form, int):
            leaves, form = take_apart(
                packed((args, kwargs)), lambda value: isinstance(value, platform.cupy.ndarray), opaque
            )
        for gates in ('device', 'host') if len(variant.assumptions) <= CHAIN else ('host',):
            recorder = VariantRecorder(platform, self.__wrapped__, variant, gates, self._pool)
            _BUSY.depth += 1
            try:
                begun = time.perf_counter()
                result = recorder.record(leaves, form, self._pieces)
                self._count_recording(variant, time.perf_counter() - begun)
                self._count_seams(variant)
                return result
            except errors.AssumptionError as error:
                return self._take_over(platform, kind, variant, error, args, kwargs, recorder.drawn)
            except CaptureError as error:
                reason = ' '.join(str(error).split())
                break
            except Exception as error:
                reason = f'{type(error).__name__}: {error}'
            finally:
                _BUSY.depth -= 1
                drawn = recorder.drawn
            if drawn or not variant.assumptions:
                break
        if self._strict:
            variant.give_up(reason)
            raise errors.UnsupportedCallError(
                f'{self._name} can not be recorded',
                rule=reason,
                remedy='Change that line, or leave strict=True out: the function then runs eagerly.',
            )
        variant.give_up(reason)
        self._say(reason)
        count('fallbacks')
        return self._again(platform, args, kwargs, drawn)

    def _again(self, platform: Platform, args: Any, kwargs: Any, drawn: list[Feed]) -> Any:
        """Run eagerly, with the numbers that a launch or a recording which came to nothing has drawn already."""
        _BUSY.depth += 1
        try:
            with GUARD.rehearsing(platform, Rehearsal(), drawn):
                return self.__wrapped__(*args, **kwargs)
        finally:
            _BUSY.depth -= 1

    @property
    def _name(self) -> str:
        return str(getattr(self.__wrapped__, '__qualname__', repr(self.__wrapped__)))

    def _count_recording(self, variant: Variant, seconds: float) -> None:
        """The first recording of a function is a capture like any other; those after it are counted, and told."""
        self._recordings += 1
        if self._recordings > 1:
            count('rerecordings', seconds)
            LOG.info(
                '%s: recorded anew (recording %d) in %.2f ms: %r', self._name, self._recordings, seconds * 1e3, variant
            )

    def _count_seams(self, variant: Variant) -> None:
        """Say once that a function has more calls by the host between its graphs than pieces are worth."""
        if len(variant.seams) > FEW_SEAMS and 'seams' not in self._said:
            self._said.add('seams')
            where = ', '.join(dict.fromkeys(f'{seam.name} at {seam.at}' for seam in variant.seams))
            LOG.warning(
                '%s: %d calls that no capture can hold stand between its graphs (%s). Each waits for the device: '
                'compare with the eager run (pieces=False), and see fn.variants[0].seams for what each costs.',
                self._name, len(variant.seams), where,
            )  # fmt: skip

    def _say(self, reason: str) -> None:
        """Say once why calls run eagerly."""
        kind = re.sub(r'\d+', '#', reason)  # the same with other numbers is nothing new
        if kind not in self._said:
            self._said.add(kind)
            code = getattr(self.__wrapped__, '__code__', None)
            at = '' if code is None else f' ({Place(code.co_filename, code.co_firstlineno, "").short})'
            LOG.warning('%s%s runs eagerly: %s', self._name, at, reason)


@overload
def graphed(
    fn: Callable[P, R_co],
    *,
    strict: bool = False,
    checks: Checks = 'now',
    pieces: bool = True,
    limit: int = 16,
    pool: Any = None,
) -> Graphed[P, R_co]: ...


@overload
def graphed(
    fn: None = None,
    *,
    strict: bool = False,
    checks: Checks = 'now',
    pieces: bool = True,
    limit: int = 16,
    pool: Any = None,
) -> Callable[[Callable[P, R_co]], Graphed[P, R_co]]: ...


def graphed(
    fn: Callable[..., Any] | None = None,
    *,
    strict: bool = False,
    checks: Checks = 'now',
    pieces: bool = True,
    limit: int = 16,
    pool: Any = None,
) -> Any:
    """Make a function of CuPy code launch a recorded graph of itself: ``@ck.graphed``.

    The first call of a kind runs eagerly, the second is recorded, later ones are launched. Arguments may hold arrays
    anywhere in nested containers; what is no array is compared by value, objects of one's own by identity (their
    attributes that the function uses are watched). Arrays changed in place are the caller's own; results are new arrays
    at each call. Host reads are checked at every launch: where one gives another value, that call runs eagerly. What
    can't be recorded runs eagerly, and a warning to the logger ``capturekit`` says once why. A launch does not repeat
    what the function does besides CuPy's work: printing, appending to lists of others, writing files.

    Args:
        fn: the function; methods work.
        strict: True: what can't be recorded raises UnsupportedCallError instead of running eagerly.
        checks: 'now' waits for the checks of host reads before returning (functions without host reads never wait);
            'later' returns at once, and ``fn.last.holds()`` tells whether the result is right.
        pieces: whether calls that no capture can hold (svd, eigh ...) are made by the host between graphs.
        limit: how many kinds of calls, and variants of each, are kept; the least recently used go first.
        pool: a ``cupy.cuda.MemoryPool`` that the graphs' memory is taken from, instead of one for each graph. What
            a graph takes stays its own until it is closed: one pool saves no memory, it limits and counts it.

    Raises:
        TypeError, ValueError: an argument is none of these.

    Threads: calls of one kind take turns. Streams: launched on CuPy's current stream.
    """
    if fn is None:
        return functools.partial(graphed, strict=strict, checks=checks, pieces=pieces, limit=limit, pool=pool)
    if not callable(fn) and not isinstance(fn, classmethod):
        raise TypeError(f'graphed takes a function, got {type(fn).__name__}')
    if checks not in ('now', 'later'):
        raise ValueError(f"checks must be 'now' or 'later', got {checks!r}")
    if not isinstance(strict, bool) or not isinstance(pieces, bool):
        raise TypeError('strict and pieces must be True or False')
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f'limit must be a whole number, got {limit!r}')
    if limit < 1:
        raise ValueError(f'limit must be 1 or more, got {limit}')
    if pool is not None and not callable(getattr(pool, 'malloc', None)):
        raise TypeError(f'pool must be a cupy.cuda.MemoryPool or None, got {type(pool).__name__}')
    return Graphed(fn, strict, checks, pieces, limit, pool)

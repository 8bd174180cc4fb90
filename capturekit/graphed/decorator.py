"""``@graphed``: a function of CuPy code, run eagerly once, then recorded, then launched.

The first call of a kind runs eagerly. It returns its result, and shows which host values the function reads (it is the
*rehearsal*). The second call is recorded, with arguments in the graph's own memory, and launched; later ones are only
launched. A launch repeats no Python code. So at each call the values of globals, closures, attributes and of arguments
that are not arrays are compared; Python state that the function changes is changed again; host reads are checked on the
device. A function that does anything else stays eager, which is always right.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from capturekit.driver.cuda import Platform, current
from capturekit.graphed import policy
from capturekit.graphed.binding import AsFunction, function_of
from capturekit.graphed.call_turns import BUSY, TURNS
from capturekit.graphed.checks import Call
from capturekit.graphed.fast_path import fast_path
from capturekit.graphed.faster_way import FASTER, contest_of
from capturekit.graphed.kinds import Given, Kind, shared
from capturekit.graphed.number_arguments import CallNumbers, NumberArguments, room
from capturekit.graphed.options import Options, options_of
from capturekit.graphed.reasons import Reason, Why
from capturekit.graphed.recordable import is_more
from capturekit.graphed.tally import Newness, Tally
from capturekit.graphed.usual_call import NOT_ANSWERED, devices_of, usual_call
from capturekit.graphed.variant import Variant, opaque
from capturekit.guard import GUARD
from capturekit.launch.memory_group import MemoryGroup
from capturekit.model.counted import counted
from capturekit.model.pytree import take_apart
from capturekit.model.skipped_exits import Lock
from capturekit.model.sparse import packed

if TYPE_CHECKING:
    from capturekit.graphed.answering import Answering

P = ParamSpec('P')
Q = ParamSpec('Q')
R_co = TypeVar('R_co', covariant=True)
Checks = Literal['now', 'later']
#: What else belongs to a call: its arguments, the form of those that are not arrays, and numbers kept out of that.
_Rest = tuple[Platform, Any, Any, Any, CallNumbers | None]
#: The rehearsals and the captures that are open, and the graphed functions that run eagerly, of all threads.
_REHEARSALS, _LIVES, _BUSY = GUARD.state.rehearsals, GUARD.state.lives, BUSY.threads


def _answering(plain: Callable[..., Any], options: Options, tally: Tally) -> Answering:
    """What answers calls: most of this package, which is imported where a function is graphed."""
    from capturekit.graphed.answering import Answering

    return Answering(plain, options, tally)


class Graphed(AsFunction, Generic[P, R_co]):
    """A function that launches graphs of itself; made by :func:`graphed`. Calls from several threads take turns."""

    def __init__(self, fn: Callable[P, R_co], options: Options) -> None:
        self._given: Any = fn
        plain: Callable[..., Any] = function_of(fn)
        functools.update_wrapper(self, plain)
        self.__wrapped__: Callable[..., Any] = plain
        self._options = options
        self._newness = Newness(plain, options.limit)
        self._tally = Tally(plain)
        self._answering = _answering(plain, options, self._tally)
        self.numbers = NumberArguments()
        self._lock = Lock()
        #: Whether the user was told that calls run eagerly.
        self._told = False
        #: How many of the next calls of no kind run eagerly without a look; how many at a time; and why the last one.
        self._skip = self._unseen = 0
        self._unwatched = ''
        self._kinds: OrderedDict[Any, Kind] = OrderedDict()
        self._platform: Platform | None = None
        #: Whether another CuPy may take the place of this one: the simulated device does.
        self._may_change = False
        self._used: Kind | None = None

    @property
    def variants(self) -> list[Variant]:
        """What has been rehearsed and recorded so far: the variants of each kind of call, the last used kind first."""
        with self._lock:
            return [variant for kind in reversed(self._kinds.values()) for variant in kind.variants]

    @property
    def memory(self) -> MemoryGroup | None:
        """The memory that the variants share; None with ``pool=``, where they share none."""
        return self._options.memory

    @property
    def last(self) -> Call | None:
        """The last call of this thread, with ``checks='later'``; None if it ran eagerly."""
        return self._answering.earlier.last.call

    def clear(self) -> None:
        """Drop all variants and give their memory back. Waits for the device."""
        with self._answering.earlier.alone():  # a call would find an array that a failed launch has changed
            with self._lock:
                kinds, self._kinds, self._used = self._kinds, OrderedDict(), None
                self._answering.earlier.call = None
                self._tally.clear()
                self._skip = 0
            for kind in kinds.values():
                kind.close()

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Graphed[P, R_co]: ...

    @overload
    def __get__(
        self: Graphed[Concatenate[Any, Q], R_co], instance: object, owner: type | None = None
    ) -> Graphed[Q, R_co]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is not None and type(self._given) is FunctionType:
            return MethodType(self, instance)
        return super().__get__(instance, owner)

    def explain(self, file: Any = None) -> None:
        """Print, for each kind of call: its state, what is compared, why it is eager and what would change that.

        The last line has the microseconds that the longest comparison takes now, and the milliseconds that following
        runs has taken.

        ``file``: where to print, as for :func:`print`; None: standard output."""
        from capturekit.graphed.explanation import explanation

        if file is not None and not callable(getattr(file, 'write', None)):
            raise TypeError(f'file must be an object with a method write, or None, got {type(file).__name__}')
        with self._lock:
            kinds = dict(self._kinds)
            eager, launched = Counter(self._tally.eager), self._tally.launched(kinds.values())
        told = explanation(self._tally.name, kinds, self._newness.warning, self.numbers, launched, eager)
        print(told, file=file)

    def __repr__(self) -> str:
        return f'<graphed {self.__wrapped__!r}, {counted(len(self.variants), "variant")}>'

    # -- a call -----------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        if _BUSY or _REHEARSALS or _LIVES:
            if BUSY.depth or GUARD.occupied():
                self._answering.earlier.last.call = None
                return self.__wrapped__(*args, **kwargs)  # type: ignore[no-any-return]
        else:
            for fn in self._tally.unseen:  # the next one of the calls that need no look; mostly there are none
                return fn(*args, **kwargs)  # type: ignore[no-any-return]
        platform = self._platform
        if platform is None or self._may_change or _LIVES:
            platform = self._current()
        used = self._used
        if used is not None:
            if used.first is not None and not _LIVES:
                answer = used.first(args, kwargs)
                if answer is not NOT_ANSWERED:
                    return answer  # type: ignore[no-any-return]
            usual = used.usual
            if usual is not None:
                fast = used.fast
                answer = NOT_ANSWERED if fast is None else fast(args, kwargs)
                if answer is not NOT_ANSWERED:
                    return answer  # type: ignore[no-any-return]
                used.fast = None  # another one may fit better from now on
                leaves = usual.leaves(args, kwargs)
                if leaves is not None:
                    rest = platform, args, kwargs, usual.form, None
                    return self._answered(used, usual.key, leaves, rest)  # type: ignore[no-any-return]
        return self._look_closer(platform, args, kwargs)  # type: ignore[no-any-return]

    def _look_closer(self, platform: Platform, args: Any, kwargs: Any) -> Any:
        """Answer a call that may be of any kind."""
        if self._skip:
            self._skip -= 1
            return self._eagerly(args, kwargs, self._unwatched)
        for known in () if self.numbers.positions else reversed(self._known()):
            usual = known.usual
            taken = None if usual is None else usual.leaves(args, kwargs)
            if usual is not None and taken is not None:
                return self._again(known, usual.key, taken, (platform, args, kwargs, usual.form, None))
        found = self._seen_as(platform, args, kwargs)
        if found is None:
            return self._not_watched(platform, args, kwargs, 'their arguments can not be compared')
        key, leaves, form, numbers = found
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._new_kind(key, leaves)
            kind.contest = None if self._options.check else contest_of(platform)
            if numbers is None:
                kind.usual = usual_call(platform.cupy, args, kwargs, form, key, self._reaches)
            if self._passing(key, args, kwargs):
                return self._not_watched(platform, args, kwargs, 'nearly each call was of another kind')
        return self._again(kind, key, leaves, (platform, args, kwargs, form, numbers))

    def _again(self, kind: Kind, key: Any, leaves: list[Any], rest: _Rest) -> Any:
        """Answer a call of a kind that may not be the one that was used last."""
        self._unseen = 0
        if kind is not self._used and self._answering.earlier.call is None:
            with self._lock:
                if key in self._kinds:
                    self._kinds.move_to_end(key)
                    self._used = kind
        return self._answered(kind, key, leaves, rest)

    def _not_watched(self, platform: Platform, args: Any, kwargs: Any, why: str) -> Any:
        """Run a call of no kind eagerly; of many in a row, only some are looked at."""
        self._tell(None)
        self._unwatched = f'unwatched, because {why}'
        if contest_of(platform) is not None:
            self._skip = self._unseen = min(2 * self._unseen + 1, policy.UNSEEN)
        return self._eagerly(args, kwargs, self._unwatched)

    def _eagerly(self, args: Any, kwargs: Any, why: str) -> Any:
        """Run the function, with no look at what it does."""
        self._answering.earlier.finish()
        self._tally.ran(why)
        return TURNS.run(self.__wrapped__, args, kwargs)

    def _seen_as(self, platform: Platform, args: Any, kwargs: Any) -> tuple[Any, list[Any], Any, Any] | None:
        """The key of a call's kind, its arrays, the form of the rest, and numbers kept out of that; None if unknown."""
        cupy, array, met = platform.cupy, platform.cupy.ndarray, set[int]()
        numbers = self.numbers.apart(args, kwargs) if self.numbers.positions else None
        if numbers is not None:
            args, kwargs = numbers.marked(args, kwargs)
        try:
            leaves, form = take_apart(
                packed((args, kwargs)), lambda value: issubclass(type(value), array), opaque, met=met, nans=True
            )
        except TypeError as error:
            self._tally.say(Reason(f'its arguments can not be compared: {error}'))
            return None
        if any(type(leaf) is not array and is_more(leaf, array) for leaf in leaves):
            text = 'an argument is of a class derived from ndarray, with attributes or a maker of its own'
            self._tally.say(Reason(text))
            return None
        if self._reaches(met):
            self._tally.say(Reason('a container is an argument and is reached in another way, too'))
            return None
        leaves += [] if numbers is None else [room(cupy)]
        head = (form, *map(type, leaves))
        device = cupy.cuda.get_device_id(), devices_of(cupy, leaves)
        return (head, device, *[(a.shape, a.strides, a.dtype, a.dtype.char) for a in leaves]), leaves, form, numbers

    def _is_of(self, kind: Kind, args: Any, kwargs: Any) -> bool:
        """Whether a call is of a kind, as far as its arguments tell."""
        if kind.usual is not None:
            return kind.usual.leaves(args, kwargs) is not None
        assert self._platform is not None
        found = self._seen_as(self._platform, args, kwargs)
        return found is not None and self._kinds.get(found[0]) is kind

    def _answered(self, kind: Kind, key: Any, leaves: list[Any], rest: _Rest) -> Any:
        """Answer a call of this kind, or of one of the same ``key`` whose arrays share memory."""
        contest = kind.contest
        if contest is not None and contest.eager is not False and not kind.under_way:
            if contest.goes_on(1):
                self._tell(kind)
                return self._eagerly(rest[1], rest[2], FASTER)
            if kind.first is None and contest.is_due(kind.launches() > 0):
                kind.first = functools.partial(contest.answer, kind, self)
        platform, args, kwargs, form, numbers = rest
        fast = kind.fast or fast_path(kind, self._answering, platform, self._options)
        if fast is not None:
            kind.fast = fast
            answer = fast(args, kwargs, leaves, numbers)
            if answer is not NOT_ANSWERED:
                return answer
            kind.fast = None
        pointers = [leaf.data.ptr for leaf in leaves]
        alike = shared(pointers, kind.reach)
        if alike:
            key = (*key, alike)
            kind = self._kinds.get(key) or self._new_kind(key, leaves, alike)
        self._tell(kind)
        return self._answering.answer(Given(platform, kind, args, kwargs, leaves, form, numbers))

    def _reaches(self, met: set[int]) -> bool:
        """Whether a recording reaches one of these containers by another way than as an argument."""
        for kind in self._known():
            for variant in kind.variants:
                found = None if variant.state == 'eager' else variant.environment
                if found is not None and not found.reached.isdisjoint(met):
                    return True
        return False

    def _tell(self, kind: Kind | None) -> None:
        """Tell the user, once, that many calls ran eagerly, the last ones of this kind, if that is so."""
        tally, contest = self._tally, None if kind is None else kind.contest
        few, eager = policy.TOLD, contest is not None and bool(contest.eager)
        if self._told or few is None or not (eager or tally.in_vain >= few):
            return
        kinds = self._known()
        self._told = eager or tally.none_was_launched(kinds)
        if not self._told:
            return
        from capturekit.graphed.explanation import tell_of_calls, tell_of_times

        if contest is not None and eager and contest.launched:
            return tell_of_times(tally.name, self.__wrapped__, contest)
        tell_of_calls(tally, self.__wrapped__, kind, tally.launched(kinds))

    def _known(self) -> list[Kind]:
        """The kinds of calls, of which the one used last comes last."""
        with self._lock:  # a key's hash may run Python code, and with it another thread
            return [*self._kinds.values()]

    def _current(self) -> Platform:
        platform = current()
        if self._platform is None or self._platform.cupy is not platform.cupy:
            self.clear()
            self._platform, self._may_change = platform, platform.simulated
        return platform

    def _passing(self, key: Any, args: Any, kwargs: Any) -> bool:
        """Whether a new kind of call is one of many that do not come again: such calls are not watched."""
        with self._lock:
            self.numbers.seen(args, kwargs)
        words = self._newness.seen(key, args, kwargs, self.numbers.reason)
        if words:
            self._tally.say(Reason(words, Why.TOLD))
        return self._newness.warning != ''

    def _new_kind(self, key: Any, leaves: list[Any], alike: tuple[Any, ...] = ()) -> Kind:
        old = []
        with self._lock:
            kind = self._kinds.setdefault(key, Kind(leaves, alike, self._answering.earlier.lock))
            while len(self._kinds) > self._options.limit:
                old.append(self._kinds.popitem(last=False)[1])
                if old[-1] is self._used:
                    self._used = None
        came_back = sum(one.close() for one in old)  # waits for calls of these kinds, which may ask for the lock above
        with self._lock:
            self._newness.came_back += came_back
            self._tally.dropped += came_back
        return kind


TURNS.uncounted.add(Graphed.__call__.__code__)


@overload
def graphed(
    fn: Callable[P, R_co],
    *,
    strict: bool = False,
    checks: Checks = 'now',
    pieces: bool = True,
    limit: int = 16,
    pool: Any = None,
    pure: bool = False,
    check: bool | int = False,
    fuse: bool | Literal['fast'] = False,
    lanes: Literal['auto'] | None = None,
    memory_limit: int | None = None,
    memory: MemoryGroup | None = None,
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
    pure: bool = False,
    check: bool | int = False,
    fuse: bool | Literal['fast'] = False,
    lanes: Literal['auto'] | None = None,
    memory_limit: int | None = None,
    memory: MemoryGroup | None = None,
) -> Callable[[Callable[P, R_co]], Graphed[P, R_co]]: ...


def graphed(
    fn: Callable[..., Any] | None = None,
    *,
    strict: bool = False,
    checks: Checks = 'now',
    pieces: bool = True,
    limit: int = 16,
    pool: Any = None,
    pure: bool = False,
    check: bool | int = False,
    fuse: bool | Literal['fast'] = False,
    lanes: Literal['auto'] | None = None,
    memory_limit: int | None = None,
    memory: MemoryGroup | None = None,
) -> Any:
    """Make a function of CuPy code launch a recorded graph of itself: ``@ck.graphed``.

    The first call of a kind runs eagerly, the second is recorded, later ones are launched. Two calls are of one kind if
    their arrays agree in shape, dtype, strides and device and the other arguments are equal. Arguments may hold arrays
    anywhere in nested containers; the values of arguments that are not arrays are compared, objects of your classes by
    identity (the attributes that the function uses are watched). A function that changes an argument in place changes
    the caller's array; results are new arrays at each call. Host reads are checked at every launch: if one gives
    another value, that call runs eagerly. What can't be recorded runs eagerly, and so does what takes longer launched:
    a :class:`PerformanceWarning` says so once, with the cause. Each launch repeats the changes of Python state that the
    function makes: arrays, numbers and texts put in attributes, globals, variables of closures and items of containers;
    counters; lists that are appended to. A launch does not print or log: only eager runs do.

    Args:
        fn: the function; methods work.
        strict: True: a call whose recording fails raises UnsupportedCallError instead of running eagerly. A function
            that stays eager for what it reads or changes besides arrays raises nothing: see :meth:`explain`.
        checks: 'now' waits for the checks of host reads before returning (functions without host reads never wait);
            'later' returns at once, unless the host draws random numbers for the launch. ``fn.last`` is then None after
            an eager call; after a launch, ``fn.last.holds()`` says whether the result is right.
        pieces: whether calls that no capture can hold (svd, eigh ...) are made by the host between graphs.
        limit: how many kinds of calls, and variants of each, are kept; the least recently used are dropped first.
        pool: a ``cupy.cuda.MemoryPool`` that the graphs' memory is taken from, instead of one for each graph. A graph
            keeps what it takes until it is closed: one pool saves no memory, but limits and counts it.
        pure: True: you promise that nothing but the arguments counts (contents, shapes and dtypes of arrays, values of
            the others), as for ``jax.jit``. Nothing else is watched or compared, and calls are as fast as they can be.
            An array that is not an argument is used at the address that it had while recording, with whatever is there.
        check: True, or a number n: with every launch, or every n-th of a variant, the function also runs eagerly, on
            copies of the arrays among the arguments, and the results are compared. 0 and False: the environment
            variable CAPTUREKIT_CHECK gives n, when the function is decorated. Whole numbers have to be equal, floating
            point numbers may differ by rounding.
        fuse: whether runs of elementwise kernels in the graphs become one kernel each, as by :meth:`Graph.fuse`.
            Results are the same to the bit. The first launch of a variant is compared with the graph as it was
            recorded; where a byte differs that one is used, and the logger ``capturekit`` says so, as a warning.
            ``variant.fused`` is the report. 'fast': more is fused, and results may differ by rounding, as by
            ``Graph.fuse('fast')``.
        lanes: 'auto': the graphs get the edges that their data needs, and no others, as by :meth:`Graph.relane`, so
            that independent work can run at once. Temporaries are used again as late as the memory allows, and are
            packed into what the variants share once the order is known (``variant.relaned.packed``). The first launch
            of a variant is compared with the recorded order; where a byte differs that one is used, and the logger
            ``capturekit`` says so, as a warning. ``variant.relaned`` is the report, and :meth:`explain` has its
            outcome. Large arguments are copied like others. Variants that are launched in several parts (host reads
            that are checked, calls by the host, random numbers of the host) keep their order.
        memory_limit: with ``lanes='auto'``, bytes for the temporaries of each variant and for the workspaces of cuBLAS,
            as in :func:`capture`. Less memory lets less work run at once.
        memory: a :class:`MemoryGroup` of graphs that share memory. None: the function's own variants share theirs. It
            can't be combined with ``pool``, with which nothing is shared.

    Raises:
        TypeError, ValueError: an argument is not as described.
        CheckError: from a call that is checked: the launch gave another result than the eager run. Arrays are then as
            before the call, and later calls of that kind run eagerly.

    Threads: calls from several threads take turns. Streams: a call is launched on CuPy's current stream.
    """
    asked: dict[str, Any] = {
        'strict': strict, 'checks': checks, 'pieces': pieces, 'limit': limit, 'pool': pool, 'pure': pure,
        'check': check, 'fuse': fuse, 'lanes': lanes, 'memory_limit': memory_limit, 'memory': memory,
    }  # fmt: skip
    options = options_of(asked)
    if fn is None:
        return functools.partial(graphed, **asked)
    if not callable(fn) and not isinstance(fn, classmethod):
        raise TypeError(f'graphed takes a function, got {type(fn).__name__}')
    return Graphed(fn, options)

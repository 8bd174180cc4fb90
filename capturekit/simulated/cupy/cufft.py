"""``cupy.cuda.cufft``: plans, which CuPy keeps by lengths and dtypes. Some wait for the device while they are made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from capturekit.driver.fft_plans import lengths_of, waits_for_the_device
from capturekit.simulated.cupy.signatures import Call

from . import runtime, runtime_calls
from .launches import Layout

#: How many plans a thread keeps.
_KEPT = 16


class CuFFTError(RuntimeError):
    """An error of cuFFT."""

    def __init__(self, result: str) -> None:
        super().__init__(result)


class _Plan:
    """A plan: the lengths that it is for."""

    work_area = gpus = None

    def __init__(self, lengths: Any, fft_type: int, batch: int) -> None:
        self.lengths, self.fft_type, self.batch = lengths_of(lengths), int(fft_type), int(batch)
        if waits_for_the_device(self.lengths):
            try:
                runtime.deviceSynchronize()
            except runtime.CUDARuntimeError as error:
                raise CuFFTError('CUFFT_INTERNAL_ERROR') from error

    def fft(self, a: Any, out: Callable[[], Any], direction: int) -> Any:
        """Make the transform: ``out`` is what makes it here."""
        return out()


class Plan1d(_Plan):
    """A plan for transforms along one axis."""

    def __init__(
        self, nx: int, fft_type: int, batch: int, *, devices: Any = None, out: Any = None, prealloc_plan: int = 0
    ) -> None:
        super().__init__(nx, fft_type, batch)
        self.nx = nx

    fft = _Plan.fft


class PlanNd(_Plan):
    """A plan for transforms along several axes."""

    def __init__(
        self, shape: Any, inembed: Any, istride: int, idist: int, onembed: Any, ostride: int, odist: int,
        fft_type: int, batch: int, order: str, last_axis: int, last_size: Any, *, prealloc_plan: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(shape, fft_type, batch)
        self.shape, self.order = tuple(shape), order

    fft = _Plan.fft


class PlanCache:
    """The plans of a thread."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()

    def get_curr_size(self) -> int:
        return len(self._plans)

    def clear(self) -> None:
        self._plans.clear()

    def plan(self, key: Any, make: Callable[[], _Plan]) -> _Plan:
        """The plan for this key, which is made if it is not there."""
        if key not in self._plans:
            self._plans[key] = make()
        self._plans.move_to_end(key)
        while len(self._plans) > _KEPT:
            self._plans.popitem(last=False)
        return self._plans.get(key) or next(iter(self._plans.values()))


def get_plan_cache() -> PlanCache:
    thread = runtime_calls.state.thread
    if not hasattr(thread, 'plans'):
        thread.plans = PlanCache()
    found: PlanCache = thread.plans
    return found


def transforming(name: str, call: Call) -> Call:
    """The same function of ``cupy.fft``, with the plan that it needs."""
    if name.endswith(('freq', 'shift')):
        return call

    def with_plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(args[0], Layout) or not args[0].ndim:
            return call(args, kwargs)
        array: Any = args[0]
        lengths = _lengths(name, array.shape, kwargs)
        key = lengths, array.dtype.char, array.size, name.removeprefix('i')
        plan = get_plan_cache().plan(key, lambda: _planned(lengths))
        return plan.fft(array, lambda: call(args, kwargs), -1)

    return with_plan


def _planned(lengths: tuple[int, ...]) -> _Plan:
    of = runtime_calls.public['cupy.cuda.cufft']  # asked for by its name: the guard replaces the classes there
    several = len(lengths) > 1
    made: _Plan = (
        of.PlanNd(lengths, None, 1, 1, None, 1, 1, 0, 1, 'C', -1, None) if several else of.Plan1d(lengths[0], 0, 1)
    )
    return made


def _lengths(name: str, shape: tuple[int, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    several = name.endswith(('2', 'n'))
    asked = kwargs.get('s' if several else 'n')
    axes = kwargs.get('axes', (-2, -1) if name.endswith('2') else None) if several else (kwargs.get('axis', -1),)
    if axes is None:
        axes = range(len(shape)) if asked is None else range(-len(asked), 0)
    lengths = [shape[axis] for axis in axes]
    if asked is not None:
        lengths = list(asked) if several else [asked]
    elif name.startswith(('irfft', 'hfft')):
        lengths[-1] = 2 * (lengths[-1] - 1)
    return tuple(int(length) for length in lengths)

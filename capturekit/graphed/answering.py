"""How one call of a graphed function is answered, by the state of the variant that fits it.

====================  ====================================================  ==============================
state                 what it means                                         what the call does
====================  ====================================================  ==============================
new                   nothing fits the call                                 runs eagerly and is watched
rehearsed             one such call has been watched                        is recorded, and launched
recorded, pieces      there is a graph, or graphs with calls between them   is launched
eager                 it can not be recorded                                runs eagerly
overlapping           its arrays lie where the recording can't follow       runs eagerly
====================  ====================================================  ==============================
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from capturekit.graphed import kinds, policy
from capturekit.graphed.binding import lazy
from capturekit.graphed.call_turns import BUSY, TURNS
from capturekit.graphed.checks import Call, Comparison, Earlier
from capturekit.graphed.environment import Environment, unchanged_by_failures
from capturekit.graphed.kinds import Given, Kind
from capturekit.graphed.options import Options
from capturekit.graphed.outcomes import NOTHING, OtherOutcome
from capturekit.graphed.read_numbers import NumberRead
from capturekit.graphed.reasons import CHANGES, DIFFERENT, NONE, Reason, Why
from capturekit.graphed.recordable import only_arrays, values_of
from capturekit.graphed.run_end import given_back
from capturekit.graphed.tally import BESIDE, CHECKED, NESTED, WATCHED, Tally
from capturekit.graphed.value_changes import shape_of_change, snapshot
from capturekit.graphed.variant import Variant, of_what_ran, opaque
from capturekit.graphed.variant_recorder import VariantRecorder
from capturekit.graphed.watch import Watch, WatchedRun
from capturekit.guard import GUARD
from capturekit.launch.plan import Feed
from capturekit.model import errors
from capturekit.model.cleanup import Uncollected, undoing, uninterrupted
from capturekit.model.counters import LOG, count
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Rehearsal
from capturekit.model.pytree import held_in, take_apart
from capturekit.model.sparse import packed

#: Why nothing fits call after call.
_DIFFERENT = Reason(DIFFERENT, Why.READS)
#: Why a change of Python state is not repeated by launches: for good, and for now.
_LATER = Reason("with checks='later' launches repeat no changes of Python state", Why.LATER)
_MEANWHILE = Reason(
    'another thread was in a graphed function, too, and what each has changed can not be told apart', Why.THREADS
)
#: What a call that runs as it stands is answered with.
_PLAINLY: Any = object()


class _Try(NamedTuple):
    """One try to record: the result of its call, or the check that has failed, or why it can't be recorded.

    ``refused``: whether the guard has refused a call; ``drawn``: the random numbers that the host has drawn for it.
    """

    result: Any
    failed: errors.AssumptionError | None
    reason: Reason
    refused: bool
    drawn: list[Feed]


class Answering:
    """Answers the calls of a graphed function, and lets ``tally`` count them."""

    def __init__(self, fn: Callable[..., Any], options: Options, tally: Tally) -> None:
        self._fn = fn
        self._options = options
        self._recordings = 0
        self.tally = tally
        self.earlier = Earlier(options.later)

    def answer(self, given: Given) -> Any:
        """Answer a call."""
        kind = given.kind
        with TURNS.call():
            with kind.call() as is_first:
                answer = self._by_state(given) if is_first else _PLAINLY
            if answer is not _PLAINLY:
                return answer
            self.tally.ran(NESTED if not is_first else f'because {kind.reason_now()}')
            return self._fn(*given.args, **given.kwargs)

    def _by_state(self, given: Given) -> Any:
        self._make_ready(given)
        state, variant = self._chosen(given)
        method = _METHODS[state]
        if variant is not None and state != 'eager':
            given = given.beginning_with(variant.carried)
        return _PLAINLY if method is None else method(self, given, variant)

    def _make_ready(self, given: Given) -> None:
        """Finish earlier calls, drop variants whose graph was closed, and wait on the host if the function does."""
        kind = given.kind
        kind.other_ways.clear()
        self.earlier.finish()
        if any(v.graph is not None and v.graph.closed for v in kind.variants):  # by the user's code
            kind.keep(*[v for v in kind.variants if v.graph is None or not v.graph.closed])
        for stream_order in {v.stream_order for v in kind.variants if v.stream_order is not None}:
            stream_order.wait()

    def _chosen(self, given: Given) -> tuple[str, Variant | None]:
        """The state of a call, by the variant that fits it."""
        kind = given.kind
        for variant in kinds.fitting_now(kind, given.platform.cupy.cuda.get_current_stream().ptr):
            shared = kinds.shared_by(given, variant, [] if variant.carried is None else variant.carried.arrays())
            if variant.shares and not shared:
                continue
            if variant is not kind.variants[0]:
                kinds.to_front(kind, variant)
            variant.calls += 1
            if shared:
                kind.why_eager = shared
                self.tally.say(shared)
                return 'overlapping', None
            return variant.state, variant
        return 'new', None

    # -- launching --------------------------------------------------------------------------------------------

    def stopped(self, given: Given, variant: Variant, failed: Exception) -> Any:
        """Answer a call whose launch has raised. The kind's lock is held since before that launch."""
        with TURNS.call():
            given.kind.other_ways.clear()
            return self._launch(given, variant, failed)

    def _launch(self, given: Given, variant: Variant, failed: Exception | None = None) -> Any:
        kind, tried = given.kind, [variant]
        while True:
            assert variant.run is not None
            due, result = None, None
            if failed is None:
                if kinds.fill(given, variant, self.tally.name) is not None:
                    return self._again(given, [], 'because a number among their arguments does not fit the recording')
                due = Comparison(self._fn, variant, given) if self._is_compared(variant) else None
                try:
                    result = variant.run(given.leaves, due is not None or not self._options.later or variant.draws)
                except BaseException as error:  # the function must not run in here: it would see one being handled
                    failed = of_what_ran(error, variant.restore).with_traceback(None)
            if failed is None:
                drawn = variant.drawn() if due is not None else []  # while there is a graph
                if due is not None and not self._compare(given, variant, due, result):
                    return self._again(given, drawn, f'because {variant.reason}')
                self._launched(given, variant)
                return _finished(given, result)
            if not isinstance(failed, errors.AssumptionError):
                return self._raised(given, variant, failed)
            kind.other_ways += [variant] if isinstance(failed, OtherOutcome) else []
            other = kinds.fitting(kind, tried, failed, given.platform.cupy.cuda.get_current_stream().ptr)
            other_given = given if other is None else given.beginning_with(other.carried)
            if other is None or kinds.shared_by(given.beginning_with(None), other, other_given.held):
                return self._take_over(given, variant, failed)
            variant.restore(failed)
            kinds.to_front(kind, other)
            other.calls += 1
            given, variant = other_given, other
            if other.run is None:
                return self._record(given, other)
            tried.append(other)
            failed = None

    def _is_compared(self, variant: Variant) -> bool:
        """Whether the coming launch of a variant is compared with an eager run."""
        every = self._options.check
        return variant.untried > 0 or (every > 0 and (variant.launches + 1) % every == 0)

    def _raised(self, given: Given, variant: Variant, error: Exception) -> Any:
        """Run eagerly what has not begun, or was undone: a call between two parts has raised, and will do so again."""
        variant.undo(error)
        LOG.info('%s: %r; this call runs eagerly', self.tally.name, error)
        count('fallbacks')
        return self._again(given, variant.drawn(), 'because the launch or a call between its graphs raised')

    def _launched(self, given: Given, variant: Variant) -> None:
        given.kind.unanswered = 0
        if self._options.later and variant.plan is not None:
            call = Call(variant, variant.plan.launches, given.platform.cupy.cuda.get_current_stream())
            self.earlier.last.call = call
            self.earlier.call = call if variant.backups else None

    def _compare(self, given: Given, variant: Variant, due: Any, result: Any) -> bool:
        """Compare a launch with an eager run. False if the graph does not read numbers as the function does."""
        try:
            with BUSY.entered():
                due.compare(result)
            variant.untried = max(variant.untried - 1, 0)
            return True
        except errors.CheckError as error:
            given.kind.keep(variant)
            if variant.untried:
                if given.numbers is not None:
                    given.numbers.of.refuse(given.numbers.positions, error.rule)
                given.kind.reckons = False
                variant.give_up(Reason(error.rule))
                return False
            variant.give_up(Reason(f'its check failed: {error.rule}'))
            raise

    def _take_over(
        self, given: Given, variant: Variant, error: errors.AssumptionError, drawn: list[Feed] | None = None
    ) -> Any:
        """Run eagerly after an assumption failed; the caller sees no effect of the launch that was stopped."""
        kind = given.kind
        variant.restore(error)
        at = f' at {error.location}' if error.location else ''
        kind.why_missed = Reason(f'the host read{at} gives another value at nearly each call', Why.HOST_READ)
        count('fallbacks')
        LOG.info('%s: %s; this call runs eagerly', self.tally.name, str(error).replace('\n ', ''))
        drawn = drawn or variant.drawn()
        if self._may_reckon(given) and variant.may_reckon(error) and self._has_arguments(given, variant):
            variant.reckon(variant.reckonable.reads)
            return self._again(given.beginning_with(None), drawn, CHECKED)
        variant.missed += 1
        if variant.reckons_with_state and variant.missed >= max(policy.HOPE, variant.launches // policy.HOPE):
            kinds.stop_reckoning(kind)
        return self._rehearse(given.beginning_with(None), None, drawn)

    def _has_arguments(self, given: Given, variant: Variant) -> bool:
        """Whether the host can reckon with all number arguments of a call, beside other numbers."""
        known = given.numbers is None or bool(variant.arguments)
        return known or kinds.reckon_with_arguments(self._fn, given, variant, self._options)

    def _may_reckon(self, given: Given) -> bool:
        """Whether launches of this kind of call may reckon with numbers on the host."""
        known = given.numbers is None or kinds.given_numbers(self._fn, given) is not None
        return given.kind.reckons and known and not self._options.later

    # -- the eager run that is watched ------------------------------------------------------------------------

    def _rehearse(self, given: Given, _none: Variant | None, drawn: list[Feed] | None = None) -> Any:
        """Run eagerly, and find out what a launch would not repeat."""
        kind = given.kind
        if kind.variants and kind.variants[0].state == 'eager' and drawn is not None:
            return self._again(given, drawn, f'because {kind.variants[0].reason}')
        args = (given.args, given.kwargs)
        before = snapshot(() if self._options.pure else args, given.is_array, opaque)
        here = given.platform.cupy.cuda.get_current_stream().ptr
        fitted = [variant for variant in kinds.fitting_now(kind, here) if variant not in kind.other_ways]
        rehearsal = Rehearsal(pieces=self._options.pieces)
        uncollected = Uncollected()  # finalizers and the collector's callbacks would seem to be a part of the function
        self.tally.ran(WATCHED if drawn is None else CHECKED, kind.watched > 0)
        kind.watched += 1
        kind.unanswered += 1
        kind.why_missed = NONE if drawn is None else kind.why_missed
        kind.cost_more()
        with BUSY.entered():
            watch = self._watch(given, rehearsal, uncollected)
            with undoing() as undo:
                undo.push(uncollected.let_go)
                uncollected.__enter__()
                with GUARD.rehearsing(given.platform, rehearsal, drawn):
                    result = watch.run(given.args, given.kwargs) if watch else self._fn(*given.args, **given.kwargs)
        environment, reckoned, reason = None, NOTHING, lazy(self._fn)
        if watch is not None:
            kind.seconds += watch.seconds
            reckoned = watch.environment.run.reckoned
        if watch is not None and not self._options.pure:
            environment = watch.environment
            why = environment.run.not_repeated
            effects = (
                Reason(text, Why.CAPTURE if what == 'capture' else Why.OTHER) for what, text in rehearsal.effects
            )
            reason = environment.run.written or next(effects, reason)
            if reason.why in CHANGES and why:
                reason = Reason(f'{why}: {reason}', why.why)
            if reason.why is Why.THREADS:
                kind.why_eager = reason
                return result
            reason = reason or Reason(shape_of_change(before, args))
            reason = reason or Reason(given_back(environment, result, given.is_array), Why.RESULT)
            environment = None if environment.run.too_much else environment
        return self._keep(given, WatchedRun(environment, rehearsal, reason, result, reckoned), fitted)

    def _watch(self, given: Given, rehearsal: Rehearsal, uncollected: Uncollected) -> Watch | None:
        """What watches the run; None with ``pure=True``, the promise that nothing but the arguments counts.

        Where numbers among these go has to be known all the same.
        """
        if self._options.pure and given.numbers is None:
            return None
        begun = TURNS.mark()

        def not_repeated() -> Reason:
            if self._options.later:
                return _LATER
            return NONE if begun is not None and TURNS.mark() == begun else _MEANWHILE

        return Watch(
            self._fn, is_array=given.is_array, ignore=lambda value: not opaque(value),
            arguments=(given.args, given.kwargs), array=given.platform.cupy.ndarray, not_repeated=not_repeated,
            reads=rehearsal.reads, reckons=kinds.other_numbers(given.kind) if self._may_reckon(given) else None,
            numbers=kinds.given_numbers(self._fn, given), uncollected=uncollected,
        )  # fmt: skip

    def _keep(self, given: Given, run: WatchedRun, fitted: list[Variant]) -> Any:
        """Keep the branches that a run took as a variant, unless one of the fitting variants took the same."""
        kind, held = given.kind, None
        if not run.reason:
            try:
                held = take_apart(packed(run.whole), only_arrays(given.platform.cupy), opaque, name='the result')[1]
            except TypeError as error:
                run.reason = Reason(str(error), Why.RESULT)
        before, alike = kind.reason, kind.repeats(run.reason)
        if kind.unanswered > self._options.limit + policy.PATIENCE or alike >= policy.HOPE:
            reason = run.reason or kind.why_missed or _DIFFERENT
            stays = self._variant(given, None, run.rehearsal, reason)
            kind.keep(stays)
            stays.give_up(reason)
            self.tally.say(reason)
            return run.result
        if run.reason and not before:  # a cache that is filled at first use is full the next time
            return run.result
        same = next((v for v in fitted if not run.reason and kinds.same_way(v, run.rehearsal)), None)
        if same is not None:
            kinds.to_front(kind, same)
            return run.result
        variant = self._variant(given, run.environment, run.rehearsal, run.reason)
        variant.numbers = () if given.numbers is None else given.numbers.values
        variant.reckonable = run.reckoned
        if (kind.reckons_with_arguments or variant.reckons_with_state) and not variant.reason:
            kinds.reckon_with_arguments(self._fn, given, variant, self._options)
        if not variant.reason and run.environment is not None and self._reckons_at_once(given, variant):
            variant.reckon(variant.reckonable.reads)
        if variant.reason:
            self.tally.say(variant.reason)
        else:
            variant.held, variant.values = held_in(held), values_of(run.whole, given.platform.cupy, variant.known)
        kinds.to_front(kind, variant)
        kind.keep(*kind.variants[: self._options.limit])
        return run.result

    def _reckons_at_once(self, given: Given, variant: Variant) -> bool:
        """Whether a new variant reckons with what it reads: with state as well, or because others of its kind do."""
        others = any(other.reckoned for other in given.kind.variants)
        return variant.reckons_with_state or (
            others and self._may_reckon(given) and self._has_arguments(given, variant)
        )

    @staticmethod
    def _variant(given: Given, environment: Environment | None, rehearsal: Rehearsal, reason: Reason) -> Variant:
        """A variant that has answered one call."""
        variant = Variant(environment, rehearsal, reason)
        carried = None if environment is None else environment.run.carried
        if not reason and environment is not None:
            shared = kinds.shared_by(given, variant, [] if carried is None else carried.began)
            if shared:
                variant = Variant(environment, rehearsal, shared)
                variant.shares = True
        if carried is not None:
            carried.began.clear()
        variant.calls = 1
        variant.rehearsed_on = given.platform.cupy.cuda.get_current_stream().ptr
        return variant

    # -- recording --------------------------------------------------------------------------------------------

    def _record(self, given: Given, variant: Variant) -> Any:
        """Record if no other thread can see the arrays that recording puts into Python state; else run eagerly."""
        if given.state is None:
            return self._record_here(given, variant)
        with TURNS.alone() as alone:
            return self._record_here(given, variant) if alone else self._again(given, [], BESIDE)

    def _record_here(self, given: Given, variant: Variant) -> Any:
        """Record, and answer this call by the recording. A call that can't be recorded is eager from now on."""
        kinds.fill(given, variant, self.tally.name)
        checked_by = _checked_by(variant)
        while True:
            with uninterrupted():
                tried = self._try(given, variant, checked_by)
            if tried.failed is not None:
                given.kind.other_ways += [variant] if isinstance(tried.failed, OtherOutcome) else []
                return self._take_over(given, variant, tried.failed, tried.drawn)
            if not tried.reason:  # the first launches of some are compared with eager runs
                return self._launch(given, variant) if variant.untried else _finished(given, tried.result)
            other = self._other_way(given, variant, tried, checked_by)
            if variant.state == 'closed':
                return self._again(given, [], 'because the host can not compute its numbers at each launch')
            if not other:
                return self._not_recorded(given, variant, tried.reason, tried.drawn)
            checked_by = other

    def _try(self, given: Given, variant: Variant, checked_by: str) -> _Try:
        """Record once."""
        recorder = VariantRecorder(given.platform, self._fn, variant, checked_by, self._options)
        begun = time.perf_counter()
        result, failed, reason, refused = None, None, NONE, False
        try:
            with BUSY.entered(), unchanged_by_failures(variant.environment):
                result = recorder.record(given, self._options.pieces)
            self._recorded(given.kind, variant, begun)
        except errors.AssumptionError as error:
            failed = error.with_traceback(None)
        except CaptureError as error:
            reason, refused = Reason(error.in_one_line().rstrip('.'), Why.TOLD), True
        except Exception as error:
            why = Why.RESULT if recorder.returned and type(error) is TypeError else Why.OTHER
            reason = Reason(f'{type(error).__name__}: {error}', why)
        return _Try(result, failed, reason, refused, recorder.drawn)

    def _other_way(self, given: Given, variant: Variant, tried: _Try, checked_by: str) -> str:
        """Change the first thing that can be changed, for another try; what checks the host reads then, or '' for none.
        A variant that reckons with numbers of attributes is closed: these are compared again.
        """
        if tried.drawn:  # another try would draw other random numbers
            return ''
        if tried.refused and kinds.reckon_with_arguments(self._fn, given, variant, self._options):
            return _checked_by(variant)
        if variant.reckons_with_state:
            kinds.stop_reckoning(given.kind)
            return ''
        if kinds.assume_more(given.kind, variant):
            return _checked_by(variant)
        return 'host' if checked_by == 'device' and variant.checks and not tried.refused else ''

    def _not_recorded(self, given: Given, variant: Variant, reason: Reason, drawn: list[Feed]) -> Any:
        variant.give_up(reason)
        if given.numbers is not None:
            given.numbers.of.refuse(given.numbers.positions, reason)
            return self._again(given, drawn, f'because {reason}')
        if self._options.strict:
            raise errors.UnsupportedCallError(
                f'{self.tally.name} can not be recorded',
                rule=reason,
                remedy='Change that line, or leave strict=True out: the function then runs eagerly.',
            )
        self.tally.say(reason)
        count('fallbacks')
        return self._again(given, drawn, f'because {reason}')

    def _recorded(self, kind: Kind, variant: Variant, begun: float) -> None:
        """Count and log a recording that began then, after the first one of a function: that is logged as a capture."""
        kind.cost_more()
        seconds = time.perf_counter() - begun
        self._recordings += 1
        if self._recordings > 1:
            count('rerecordings', seconds)
            words = '%s: recorded anew (recording %d) in %.2f ms: %r'
            LOG.info(words, self.tally.name, self._recordings, seconds * 1e3, variant)
        self.tally.say_seams([seam for seam in variant.seams if not isinstance(seam, NumberRead)])

    def _again(self, given: Given, drawn: list[Feed], why: str) -> Any:
        """Run eagerly, with the random numbers that a failed launch or recording has already drawn."""
        self.tally.ran(why)
        with BUSY.entered(), GUARD.rehearsing(given.platform, Rehearsal(), drawn):
            return self._fn(*given.args, **given.kwargs)


def _finished(given: Given, result: Any) -> Any:
    """The result of a call, after making its changes of Python state."""
    if given.state is None:
        return result
    answer, after = result
    given.state.change(after)
    return answer


def _checked_by(variant: Variant) -> str:
    """What checks the host reads of a variant, in the first try to record it."""
    return 'device' if variant.checks <= policy.CHAIN and not variant.reckons else 'host'


#: The method for each state. None: the function is simply called, also by many threads at once.
_METHODS: dict[str, Callable[[Answering, Given, Any], Any] | None] = {
    'new': Answering._rehearse,
    'rehearsed': Answering._record,
    'recorded': Answering._launch,
    'pieces': Answering._launch,
    'eager': None,
    'overlapping': None,
}

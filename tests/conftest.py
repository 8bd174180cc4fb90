"""Every test leaves the world clean, and proves it; ``sim`` is the simulated CuPy, ``cp`` that and the real one.

``gpu`` tests need a GPU, and those that are ``serial`` as well have it for themselves. ``slow`` ones, of the
repository, its pages and the tools that test, and lists of cases tried once more in another way, say so themselves, and
run where they are asked for. Where all tests are asked for, more is left out: what Python's version does not touch
(``ALIKE``), what takes seconds (``LONG``), and most of long lists of cases (``FEW``). CI has ``-m 'slow or not slow'``,
on the newest Python, which runs all this, too, and more of such a list (``MANY``). Who names a folder or a file runs
what is in it, also what tests the tests (``NAMED``).

Hypothesis tries 25 examples, the same ones in every run, so that whoever runs the tests gets what CI got;
``HYPOTHESIS_PROFILE=search`` draws new ones, and 400.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from capturekit.graphed import faster_way, policy
from capturekit.graphed.watch import FAULT
from capturekit.guard import GUARD
from capturekit.model.cleanup import GARBAGE
from capturekit.model.counters import LOG
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests import turns
from tests.examples import QUICK
from tests.frozen import pass_over
from tests.late import Late, Spins, wanted

settings.register_profile('quick', max_examples=QUICK, derandomize=True)
settings.register_profile('search', max_examples=400)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'quick'))

# Which calls are launched would else depend on how fast the machine is: tests/graphed/test_faster_way.py tries it.
faster_way.STOPWATCH = lambda _platform: None
# Many tests want functions that run eagerly: tests/graphed/test_told_once.py has them tell so.
policy.TOLD = None

#: So many objects that tests have left are passed over as well.
GROWN = 20_000
HERE = Path(__file__).resolve().parent
#: What is tested in these folders does not depend on Python's version.
ALIKE = frozenset({
    'analysis', 'cli', 'driver', 'fusion', 'graph', 'lab', 'lanes', 'launch', 'ledger', 'packages',
    'recorder', 'remedies', 'render', 'simulated', 'soak',
})  # fmt: skip
#: What takes seconds: random programs, samples, orders of all kinds, threads that go on for long, moments of a call.
LONG = (
    'graphed/test_calls_in_calls.py', 'graphed/test_collector.py', 'graphed/test_checks_later.py::test_threads',
    'agreement/test_blocks.py', 'agreement/test_device_programs.py', 'agreement/test_python_programs.py',
    'agreement/test_thread_programs.py', 'guard/test_fewest_edges.py', 'guard/test_iterations.py', 'test_samples.py',
    'test_wild.py',
)  # fmt: skip
#: Of the cases of one test of a graphed function so many are run, spread over the list, and so many where slow ones are
#: asked for, too: each watches calls, which takes a tenth of a second. Not where each step of a call fails in its turn.
FEW, MANY = 3, 8
EACH_STEP = ('graphed/test_calls_in_calls.py', 'graphed/test_failed_launches.py')
#: Of the corpus the guide's programs are run, and where slow ones are asked for, those of all rules.
CORPUS = 'corpus/test_corpus.py::test_programs_are_right_and_launched_as_they_say['
#: Takes each mend of the package out, to see that random programs find what it mends: for who changes the programs.
#: And the survey of CuPy's functions, for which a GPU needs minutes.
NAMED = (
    'agreement/test_blocks.py::test_a_cause',
    'agreement/test_python_programs.py::test_a_cause',
    'gpu/coverage/',
)
#: Counts the tests that ran.
RAN = itertools.count(1)


class Faults(logging.Handler):
    """Keeps the faults of capturekit's own that a test has met, which cost its user nothing but a launch."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.met: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == FAULT:
            self.met.append(f'{FAULT}: {record.exc_info[1]!r}' if record.exc_info else FAULT)


FAULTS = Faults()
LOG.addHandler(FAULTS)


@pytest.fixture
def faults() -> list[str]:
    """The faults of capturekit's own so far, for a test that makes one: it has to clear the list."""
    return FAULTS.met


def cupy_modules() -> dict[str, ModuleType]:
    """What ``sys.modules`` holds of CuPy, real or simulated."""
    roots = ('cupy', 'cupyx', 'cupy_backends')
    found = [name for name in sys.modules if name.startswith('cupy') and name.partition('.')[0] in roots]
    return {name: sys.modules[name] for name in found}


def standin_installed() -> bool:
    return hasattr(sys.modules.get('cupy'), '__capturekit_simulated__')


def traces() -> list[str]:
    """What a capture or the guard has left behind in this process."""
    found = []
    if GUARD.installation.installed:
        found.append('wrappers are installed')
    if GUARD.lives:
        found.append(f'{len(GUARD.lives)} captures are open')
    if GUARD.state.placeholders:
        found.append('streams stand in for the legacy one')
    if GUARD.state.under_way or GUARD.state.waiting:
        found.append('calls of threads are under way or wait for captures')
    if GUARD.allocators.kept:
        found.append(f'allocators of {len(GUARD.allocators.kept)} threads are kept for later')
    if not gc.isenabled():
        found.append('garbage collection is off')
    if standin_installed():
        cupy: Any = sys.modules['cupy']
        if cupy.cuda.get_current_stream() != cupy.cuda.Stream.null:
            found.append(f'{cupy.cuda.get_current_stream()} is current')
        found += cupy.__capturekit_simulated__.deaths
        if cupy.cuda.memory._get_thread_local_allocator() is not None:
            found.append('this thread has an allocator of its own')
    return found


def asks_for_all(config: pytest.Config) -> bool:
    return {(config.invocation_params.dir / one).resolve() for one in config.args} == {HERE}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave folders alone of which nothing would run: to collect a test takes as long as many of them do."""
    if collection_path.parent != HERE or not collection_path.is_dir() or not asks_for_all(config):
        return None
    if collection_path.name == 'gpu':
        return importlib.util.find_spec('cupy') is None or None
    return (config.option.markexpr == 'not slow' and collection_path.name in ALIKE) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where all tests are asked for, more of them are slow, and some are not run."""
    if not asks_for_all(config):
        return
    lists: dict[str, list[pytest.Item]] = {}
    left_out: set[pytest.Item] = set()
    for item in items:
        name = item.nodeid.partition('tests/')[2]
        of_topics = name.startswith(CORPUS) and not name.startswith(f'{CORPUS}guide: ')
        if name.partition('/')[0] in ALIKE or name.startswith(LONG) or of_topics:
            item.add_marker(pytest.mark.slow)
        if name.startswith(NAMED):
            left_out.add(item)
        if name.startswith('graphed/') and not name.startswith(EACH_STEP) and not item.get_closest_marker('gpu'):
            lists.setdefault(name.partition('[')[0], []).append(item)
    for cases in lists.values():
        many = spread(cases, MANY)
        for item in {*cases}.difference(spread(many, FEW)):
            item.add_marker(pytest.mark.slow)
        left_out |= {*cases}.difference(many)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def spread(cases: list[Any], count: int) -> list[Any]:
    """So many of a list, at equal distances."""
    return [cases[number * len(cases) // count] for number in range(count)] if len(cases) > count else cases


def pytest_collection_finish() -> None:
    """Let the collector pass over what was imported so far, and come seldom by itself: some tests call it afterwards.

    A graphed function that is watched looks through all objects for functions. Not where CuPy has a GPU: memory that
    waits for the collector is a GPU's.
    """
    pass_over()
    if gc.get_freeze_count():
        gc.set_threshold(4_000, 50, 50)


def sweep() -> None:
    """Take away what a failed test has left, so that the next ones are judged by their own deeds."""
    GUARD.lives.clear()
    GUARD.state.placeholders.clear()
    GUARD.allocators.kept.clear()
    GUARD.state.under_way.clear()
    GUARD.state.waiting = 0
    while GUARD.installation.installed:
        GUARD.uninstall()
    gc.enable()


@pytest.fixture(autouse=True)
def clean_world(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is left behind: not before the test, and not after it."""
    assert traces() == []
    assert not standin_installed()
    yield
    left = [*traces(), *FAULTS.met]
    FAULTS.met.clear()
    sweep()
    if next(RAN) % (10 if 'graphed' in request.node.path.parts else 40) == 0 and gc.get_freeze_count():
        gc.collect()
        if len(gc.get_objects()) > GROWN:
            gc.freeze()
    while standin_installed():
        left.append('the simulated CuPy is installed')
        uninstall()
    assert left == []


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The simulated CuPy on a device of its own, seed 0 or the test's parameter; afterwards what was there before."""
    before = cupy_modules()
    install(SimulatedDevice(getattr(request, 'param', 0)))
    try:
        yield sys.modules['cupy']
        left = traces()
    finally:
        uninstall()
    after = cupy_modules()
    assert left == []
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


@pytest.fixture(params=['simulated', pytest.param('gpu', marks=pytest.mark.gpu)])
def cp(request: pytest.FixtureRequest) -> Any:
    """The simulated CuPy, and, where there is a GPU, the real one."""
    if request.param == 'simulated':
        return request.getfixturevalue('sim')
    pytest.importorskip('cuda.bindings')
    return pytest.importorskip('cupy')


@pytest.fixture
def no_garbage(request: pytest.FixtureRequest) -> None:
    """For captures that nobody guards: what an earlier test left on a GPU is freed before, not in their midst."""
    if request.node.get_closest_marker('gpu'):
        gc.collect()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """As around calls of graphed functions: the collector's callbacks, Hypothesis's too, are not watched."""
    GARBAGE.hold()
    yield
    GARBAGE.release()


@pytest.fixture(scope='session', autouse=True)
def late_gpu() -> Iterator[Late | None]:
    """Spins before the work of each stream, where ``CAPTUREKIT_LATE`` asks for them and there is a GPU."""
    seed = wanted()
    if seed is None or why_no_gpu():
        yield None
        return
    cupy = pytest.importorskip('cupy')
    late = Late(Spins(cupy, seed))
    late.install(cupy)
    yield late
    late.uninstall()


@functools.cache
def why_no_gpu() -> str | None:
    """None where CuPy finds a GPU, else the reason; asked in a process of its own, which leaves none of it here."""
    ask = 'import cupy, cuda.bindings.runtime; assert cupy.cuda.runtime.getDeviceCount() > 0, "no device"'
    asked = subprocess.run([sys.executable, '-c', ask], capture_output=True, text=True, timeout=120)
    return None if asked.returncode == 0 else asked.stderr.strip().rpartition('\n')[2]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker('gpu') and (reason := why_no_gpu()):
        pytest.skip(f'needs a GPU: {reason}')
    if item.get_closest_marker('gpu') and item.get_closest_marker('serial') and wanted() is not None:
        pytest.skip('takes times, or watches the whole device: spins of CAPTUREKIT_LATE would be taken for its own')


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let a GPU test have its turn. The time that it waits is none that the limit of a test counts."""
    if item.get_closest_marker('gpu') is None or why_no_gpu():
        return (yield)
    with turns.turn(item.get_closest_marker('serial') is not None, turns.folder()):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let processes of pytest-xdist take tests that stand together, so that what a file's tests share is made once."""
    if getattr(config.option, 'numprocesses', None) and config.option.dist == 'no':
        config.option.dist = 'worksteal'

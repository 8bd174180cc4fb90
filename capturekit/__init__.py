"""capturekit records CuPy work into CUDA graphs, across streams, and refuses what would break the capture.

``with ck.capture() as cap: ...`` records a block; ``cap.graph.launch()`` runs it. See README.md.
"""

# This comes first: an old Python has to get this message before it reads code that it can't parse.
from capturekit.model import versions as versions

# isort: split
from typing import TYPE_CHECKING, Any

from capturekit import render
from capturekit._version import __version__ as __version__
from capturekit.analysis.concurrency import Concurrency
from capturekit.analysis.graph_diff import Update
from capturekit.analysis.verify import Verification
from capturekit.cli.by_environment import install_if_wanted as _install_if_wanted
from capturekit.extensions import hand_in as _hand_in
from capturekit.graph.executable import Graph
from capturekit.graphed.decorator import Graphed, graphed
from capturekit.launch.memory_group import MemoryGroup
from capturekit.model.counters import Statistics, statistics
from capturekit.model.errors import (
    AssumptionError,
    CaptureError,
    CheckError,
    ClosedError,
    CudaCallError,
    EscapedWorkError,
    FreedMemoryError,
    GeneratorError,
    HostReadError,
    InvalidatedError,
    IsolationError,
    LegacyStreamError,
    MergeError,
    PerformanceWarning,
    RaceError,
    SynchronizationError,
    UnjoinedError,
    UnmatchedError,
    UnsupportedCallError,
    UpdateError,
    WrongThreadError,
)
from capturekit.model.host_reads import Rehearsal
from capturekit.model.recording import Recording, Timeline
from capturekit.recorder.capture import Capture, capture, rehearse
from capturekit.recorder.declarations import reads, writes
from capturekit.recorder.embed import look
from capturekit.recorder.forks import fork, parallel
from capturekit.recorder.options import CaptureOptions

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lab.experiment import experiment
    from capturekit.lab.experiment_report import Experiment
    from capturekit.lab.lint import Finding, Report, lint
    from capturekit.lanes.report import Relaned

__all__ = [
    'AssumptionError',
    'Capture',
    'CaptureError',
    'CaptureOptions',
    'CheckError',
    'ClosedError',
    'Concurrency',
    'CudaCallError',
    'EscapedWorkError',
    'Experiment',
    'Finding',
    'FreedMemoryError',
    'Fused',
    'GeneratorError',
    'Graph',
    'Graphed',
    'HostReadError',
    'InvalidatedError',
    'IsolationError',
    'LegacyStreamError',
    'MemoryGroup',
    'MergeError',
    'PerformanceWarning',
    'RaceError',
    'Recording',
    'Rehearsal',
    'Relaned',
    'Report',
    'Statistics',
    'SynchronizationError',
    'Timeline',
    'UnjoinedError',
    'UnmatchedError',
    'UnsupportedCallError',
    'Update',
    'UpdateError',
    'Verification',
    'WrongThreadError',
    'capture',
    'experiment',
    'fork',
    'graphed',
    'lint',
    'look',
    'parallel',
    'reads',
    'rehearse',
    'render',
    'statistics',
    'writes',
]

#: Where the names are that few need: they are imported when they are first used.
_LATER = {
    'Experiment': 'capturekit.lab.experiment_report',
    'Finding': 'capturekit.lab.lint',
    'Fused': 'capturekit.fusion.report',
    'Relaned': 'capturekit.lanes.report',
    'Report': 'capturekit.lab.lint',
    'experiment': 'capturekit.lab.experiment',
    'lint': 'capturekit.lab.lint',
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, '__version__']


for _name in __all__:
    if _name.endswith(('Error', 'Warning')):
        globals()[_name].__module__ = __name__  # as tracebacks show it, and code can catch it


_hand_in()
_install_if_wanted()

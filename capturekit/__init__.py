"""capturekit records CuPy work into CUDA graphs, across streams, and refuses what would break the capture.

``with ck.capture() as cap: ...`` records a block; ``cap.graph.launch()`` runs it. See README.md.
"""

# first of all: an old Python is told so before it meets what it can't read
from capturekit import versions as versions

# isort: split
from capturekit import render
from capturekit.assigning import parallel
from capturekit.cache import Graphed, graphed
from capturekit.composing import look
from capturekit.concurrency import Concurrency
from capturekit.errors import (
    AssumptionError,
    CaptureError,
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
    RaceError,
    SynchronizationError,
    UnjoinedError,
    UnmatchedError,
    UnsupportedCallError,
    UpdateError,
    WrongThreadError,
)
from capturekit.figures import Statistics, statistics
from capturekit.forks import fork
from capturekit.graph import Graph
from capturekit.linting import Finding, Report, lint
from capturekit.recorder import Capture, capture, rehearse
from capturekit.recording import Recording, Timeline
from capturekit.rehearsal import Rehearsal
from capturekit.trying import experiment
from capturekit.updating import Update
from capturekit.verifying import Verification
from capturekit.ways import Experiment

__version__ = '0.1.0'

__all__ = [
    'AssumptionError',
    'Capture',
    'CaptureError',
    'ClosedError',
    'Concurrency',
    'CudaCallError',
    'EscapedWorkError',
    'Experiment',
    'Finding',
    'FreedMemoryError',
    'GeneratorError',
    'Graph',
    'Graphed',
    'HostReadError',
    'InvalidatedError',
    'IsolationError',
    'LegacyStreamError',
    'MergeError',
    'RaceError',
    'Recording',
    'Rehearsal',
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
    'rehearse',
    'render',
    'statistics',
]

"""The places where Python code enters CuPy, as a table.

Each row names a holder (a module or class by its dotted name), an attribute, and a verb: a component of the guard and
its method, ``component.method``. It is called with the original and the call's arguments, and if its first parameter is
``entry``, with the row before them. :mod:`capturekit.guard.patching` puts wrappers in these places, and removes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from capturekit.driver.library_accesses import CUB, FUNCTIONS
from capturekit.driver.library_streams import SILENT
from capturekit.model.rules import Operation

_O = Operation

_STREAM = 'cupy.cuda.stream._BaseStream'
_EVENT = 'cupy.cuda.stream.Event'
_POINTER = 'cupy.cuda.memory.MemoryPointer'
_BACK = 'handed back'
#: ``from cupy.cuda import runtime`` gives the backend's module, ``import cupy.cuda.runtime`` a copy of its
#: names, which is only guarded if the program has imported it.
RUNTIME = 'cupy.cuda.runtime'
_BACKEND = 'cupy_backends.cuda.api.runtime'


@dataclass(frozen=True)
class Entry:
    """One entry point: a function or a method, or by its ``kind`` a property, an attribute (of instances), or a maker
    (a class's ``__new__``); ``code`` is a Python function whose code is replaced, so that it is wrapped under every
    name that it was imported by; the verb of an ``always`` function is called also where the guard itself is calling.

    ``optional``: a build of CuPy may lack it. ``also``: a second holder of the same function, if that is a different
    object. ``loaded``: a module that capturekit does not import itself; where the program has not, the entry is left
    out. ``operation``: what such a call is judged as; ``at``: the position of the stream or event that it is about.
    ``said``: the call in messages, where that is not the holder's and the attribute's name.

    ``answer``: what becomes of the call where CUDA refuses it and nobody guards. CuPy raises CUDA's 'code', or has
    'handed back' the code as a number (``stream.done`` is False then; or CUDA only tells at the end of the capture).
    'cupy' refuses by itself, if the stream is being captured: its words "is capturing" are what code of today looks
    for. 'library': a library raises NotImplementedError."""

    holder: str
    name: str
    verb: str
    kind: str = ''
    optional: bool = False
    also: str = ''
    loaded: str = ''
    operation: Operation = Operation.WORK
    at: int = 0
    said: str = ''
    answer: str = 'code'

    @cached_property
    def call(self) -> str:
        """The call in messages."""
        if self.said or self.kind == 'code':
            return self.said or str(self)
        holder = self.holder if self.holder == RUNTIME else self.holder.rpartition('.')[2].removeprefix('_Base')
        return f'{holder}.{self.name}' + ('' if self.kind == 'property' else '()')

    def __str__(self) -> str:
        return f'{self.holder}.{self.name}'


#: What stands for the row if a method of capturekit refuses: CuPy has no answer to that.
OWN = Entry('capturekit', 'a method', '', answer='none')


def _each(holder: str, verb: str, *names: str, **fields: Any) -> tuple[Entry, ...]:
    """Rows of one holder and one verb."""
    return tuple(Entry(holder, name, verb, **fields) for name in names)


NCCL = 'cupy_backends.cuda.libs.nccl'
_runtime = partial(_each, RUNTIME, also=_BACKEND)
_nccl = partial(_each, f'{NCCL}.NcclCommunicator', optional=True, loaded=NCCL)
#: The functions of CuPy that no capture can hold, by the names under which they are called; see
#: :mod:`capturekit.guard.libraries`.
SEAMS = (
    *(f'cupy.linalg.{name}' for name in 'svd eigh eigvalsh eig eigvals lstsq pinv cond matrix_rank'.split()),
    *(f'cupy.{name}' for name in ('polyfit', 'roots')),
    *(f'cupyx.scipy.sparse.linalg.{name}' for name in ('spsolve', 'spsolve_triangular', 'lsqr')),
    'cupyx._texture.affine_transformation',
    *(
        f'cupyx.cusparse.{name}'
        for name in 'csrgeam csrgeam2 spgeam csrgemm csrgemm2 spgemm csrsort cscsort coosort csr2csc csr2cscEx2 '
        'csc2csr csc2csrEx2 dense2csc dense2csr csr2csr_compress csrsm2 csrilu02 denseToSparse spsm'.split()
    ),
)

ENTRIES: tuple[Entry, ...] = (
    Entry(_STREAM, 'synchronize', 'waits.stream_wait', operation=_O.STREAM_SYNCHRONIZE),
    Entry(_STREAM, 'done', 'waits.stream_wait', 'property', operation=_O.STREAM_QUERY, answer=_BACK),
    Entry(_STREAM, 'record', 'events.stream_record'),
    Entry(_STREAM, 'wait_event', 'events.wait_event'),
    Entry(_STREAM, 'use', 'streams.stream_use'),
    Entry(_STREAM, '__enter__', 'streams.stream_use', said='with stream:'),
    Entry(_STREAM, '__exit__', 'streams.stream_exit'),
    Entry(_STREAM, 'begin_capture', 'manual.begin', operation=_O.BEGIN_CAPTURE),
    Entry(_STREAM, 'end_capture', 'manual.end', operation=_O.END_CAPTURE),
    Entry(_STREAM, 'is_capturing', 'streams.is_capturing'),
    Entry(_STREAM, 'is_non_blocking', 'streams.flags', 'property', operation=_O.STREAM_GET_FLAGS),
    Entry(_STREAM, 'priority', 'streams.priority', 'property', operation=_O.STREAM_GET_PRIORITY),
    Entry(_STREAM, 'add_callback', 'work.stream_call', operation=_O.STREAM_ADD_CALLBACK),
    Entry(_STREAM, 'launch_host_func', 'work.launch_host_func', operation=_O.LAUNCH_HOST_FUNC),
    Entry(_STREAM, '__eq__', 'callers.stream_eq'),
    Entry(_STREAM, '__hash__', 'streams.handle_read'),
    Entry('cupy.cuda', 'get_current_stream', 'callers.current_stream'),
    Entry('cupy.cuda.stream', 'get_current_stream', 'callers.current_stream'),
    Entry(_STREAM, 'ptr', 'streams.handed_out', 'attribute'),
    Entry('cupy.cuda.stream.Stream', '__init__', 'callers.stream_made'),
    Entry('cupy.cuda.stream.Stream', '__del__', 'streams.handle_read'),
    Entry(_EVENT, '__init__', 'events.event_made'),
    Entry(_EVENT, 'record', 'events.event_record'),
    Entry(_EVENT, 'synchronize', 'waits.event_wait', operation=_O.EVENT_SYNCHRONIZE),
    Entry(_EVENT, 'done', 'waits.event_wait', 'property', operation=_O.EVENT_QUERY, answer=_BACK),
    Entry('cupy.cuda', 'get_elapsed_time', 'waits.elapsed_time', said='get_elapsed_time()'),
    Entry('cupy.cuda.stream', 'get_elapsed_time', 'waits.elapsed_time', said='get_elapsed_time()'),
    Entry('cupy.cuda.device.Device', 'synchronize', 'waits.device_wait'),
    *_each('cupy.cuda.device.Device', 'streams.moved', '__enter__', '__exit__', 'use'),
    # a wait for the device that CuPy makes from C code, which no other entry point sees
    Entry('cupy._core.syncdetect', '_declare_synchronize', 'waits.device_wait', said='Device.synchronize()'),
    Entry('cupy.ndarray', '__new__', 'uploads.array_new', 'maker'),
    Entry('cupy.ndarray', 'get', 'arrays.array_get', answer='cupy'),
    Entry('cupy.ndarray', 'set', 'arrays.array_set', answer='cupy'),
    Entry('cupy.ndarray', '__getitem__', 'arrays.array_getitem'),
    Entry('cupy.ndarray', '__setitem__', 'arrays.array_setitem'),
    Entry('cupy.ndarray', '__dlpack__', 'arrays.array_dlpack'),
    Entry('cupy._core', 'array', 'arrays.array_from', answer='cupy'),
    Entry('cupy.cuda.memory', 'UnownedMemory', 'arrays.memory_of_another'),
    Entry('cupy._util', 'CUDA_ARRAY_INTERFACE_SYNC', 'arrays.exchange_waits'),
    Entry('cupy._core', 'concatenate_method', 'arrays.arrays_joined', answer='cupy'),
    Entry('cupy.cuda.graph.Graph', 'launch', 'work.graph_call', operation=_O.GRAPH_LAUNCH),
    Entry('cupy.cuda.graph.Graph', 'upload', 'work.graph_call', operation=_O.GRAPH_UPLOAD),
    Entry('cupy.cuda.memory.MemoryPool', 'free_all_blocks', 'allocators.pool_free'),
    Entry('cupy.cuda.memory.MemoryAsyncPool', 'free_all_blocks', 'allocators.pool_free', optional=True),
    Entry('cupy.cuda.pinned_memory.PinnedMemoryPool', 'free_all_blocks', 'allocators.pool_free'),
    *_each(
        _POINTER, 'work.pointer_copy', 'copy_from_device_async', 'copy_from_host_async', 'copy_to_host_async',
        'copy_from_async', 'memset_async', answer='cupy',
    ),
    *_each(
        _POINTER, 'work.legacy_work', 'copy_from_device', 'copy_from_host', 'copy_to_host', 'copy_from', 'memset',
        answer='cupy or code',
    ),
    Entry('cupy.cuda.memory', '_set_thread_local_allocator', 'allocators.allocator_set'),
    Entry('cupy.cuda', 'set_allocator', 'allocators.allocator_chosen'),
    Entry('cupy.cuda.memory.MemoryPool', 'malloc', 'allocators.pool_malloc'),
    Entry('cupy.cuda', 'alloc_pinned_memory', 'verdicts.unsafe'),
    Entry('cupy.cuda.pinned_memory', 'alloc_pinned_memory', 'verdicts.unsafe'),
    *_each('cupy.cuda.profiler', 'verdicts.unsafe', 'start', 'stop'),
    *_runtime('waits.stream_wait', 'streamSynchronize', operation=_O.STREAM_SYNCHRONIZE),
    *_runtime('waits.stream_wait', 'streamQuery', operation=_O.STREAM_QUERY, answer=_BACK),
    *_runtime('events.runtime_wait_event', 'streamWaitEvent'),
    *_runtime('manual.begin', 'streamBeginCapture', operation=_O.BEGIN_CAPTURE),
    *_runtime('manual.end', 'streamEndCapture', operation=_O.END_CAPTURE),
    *_runtime('streams.flags', 'streamGetFlags', operation=_O.STREAM_GET_FLAGS),
    *_runtime('streams.priority', 'streamGetPriority', operation=_O.STREAM_GET_PRIORITY),
    *_runtime('work.stream_call', 'streamAddCallback', operation=_O.STREAM_ADD_CALLBACK),
    *_runtime('streams.destroyed', 'streamDestroy', answer=_BACK),
    *_runtime('events.event_record', 'eventRecord'),
    *_runtime('waits.event_wait', 'eventQuery', operation=_O.EVENT_QUERY, answer=_BACK),
    *_runtime('waits.event_wait', 'eventSynchronize', operation=_O.EVENT_SYNCHRONIZE),
    *_runtime('waits.elapsed_time', 'eventElapsedTime'),
    *_runtime('events.handle_made', 'eventCreate', 'eventCreateWithFlags'),
    *_runtime('waits.device_wait', 'deviceSynchronize'),
    *_runtime('streams.moved', 'setDevice'),
    *_runtime('work.graph_call', 'graphLaunch', operation=_O.GRAPH_LAUNCH),
    *_runtime('work.graph_call', 'graphUpload', operation=_O.GRAPH_UPLOAD),
    *_runtime(
        'work.copy', 'memcpyAsync', 'memsetAsync', 'memcpy2DAsync', 'memcpy3DAsync', 'memcpy2DFromArrayAsync',
        'memcpy2DToArrayAsync', at=-1,
    ),
    *_runtime('work.host_func', 'launchHostFunc', operation=_O.LAUNCH_HOST_FUNC),
    *_runtime('work.captured_call', 'memcpyPeerAsync', operation=_O.PEER_COPY, at=-1),
    *_runtime('work.captured_call', 'memPrefetchAsync', operation=_O.PREFETCH, at=-1),
    *_runtime(
        'work.legacy_work', 'memcpy', 'memset', 'memcpy2D', 'memcpy3D', 'memcpyPeer', 'memcpy2DFromArray',
        'memcpy2DToArray',
    ),
    *_runtime(
        'verdicts.unsafe', 'malloc', 'mallocManaged', 'mallocArray', 'malloc3DArray', 'hostAlloc', 'hostRegister',
        'hostUnregister', 'free', 'freeHost', 'freeArray', 'graphInstantiate', 'graphExecDestroy', 'profilerStart',
        'profilerStop', 'deviceSetLimit', 'deviceSetMemPool', 'memPoolTrimTo', 'memPoolCreate', 'memPoolDestroy',
        'memPoolGetAttribute', 'memPoolSetAttribute', 'memAdvise',
    ),
    *_each(
        'cupy_backends.cuda.libs.curand', 'draws.curand_draw', 'generate', 'generateLongLong', 'generateUniform',
        'generateUniformDouble', 'generateNormal', 'generateNormalDouble', 'generateLogNormal',
        'generateLogNormalDouble', 'generatePoisson', optional=True,
    ),
    Entry('cupy.random._generator.RandomState', '_get_seed', 'draws.random_seed_given'),
    Entry('cupy.random._generator.RandomState', 'choice', 'draws.choice_drawn'),
    Entry('cupy.random._generator.RandomState', 'seed', 'draws.random_seeded'),
    Entry('cupy.random._bit_generator.BitGenerator', '__init__', 'draws.bit_generator_made', optional=True),
    Entry('cupy.random._bit_generator._cuRANDGenerator', 'state', 'draws.generator_state', optional=True),
    *(
        Entry(holder, name, 'calls.seam', 'code', True, answer='library')
        for holder, _dot, name in (seam.rpartition('.') for seam in SEAMS)
    ),
    *_each('cupy.cuda.cufft', 'calls.plan_made', 'Plan1d', 'PlanNd', optional=True),
    Entry('cupy.cuda.cufft.Plan1d', 'fft', 'calls.plan_used', optional=True),
    Entry('cupy.cuda.cufft.PlanNd', 'fft', 'calls.plan_used', optional=True),
    *_each(
        'cupy_backends.cuda.libs.cublas', 'calls.known_cublas',
        *(name for name in FUNCTIONS if name not in SILENT['cublas']), optional=True,
    ),
    *_each('cupy.cuda.cub', 'calls.known_cub', *CUB, optional=True),
    *_each('cupy.cuda.texture.CUDAarray', 'work.texture_copy', 'copy_from', 'copy_to', optional=True),
    Entry('cupy.cuda.device', 'get_cusolver_handle', 'calls.allocates_inside'),
    Entry('cupy.cublas', 'batched_gesv', 'calls.allocates_inside', 'code', True),
    Entry('cupy.linalg._solve', '_batched_inv', 'calls.allocates_inside', 'code', True),
    Entry('cupy.linalg._decomposition', '_lu_factor', 'calls.allocates_inside', 'code', True),
    *_nccl(
        'collectives.collective', 'allReduce', 'reduce', 'broadcast', 'bcast', 'reduceScatter', 'allGather', 'send',
        'recv',
    ),
    *_nccl('collectives.communicator', 'initAll', 'commSplit', 'destroy', 'abort'),
    Entry(NCCL, 'groupStart', 'collectives.group_started', optional=True, also='cupy.cuda.nccl', loaded=NCCL),
    Entry(NCCL, 'groupEnd', 'collectives.group_ended', optional=True, also='cupy.cuda.nccl', loaded=NCCL),
    Entry('cupy', 'copyto', 'streams.copied_to', 'code'),
    Entry('logging.Handler', 'handleError', 'swallowed.handler_failed'),
    Entry('warnings', '_showwarnmsg', 'effects.warning_shown', 'always', optional=True),
    Entry('io.TextIOWrapper', 'write', 'output.written'),
    Entry('threading.Thread', 'start', 'effects.thread_fed'),
    Entry('threading.Condition', 'notify', 'effects.thread_fed'),
    Entry('queue.SimpleQueue', 'put', 'effects.thread_fed'),
    Entry('concurrent.futures.thread.ThreadPoolExecutor', 'submit', 'effects.thread_fed'),
    Entry('cupyx._ufunc_config', 'get_config_linalg', 'effects.linalg_config', 'code', optional=True),
    *_runtime('work.malloc_async', 'mallocAsync', 'mallocFromPoolAsync', operation=_O.MALLOC_ASYNC, at=-1),
    *_runtime('work.free_async', 'freeAsync', at=-1),
)  # fmt: skip

"""The places where Python code enters CuPy, as a table.

Each row names a holder (a module or class by its dotted name), an attribute, and a verb: a component of the guard and
its method, ``component.method``, which is called with the original and the call's arguments.
:mod:`capturekit.guard.patching` puts wrappers in these places, and removes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from capturekit.driver.library_accesses import CUB, FUNCTIONS
from capturekit.driver.library_streams import SILENT

_STREAM = 'cupy.cuda.stream._BaseStream'
_EVENT = 'cupy.cuda.stream.Event'
#: ``from cupy.cuda import runtime`` gives the backend's module, ``import cupy.cuda.runtime`` a copy of its
#: names, which is only guarded if the program has imported it.
RUNTIME = 'cupy.cuda.runtime'
_BACKEND = 'cupy_backends.cuda.api.runtime'
#: Verbs that are shared by many entries get the call's name as their first argument.
_GIVEN_THEIR_NAME = (
    'seam',
    'curand_draw',
    'unsafe',
    'pointer_',
    'texture_',
    'pool_free',
    'pool_malloc',
    'runtime_work',
    'runtime_legacy',
    'runtime_malloc',
    'collective',
    'thread_fed',
    'communicator',
    'plan_made',
    'known_',
)


@dataclass(frozen=True)
class Entry:
    """One entry point: ``kind`` is method, property, function, attribute (of instances), maker (a class's ``__new__``)
    or (of a C type) sealed.

    ``code`` is a Python function whose code is replaced, so that it is wrapped under every name that it was imported
    by; a function written in C is replaced by name. ``always`` is a function whose verb is called also where the guard
    itself is calling.

    ``also``: a second holder of the same function, if that is a different object. ``loaded``: a module that capturekit
    does not import itself; if the program has not imported it, the entry is left out.
    """

    holder: str
    name: str
    verb: str
    kind: str = 'method'
    optional: bool = False
    also: str = ''
    loaded: str = ''

    @property
    def named(self) -> bool:
        """Whether the verb gets the call's name first, because several entries share it."""
        return self.method.startswith(_GIVEN_THEIR_NAME)

    @property
    def method(self) -> str:
        """The name of the verb within its component."""
        return self.verb.rpartition('.')[2]

    def __str__(self) -> str:
        return f'{self.holder}.{self.name}'


def _functions(verb: str, *names: str) -> tuple[Entry, ...]:
    return tuple(Entry(RUNTIME, name, verb, 'function', also=_BACKEND) for name in names)


NCCL = 'cupy_backends.cuda.libs.nccl'


def _nccl(verb: str, *names: str) -> tuple[Entry, ...]:
    holder = f'{NCCL}.NcclCommunicator'
    return tuple(Entry(holder, name, verb, 'sealed', optional=True, loaded=NCCL) for name in names)


#: The functions of CuPy that no capture can hold, by the names under which they are called; see
#: :mod:`capturekit.guard.host_calls`.
SEAMS = (
    'cupy.linalg.svd',
    'cupy.linalg.eigh',
    'cupy.linalg.eigvalsh',
    'cupy.linalg.eig',
    'cupy.linalg.eigvals',
    'cupy.linalg.lstsq',
    'cupy.linalg.pinv',
    'cupy.linalg.cond',
    'cupy.linalg.matrix_rank',
    'cupy.polyfit',
    'cupy.roots',
    'cupyx.scipy.sparse.linalg.spsolve',
    'cupyx.scipy.sparse.linalg.spsolve_triangular',
    'cupyx.scipy.sparse.linalg.lsqr',
    'cupyx._texture.affine_transformation',
    *(
        f'cupyx.cusparse.{name}'
        for name in (
            'csrgeam',
            'csrgeam2',
            'spgeam',
            'csrgemm',
            'csrgemm2',
            'spgemm',
            'csrsort',
            'cscsort',
            'coosort',
            'csr2csc',
            'csr2cscEx2',
            'csc2csr',
            'csc2csrEx2',
            'dense2csc',
            'dense2csr',
            'csr2csr_compress',
            'csrsm2',
            'csrilu02',
            'denseToSparse',
            'spsm',
        )
    ),
)

ENTRIES: tuple[Entry, ...] = (
    Entry(_STREAM, 'synchronize', 'waits.stream_synchronize'),
    Entry(_STREAM, 'done', 'waits.stream_done', 'property'),
    Entry(_STREAM, 'record', 'events.stream_record'),
    Entry(_STREAM, 'wait_event', 'events.stream_wait_event'),
    Entry(_STREAM, 'use', 'streams.stream_use'),
    Entry(_STREAM, '__enter__', 'streams.stream_enter'),
    Entry(_STREAM, '__exit__', 'streams.stream_exit'),
    Entry(_STREAM, 'begin_capture', 'manual.stream_begin_capture'),
    Entry(_STREAM, 'end_capture', 'manual.stream_end_capture'),
    Entry(_STREAM, 'is_capturing', 'properties.stream_is_capturing'),
    Entry(_STREAM, 'is_non_blocking', 'properties.stream_is_non_blocking', 'property'),
    Entry(_STREAM, 'priority', 'properties.stream_priority', 'property'),
    Entry(_STREAM, 'add_callback', 'work.stream_add_callback'),
    Entry(_STREAM, 'launch_host_func', 'work.stream_launch_host_func'),
    Entry(_STREAM, '__eq__', 'callers.stream_eq'),
    Entry(_STREAM, '__hash__', 'callers.stream_hash'),
    Entry('cupy.cuda', 'get_current_stream', 'callers.current_stream', 'function'),
    Entry('cupy.cuda.stream', 'get_current_stream', 'callers.current_stream', 'function'),
    Entry(_STREAM, 'ptr', 'properties.stream_handed_out', 'attribute'),
    Entry('cupy.cuda.stream.Stream', '__init__', 'callers.stream_made'),
    Entry('cupy.cuda.stream.Stream', '__del__', 'properties.stream_deleted'),
    Entry(_EVENT, '__init__', 'events.event_made'),
    Entry(_EVENT, 'record', 'events.event_record'),
    Entry(_EVENT, 'synchronize', 'waits.event_synchronize'),
    Entry(_EVENT, 'done', 'waits.event_done', 'property'),
    Entry('cupy.cuda', 'get_elapsed_time', 'waits.elapsed_time', 'function'),
    Entry('cupy.cuda.stream', 'get_elapsed_time', 'waits.elapsed_time', 'function'),
    Entry('cupy.cuda.device.Device', 'synchronize', 'waits.device_synchronize', 'sealed'),
    Entry('cupy.cuda.device.Device', '__enter__', 'devices.device_enter', 'sealed'),
    Entry('cupy.cuda.device.Device', '__exit__', 'devices.device_exit', 'sealed'),
    Entry('cupy.cuda.device.Device', 'use', 'devices.device_use', 'sealed'),
    Entry('cupy._core.syncdetect', '_declare_synchronize', 'waits.declared_synchronize', 'function'),
    Entry('cupy.ndarray', '__new__', 'compiled.array_new', 'maker'),
    Entry('cupy.ndarray', 'get', 'effects.array_get'),
    Entry('cupy.ndarray', 'set', 'arrays.array_set'),
    Entry('cupy.ndarray', '__getitem__', 'arrays.array_getitem'),
    Entry('cupy.ndarray', '__setitem__', 'arrays.array_setitem'),
    Entry('cupy.ndarray', '__dlpack__', 'exchange.array_dlpack'),
    Entry('cupy._core', 'array', 'arrays.array_from', 'function'),
    Entry('cupy.cuda.memory', 'UnownedMemory', 'exchange.memory_of_another', 'function'),
    Entry('cupy._util', 'CUDA_ARRAY_INTERFACE_SYNC', 'exchange.exchange_waits', 'function'),
    Entry('cupy._core', 'concatenate_method', 'arrays.arrays_joined', 'function'),
    Entry('cupy.cuda.graph.Graph', 'launch', 'launches.graph_launch', 'sealed'),
    Entry('cupy.cuda.graph.Graph', 'upload', 'launches.graph_upload', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPool', 'free_all_blocks', 'allocators.pool_free', 'sealed'),
    Entry('cupy.cuda.memory.MemoryAsyncPool', 'free_all_blocks', 'allocators.pool_free', 'sealed', optional=True),
    Entry('cupy.cuda.pinned_memory.PinnedMemoryPool', 'free_all_blocks', 'allocators.pool_free', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_from_device_async', 'copies.pointer_copy', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_from_host_async', 'copies.pointer_copy', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_to_host_async', 'copies.pointer_copy', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_from_async', 'copies.pointer_copy', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'memset_async', 'copies.pointer_copy', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_from_device', 'copies.pointer_sync', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_from_host', 'copies.pointer_sync', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_to_host', 'copies.pointer_sync', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'copy_from', 'copies.pointer_sync', 'sealed'),
    Entry('cupy.cuda.memory.MemoryPointer', 'memset', 'copies.pointer_sync', 'sealed'),
    Entry('cupy.cuda.memory', '_set_thread_local_allocator', 'allocators.allocator_set', 'function'),
    Entry('cupy.cuda', 'set_allocator', 'allocators.allocator_chosen', 'function'),
    Entry('cupy.cuda.memory.MemoryPool', 'malloc', 'allocators.pool_malloc', 'sealed'),
    Entry('cupy.cuda', 'alloc_pinned_memory', 'verdicts.unsafe', 'function'),
    Entry('cupy.cuda.pinned_memory', 'alloc_pinned_memory', 'verdicts.unsafe', 'function'),
    Entry('cupy.cuda.profiler', 'start', 'verdicts.unsafe', 'function'),
    Entry('cupy.cuda.profiler', 'stop', 'verdicts.unsafe', 'function'),
    *_functions('waits.runtime_stream_synchronize', 'streamSynchronize'),
    *_functions('waits.runtime_stream_query', 'streamQuery'),
    *_functions('events.runtime_stream_wait_event', 'streamWaitEvent'),
    *_functions('manual.runtime_begin_capture', 'streamBeginCapture'),
    *_functions('manual.runtime_end_capture', 'streamEndCapture'),
    *_functions('properties.runtime_stream_flags', 'streamGetFlags'),
    *_functions('properties.runtime_stream_priority', 'streamGetPriority'),
    *_functions('work.runtime_add_callback', 'streamAddCallback'),
    *_functions('properties.runtime_stream_destroy', 'streamDestroy'),
    *_functions('events.runtime_event_record', 'eventRecord'),
    *_functions('waits.runtime_event_query', 'eventQuery'),
    *_functions('waits.runtime_event_synchronize', 'eventSynchronize'),
    *_functions('waits.runtime_elapsed_time', 'eventElapsedTime'),
    *_functions('events.runtime_event_made', 'eventCreate', 'eventCreateWithFlags'),
    *_functions('waits.runtime_device_synchronize', 'deviceSynchronize'),
    *_functions('devices.runtime_set_device', 'setDevice'),
    *_functions('launches.runtime_launch', 'graphLaunch'),
    *_functions('launches.runtime_upload', 'graphUpload'),
    *_functions(
        'copies.runtime_work_last', 'memcpyAsync', 'memsetAsync', 'memcpy2DAsync', 'memcpy3DAsync',
        'memcpy2DFromArrayAsync', 'memcpy2DToArrayAsync',
    ),
    *_functions('work.runtime_host_func', 'launchHostFunc'),
    *_functions('work.runtime_peer_copy', 'memcpyPeerAsync'),
    *_functions('work.runtime_prefetch', 'memPrefetchAsync'),
    *_functions(
        'copies.runtime_legacy', 'memcpy', 'memset', 'memcpy2D', 'memcpy3D', 'memcpyPeer', 'memcpy2DFromArray',
        'memcpy2DToArray',
    ),
    *_functions(
        'verdicts.unsafe', 'malloc', 'mallocManaged', 'mallocArray', 'malloc3DArray', 'hostAlloc', 'hostRegister',
        'hostUnregister', 'free', 'freeHost', 'freeArray', 'graphInstantiate', 'graphExecDestroy', 'profilerStart',
        'profilerStop', 'deviceSetLimit', 'deviceSetMemPool', 'memPoolTrimTo', 'memPoolCreate', 'memPoolDestroy',
        'memPoolGetAttribute', 'memPoolSetAttribute', 'memAdvise',
    ),
    *(
        Entry('cupy_backends.cuda.libs.curand', f'generate{name}', 'draws.curand_draw', 'function', optional=True)
        for name in (
            '', 'LongLong', 'Uniform', 'UniformDouble', 'Normal', 'NormalDouble', 'LogNormal', 'LogNormalDouble',
            'Poisson',
        )
    ),
    Entry('cupy.random._generator.RandomState', '_get_seed', 'draws.random_seed_given'),
    Entry('cupy.random._generator.RandomState', 'choice', 'draws.choice_drawn'),
    Entry('cupy.random._generator.RandomState', 'seed', 'draws.random_seeded'),
    Entry('cupy.random._bit_generator.BitGenerator', '__init__', 'draws.bit_generator_made', optional=True),
    Entry('cupy.random._bit_generator._cuRANDGenerator', 'state', 'draws.generator_state', optional=True),
    *(
        Entry(name.rpartition('.')[0], name.rpartition('.')[2], 'host_calls.seam', 'code', optional=True)
        for name in SEAMS
    ),
    Entry('cupyx.scipy.sparse.linalg', 'eigsh', 'iterations.eigsh', 'code', optional=True),
    *(
        Entry('cupy.cuda.cufft', name, 'plans.plan_made', 'function', optional=True) for name in ('Plan1d', 'PlanNd')
    ),
    *(
        Entry(f'cupy.cuda.cufft.{name}', 'fft', 'plans.plan_used', 'sealed', optional=True)
        for name in ('Plan1d', 'PlanNd')
    ),
    *(
        Entry('cupy_backends.cuda.libs.cublas', name, 'known.known_cublas', 'function', optional=True)
        for name in FUNCTIONS
        if name not in SILENT['cublas']
    ),
    *(Entry('cupy.cuda.cub', name, 'known.known_cub', 'function', optional=True) for name in CUB),
    Entry('cupy.cuda.texture.CUDAarray', 'copy_from', 'copies.texture_copy', 'sealed', optional=True),
    Entry('cupy.cuda.texture.CUDAarray', 'copy_to', 'copies.texture_copy', 'sealed', optional=True),
    Entry('cupy.cuda.device', 'get_cusolver_handle', 'host_calls.allocates_inside', 'function'),
    *(
        Entry(holder, name, 'host_calls.allocates_inside', 'code', optional=True)
        for holder, name in (
            ('cupy.cublas', 'batched_gesv'), ('cupy.linalg._solve', '_batched_inv'),
            ('cupy.linalg._decomposition', '_lu_factor'),
        )
    ),
    *_nccl(
        'collectives.collective', 'allReduce', 'reduce', 'broadcast', 'bcast', 'reduceScatter', 'allGather', 'send',
        'recv',
    ),
    *_nccl('collectives.communicator', 'initAll', 'commSplit', 'destroy', 'abort'),
    Entry(NCCL, 'groupStart', 'collectives.group_started', 'function', True, also='cupy.cuda.nccl', loaded=NCCL),
    Entry(NCCL, 'groupEnd', 'collectives.group_ended', 'function', True, also='cupy.cuda.nccl', loaded=NCCL),
    Entry('cupy', 'copyto', 'devices.copied_to', 'code'),
    Entry('logging.Handler', 'handleError', 'swallowed.handler_failed'),
    Entry('warnings', '_showwarnmsg', 'warned.shown', 'always', optional=True),
    Entry('io.TextIOWrapper', 'write', 'output.written', 'sealed'),
    Entry('threading.Thread', 'start', 'effects.thread_fed'),
    Entry('threading.Condition', 'notify', 'effects.thread_fed'),
    Entry('queue.SimpleQueue', 'put', 'effects.thread_fed', 'sealed'),
    Entry('concurrent.futures.thread.ThreadPoolExecutor', 'submit', 'effects.thread_fed'),
    Entry('cupyx._ufunc_config', 'get_config_linalg', 'effects.linalg_config', 'code', optional=True),
    *_functions('work.runtime_malloc_async', 'mallocAsync', 'mallocFromPoolAsync'),
    *_functions('work.runtime_free_async', 'freeAsync'),
)  # fmt: skip

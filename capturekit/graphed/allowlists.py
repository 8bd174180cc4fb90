"""Tables of what is understood: what functions written in C read, and types whose state can be seen.

A call is recorded only if everything that the function does is listed here. Whatever is missing makes calls eager,
never wrong. The rows are data: the tests go through Python's modules and list the functions that are in no table.
"""

from __future__ import annotations

import _codecs
import itertools
import operator
import types
from typing import Any

import numpy as np

from capturekit.model.class_layout import among, bases_of, dictionary_of_class, name_of


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


ALL = frozenset({'*'})

#: Packages that are understood as a whole: their functions read only their arguments, or what the guard watches.
PACKAGES = _set('cupy cupyx cupy_backends capturekit numpy scipy cuda')

#: Functions of other packages that CuPy asks for memory. What they give, a graph takes from its own.
ALLOCATORS = _set('rmm_cupy_allocator')

#: Functions in these packages that read or change something else, by package and name: files, settings, their own
#: seed, which generator is CuPy's own.
OUTSIDE = {
    'numpy': _set(
        'load loadtxt genfromtxt fromfile fromregex memmap geterr geterrcall seterr seterrcall getbufsize setbufsize '
        'get_printoptions set_printoptions array2string array_repr array_str base_repr printoptions save savez savetxt '
        'open_memmap may_share_memory shares_memory byte_bounds datetime_as_string set_default_printstyle set_display '
        'tofile dump'
    ),
    'cupy': _set(
        'load loadtxt genfromtxt fromfile save savez savez_compressed savetxt get_printoptions set_printoptions '
        'set_random_state'
    ),
}

#: Modules of NumPy whose functions all read files; and those whose functions read the options for printing.
OF_FILES = _set('numpy._core.memmap numpy.lib.format numpy.lib._format_impl numpy.lib._datasource')
OF_PRINTING = _set('numpy._core.arrayprint')
#: Modules of NumPy whose texts depend on further options, and their functions that make texts.
OF_TEXTS = _set('numpy.polynomial._polybase numpy.ma.core')
MAKING_TEXTS = _set('__str__ __repr__ __format__')
#: Functions of ``traceback`` that read who called the function.
OF_CALLERS = _set('extract_stack format_stack print_stack walk_stack')
#: What ``inspect.signature`` reads of a function.
OF_SIGNATURES = _set(
    '__signature__ __wrapped__ _partialmethod __partialmethod__ __text_signature__ __annotations__ __annotate__ '
    '__defaults__ __kwdefaults__ __code__ __name__ __type_params__'
)
#: Functions of ``logging`` that give back a logger, or tell its settings.
OF_LOGGERS = _set('getLogger isEnabledFor getEffectiveLevel hasHandlers')
#: Functions of ``logging`` that tell what was registered there, or change it for all loggers.
OF_LOGGING = _set(
    'getLevelName getLevelNamesMapping getLoggerClass getLogRecordFactory getHandlerByName getHandlerNames getChildren '
    'findCaller makeRecord format formatTime formatMessage disable addLevelName captureWarnings'
)

#: Modules of SciPy whose functions read files, by the beginning of their names.
OF_SCIPYS_FILES = ('scipy.io.', 'scipy.datasets.', 'scipy.sparse._matrix_io')

_STATES = _set(
    'memGetInfo used_bytes free_bytes total_bytes n_free_blocks get_limit set_limit get_curr_size get_curr_memsize '
    'show_info deviceGetLimit memPoolGetAttribute streamIsCapturing peekAtLastError getLastError getMathMode '
    'getPointerMode get_compute_type set_compute_type'
)
for _package in ('cupy', 'cupyx', 'cupy_backends'):
    OUTSIDE[_package] = OUTSIDE.get(_package, frozenset()) | _STATES

_ABC = _set('_abc_init _abc_register _abc_instancecheck _abc_subclasscheck get_cache_token')
#: Without the functions that read or change which encodings and handlers are registered.
_CODECS = frozenset(name for name in dir(_codecs) if name.endswith(('code', 'code_ex')) or name == 'charmap_build')
_PATHS = _set('fspath _path_splitroot_ex _path_splitroot _path_normpath')

#: Functions in Python's modules that read only their arguments.
FUNCTIONS: dict[str, frozenset[str]] = {
    'builtins': _set(
        'abs all any ascii bin callable chr divmod format hex isinstance issubclass iter len max min next oct ord '
        'pow print repr round sorted sum locals __build_class__ getattr hasattr setattr delattr vars dir aiter anext'
    ),
    'math': ALL, 'cmath': ALL, '_operator': ALL, 'operator': ALL, 'itertools': ALL, '_bisect': ALL, '_heapq': ALL,
    '_struct': ALL,
    'binascii': ALL, 'zlib': ALL, '_json': ALL, '_sre': ALL, '_warnings': _set('warn'),
    '_thread': _set('allocate_lock RLock get_ident'),  # which thread calls is compared
    '_functools': _set('reduce cmp_to_key'),
    '_collections': _set('_count_elements'), '_statistics': ALL,
    '_string': ALL, 'unicodedata': ALL, '_abc': _ABC, 'posix': _PATHS, 'nt': _PATHS,
    'sys': _set('exc_info exception intern getrecursionlimit'), '_typing': ALL, '_tokenize': ALL, '_codecs': _CODECS,
}  # fmt: skip

#: Those of them that read attributes by names that are passed to them.
BY_NAME = _set('getattr hasattr setattr delattr vars dir')

_CONTAINER = (list, tuple, dict, set, frozenset, str, bytes, bytearray, int, float, complex, bool, range, slice)
#: Classes written in C all of whose methods are understood. The state of random numbers is compared.
_WHOLLY = _set(
    'builtins.object builtins.property builtins.mappingproxy collections.deque collections.OrderedDict '
    'collections.defaultdict types.SimpleNamespace re.Pattern re.Match datetime.timedelta _struct.Struct '
    '_random.Random _io.StringIO _io.BytesIO'
)
#: Methods written in C, by their class: the understood ones, or ALL, and the exceptions from these.
METHODS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    **{f'builtins.{cls.__name__}': (ALL, _set('__sizeof__')) for cls in _CONTAINER},
    'builtins.type': (_set('mro __call__ __instancecheck__ __subclasscheck__ __new__ __init__ __prepare__'), _set('')),
    'builtins.generator': (_set('send throw close __next__ __iter__'), _set('')),
    'builtins.coroutine': (_set('send throw close __await__'), _set('')),
    'builtins.BaseException': (_set('with_traceback add_note __init__ __str__ __repr__'), _set('')),
    **{f'itertools.{name}': (ALL, _set('')) for name in dir(itertools) if isinstance(getattr(itertools, name), type)},
    **dict.fromkeys(_WHOLLY, (ALL, _set(''))),
    'array.array': (ALL, _set('fromfile tofile buffer_info')),
    'datetime.date': (ALL, _set('today fromtimestamp')),
    'datetime.datetime': (ALL, _set('now today utcnow fromtimestamp utcfromtimestamp astimezone timestamp')),
    '_io.TextIOWrapper': (_set('write flush'), _set('')),  # what a file is given is not read
    '_contextvars.ContextVar': (_set('get set reset'), _set('')),  # its value is compared
}
#: Methods that read attributes whose names are in a string or are passed.
METHODS_BY_NAME = _set(
    'str.format str.format_map object.__getattribute__ object.__setattr__ object.__delattr__ object.__reduce_ex__ '
    'object.__reduce__ object.__dir__ object.__getstate__'
)

#: Modules whose classes written in C read only what they are given when an object of them is made, or used. The last
#: two are Cython's views of memory.
MAKING = PACKAGES | frozenset(FUNCTIONS) | _set(
    'collections datetime decimal _decimal fractions numbers re types enum abc typing contextvars _contextvars array '
    'string weakref _weakref _ctypes ctypes functools time tokenize textwrap '
    'importlib _frozen_importlib _frozen_importlib_external zoneinfo ast _ast copy dataclasses inspect _cyutility View'
)  # fmt: skip
#: The same by module and name.
MAKING_NAMES = _set(
    '_io._IOBase _io._RawIOBase _io._BufferedIOBase _io._TextIOBase _io.IncrementalNewlineDecoder _io.StringIO '
    '_io.BytesIO uarray._Function uarray._BackendState uarray._SetBackendContext '
    'uarray._SkipBackendContext'
)
#: The same, for classes that are derived from these: their own code is followed.
MAKING_BASES = _set('_random.Random')

#: Attributes that give others, which code then does not name; and methods that read attributes named in a text.
OPENING = _set(
    '__dict__ __getattribute__ __setattr__ __delattr__ __get__ __set__ __delete__ __getstate__ __reduce__ '
    '__reduce_ex__ __dir__ __self__ format format_map'
)
#: Classes of objects that read attributes whose names they were given.
MAKERS = (operator.attrgetter, operator.methodcaller)
FUNCTION_PARTS = ('__code__', '__defaults__', '__kwdefaults__')
#: What code may read of a function besides the attributes in its dictionary.
OF_FUNCTIONS = frozenset({
    *FUNCTION_PARTS, '__name__', '__qualname__', '__doc__', '__module__', '__annotations__', '__type_params__',
}) & frozenset(dir(types.FunctionType))  # fmt: skip

_MODULES = _set(
    'collections _collections_abc contextlib types operator heapq bisect fractions numbers statistics string re '
    'sre_compile sre_parse json textwrap pprint colorsys keyword typing struct posixpath ntpath genericpath pathlib '
    'datetime _pydatetime reprlib array base64 codecs encodings configparser'
)
#: Standard modules whose code is followed, including its calls of C functions. If functions are named, only those.
FOLLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys(_MODULES, frozenset()),
    'functools': _set(
        '__get__ __set_name__ __init__ __new__ _method update_wrapper wraps __call__ _unwrap_partial total_ordering '
        '_le_from_lt _gt_from_lt _ge_from_lt _lt_from_le _ge_from_le _gt_from_le _lt_from_gt _ge_from_gt _le_from_gt '
        '_le_from_ge _gt_from_ge _lt_from_ge __repr__ reduce '
        'wrapper dispatch _find_impl _compose_mro _c3_mro _c3_merge'
    ),
    'random': _set(
        '__init__ seed uniform randrange randint choice choices sample shuffle gauss normalvariate expovariate '
        'triangular betavariate gammavariate lognormvariate vonmisesvariate paretovariate weibullvariate '
        '_randbelow_with_getrandbits _randbelow_without_getrandbits randbytes getstate setstate binomialvariate'
    ),
    'os': _set('__getitem__ getenv encode decode encodekey check_str'),
    'weakref': _set('__getitem__ __setitem__'),
    'argparse': _set('__contains__ __eq__'),
    'threading': _set('RLock Lock is_set isSet __enter__ __exit__'),
    # A module that lacks a name asks where its file lies, for the text of the AttributeError (from Python 3.13 on).
    'importlib._bootstrap': _set('_handle_fromlist parent has_location'),
    'inspect': _set('signature parameters name kind default annotation return_annotation __init__ __repr__ __str__'),
    'platform': _set('uname machine system node release version'),  # kept after the first call
}  # fmt: skip
#: Modules that use the addresses of objects, but only to tell one object from another.
BY_ADDRESS = _set('copy reprlib json.encoder pprint inspect')
#: Modules whose internals are not affected by the user's code, and are skipped as a whole.
WHOLE = _set('logging warnings _py_warnings traceback abc _abc _py_abc enum linecache _weakrefset tokenize __future__')

#: Stands for the attribute ``flags`` where code may read any flag of an array, also ``owndata``.
FLAGS = 'flags as a whole'
#: Attributes through which code reaches unwatched values, or addresses, which differ at each call.
OUT_OF_SIGHT = _set(
    '__globals__ __builtins__ __closure__ cell_contents gi_frame cr_frame ag_frame tb_frame f_back '
    'f_locals f_globals f_builtins __weakref__ gi_yieldfrom gi_running gi_suspended cr_running cr_suspended cr_await '
    'ag_running ag_suspended ag_await device_ptr __cuda_array_interface__ __dlpack__ toDlpack '
    '__array_interface__ ctypes'
)
#: Those by which code asks of an object whether it is an array, as ``hasattr(x, '__cuda_array_interface__')`` does.
INTERFACES = _set('__cuda_array_interface__ __array_interface__ __dlpack__ toDlpack')
#: The same, if what the code asks may be an array, or another object of CuPy's.
OF_ARRAYS = _set('ptr owndata base metadata') | {FLAGS}
#: Attributes of CuPy's classes written in C whose values change without the user's code.
OF_DEVICES = _set('mem_info')

#: Attributes through which NumPy finds the memory of an object: by its address, so that nobody sees what it reads.
BY_POINTER = _set('__array_interface__ __array_struct__')
#: What libraries ask an object itself for, besides its class, without any code naming it.
OF_INSTANCES = BY_POINTER | _set(
    '__array__ __array_priority__ __cuda_array_interface__ __cupy_get_ndarray__ __dlpack__ __dlpack_device__'
)
#: What Python itself puts into modules and classes as it runs: at a first warning or copy, or to load a module.
OF_PYTHON = _set(
    '__warningregistry__ __slotnames__ __annotations__ __annotations_cache__ __annotate__ __annotate_func__ '
    '__conditional_annotations__ __builtins__ __loader__ __spec__ __cached__ __dict__ __weakref__ _abc_impl '
    '_abc_registry _abc_cache _abc_negative_cache _abc_negative_cache_version'
)

#: Names of functions and attributes that may use memory outside of an array's elements: by its address or in a kernel.
FAR = _set(
    'data mem as_strided MemoryPointer UnownedMemory RawKernel RawModule ElementwiseKernel ReductionKernel rawkernel '
    'get_function'
)
#: Types of kernels that may always do so; other kernels only if a parameter is marked `raw`.
FAR_KERNELS = _set('RawKernel Function _JitRawKernel RawModule')
KERNELS = _set('ElementwiseKernel ReductionKernel')

_SLOT = (
    'abs add aenter aexit aiter and anext await bool bytes call ceil complex contains copy deepcopy delattr delete '
    'delitem dir divmod enter eq exit float floor floordiv format ge get getattr getattribute getitem getnewargs '
    'getnewargs_ex getstate gt hash iadd iand ifloordiv ilshift imatmul imod imul index init init_subclass '
    'instancecheck int invert ior ipow irshift isub iter itruediv ixor le len length_hint lshift lt match_args matmul '
    'missing mod '
    'class class_getitem subclasshook fspath abstractmethods array_wrap array_finalize array_prepare array_interface '
    'array_struct buffer release_buffer sizeof cupy_override_elementwise_kernel cupy_get_ndarray '
    'cuda_array_interface dlpack dlpack_device mro_entries '
    'mul ne neg new next or pos pow prepare radd rand rdivmod reduce reduce_ex repr reversed rfloordiv '
    'rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor set set_name setattr setitem setstate '
    'str sub subclasscheck truediv trunc xor array array_ufunc array_function array_priority post_init slots del bases'
)
#: Names that Python itself looks up in classes, without any code naming them.
SPECIAL = frozenset(f'__{name}__' for name in _SLOT.split()) | {'mro'}
#: Other names that code written in C asks objects of any class for: Python's own, and NumPy's, which calls methods of
#: the objects in an array by the names of its ufuncs.
ASKED_IN_C = frozenset(name for name, value in vars(np).items() if isinstance(value, np.ufunc)) | _set(
    'keys items values get write flush read readline readinto close send throw fileno isatty encoding errors newlines '
    'append extend add discard update copy sort pop tzinfo utcoffset tzname dst fromutc isoformat strftime timetuple '
    'toordinal numerator denominator real imag as_integer_ratio dtype shape strides data descr size ndim itemsize '
    'typestr names formats offsets titles aligned fields conjugate __bases__ __module__ __name__ __qualname__ __doc__'
)

#: Types whose instances can't change, or change only in ways that a function can't read.
CONSTANT: tuple[Any, ...] = (
    types.FunctionType, types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType, type,
    np.ufunc, types.GenericAlias, types.UnionType, types.CodeType, type(np.dot), property, staticmethod,
    classmethod, types.MethodType, types.TracebackType,
)  # fmt: skip
#: The same by module and name, for types that have no name in Python or may be missing.
CONSTANT_NAMES = _set(
    '_thread.lock _thread.RLock re.Pattern builtins.object _cython_function_or_method cython_function_or_method '
    'builtins.NotImplementedType datetime.timezone datetime.time datetime.datetime _struct.Struct '
    'numpy.finfo numpy.iinfo numpy._ArrayFunctionDispatcher collections._tuplegetter operator.attrgetter '
    '_collections._tuplegetter _abc._abc_data typing.TypeVar typing.ParamSpec typing.TypeAliasType '
    'torch._C.Generator'
)

#: Metaclasses written in C whose ``isinstance`` asks for nothing but the type of the object.
TYPE_CHECKS = _set('jaxlib._jax.ArrayMeta jaxlib.xla_extension.ArrayMeta')


_MODULE_OF: Any = type.__dict__['__module__'].__get__


def module_of(cls: type) -> str:
    """The name of the module that a class says it is of."""
    module = dictionary_of_class(cls).get('__module__')
    if type(module) is not str:
        module = _MODULE_OF(cls)  # of types written in C
    return module if type(module) is str else 'builtins'


def makes_unknown(cls: type) -> str:
    """The class written in C of which it is not known what making an object of this class reads; '' if there is none.

    Python tells nobody when such a class is called, nor when its objects are iterated over or asked for an item.
    """
    for base in bases_of(cls):
        inside = dictionary_of_class(base)
        made = type(inside.get('__new__')) is types.BuiltinFunctionType
        if not made and type(inside.get('__init__')) is not types.WrapperDescriptorType:
            continue
        module = module_of(base)
        name = f'{module}.{name_of(base)}'
        if module.partition('.')[0] in MAKING or name in MAKING_NAMES or (name in MAKING_BASES and base is not cls):
            continue
        return name
    return ''


def owner_of(function: Any) -> str:
    """Where a function written in C belongs: ``math`` or ``builtins.list``."""
    home = getattr(function, '__objclass__', None)
    if isinstance(home, type):
        return f'{module_of(home)}.{name_of(home)}'
    bound = getattr(function, '__self__', None)
    if isinstance(bound, types.ModuleType) or bound is None:
        return str(getattr(function, '__module__', None) or getattr(bound, '__name__', ''))
    cls = bound if isinstance(bound, type) else type(bound)
    name = function.__name__
    for base in bases_of(cls):
        inside = dictionary_of_class(base)
        if name in inside and type(inside[name]) is not types.FunctionType:  # such a one calls it through super()
            return f'{module_of(base)}.{name_of(base)}'
    return f'{module_of(cls)}.{name_of(cls)}'


def reads(function: Any) -> str | None:
    """What a function written in C reads: 'arguments', or 'names' (attributes by name); None if that is not known."""
    name = function.__name__
    owner = owner_of(function)
    top, _, rest = owner.partition('.')
    if top in PACKAGES:
        return None if name in OUTSIDE.get(top, ()) else 'arguments'
    if owner in FUNCTIONS:
        known = FUNCTIONS[owner]
        if known is not ALL and name not in known:
            return None
        return 'names' if owner == 'builtins' and name in BY_NAME else 'arguments'
    if owner in METHODS:
        known, but = METHODS[owner]
        if (known is not ALL and name not in known) or name in but:
            return None
        return 'names' if f'{rest}.{name}' in METHODS_BY_NAME else 'arguments'
    return 'arguments' if top == 'builtins' and rest and name in SPECIAL else None  # iterators, most of them


_BUILTIN = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)  # fmt: skip


def reads_unknown(value: Any) -> bool:
    """Whether a value is a function written in C of which it is not known what it reads."""
    return among(type(value), _BUILTIN) and reads(value) is None

"""What Python keeps around a function: names that arrays have, files, errors of numbers, loggers, objects of libraries.

A program may have one of these besides its deed. It is drawn last, so that the rest of a program is as it would be
without.
"""

from __future__ import annotations

from tests.agreement.python_statements import Deed

_NAMED = """
class Named:
    flags = base = strides = owndata = ptr = itemsize = nbytes = 2.0
    def __init__(self, one): self.data, self.metadata, self.inner = one, one, self
NAMED, AT, NP = Named(2.0), cp.ones(3), np.ones(3)
OTHERS = [AT, NAMED]
""".strip()
_OF_NAMED = (
    'AT = cp.ones(9)[:3]', 'AT = cp.ones(6)[::2]', 'AT = cp.ones((3, 2)).T[0]', 'AT = AT[::-1]', 'NP = np.ones(9)[:3]', 'NP = NP[::-1]',
    'NP.flags.writeable = False', 'NP.setflags(write=False)', 'NAMED = Named(3.0)', 'NAMED.base = 3.0', 'Named.base = 4.0',
    'NAMED.flags = 3.0', 'Named.strides = 3.0', 'NAMED.data = 1.5', 'del Named.owndata', 'OTHERS[0] = cp.ones(9)[:3]',
    'OTHERS[1] = AT', 'NAMED.inner = Named(0.5)', "Named.ptr = property(lambda s: 5.0)", 'OTHERS.reverse()', 'Named.__getattr__ = lambda s, n: 6.0',
    'NAMED.first = AT.flags', 'NP = NP.astype(np.float32)', 'AT = cp.ones(3, cp.float32)',
)  # fmt: skip
_OF_ARGUMENTS = (
    *_OF_NAMED[-6:],
    *('X[0] = BASE[3:6]', 'X[1] = BASE[2:5]', 'X[0] = X[0].copy()', 'X[1] = X[1].copy()') * 3,
)

_FILES = """
import contextlib, io
OUT, TEXT, SAID = sys.stdout, io.StringIO(), []
class Tee:
    encoding, errors = 'utf-8', 'strict'
    def write(self, text):
        SAID.append(text)
        return len(text)
    def flush(self): SAID.append('flushed')
    def isatty(self): return len(SAID) > 3
""".strip()
_OF_FILES = (
    'sys.stdout = TEXT', 'sys.stdout = OUT', 'sys.stdout = sys.stderr', 'sys.stdout = Tee()', "sys.stdout.reconfigure(encoding='ascii')",
    "OUT.reconfigure(encoding='latin-1', errors='replace')", 'OUT.reconfigure(line_buffering=True)', 'OUT.reconfigure(write_through=True)',
    "sys.stdout = io.TextIOWrapper(io.BytesIO(), 'ascii')", 'sys.stdout = None', 'sys.stderr = TEXT', 'sys.stderr = Tee()', 'TEXT = io.StringIO()',
    'TEXT.write("more")', 'TEXT.seek(0)\nTEXT.truncate()', 'OUT.close()', 'Tee.write = lambda s, t: 1', 'del sys.stdout', 'TEXT = Tee()',
    'print = lambda *a, **k: SAID.append(a)', 'sys.__stdout__ = OUT', 'TEXT.close()',
    'held = contextlib.redirect_stdout(TEXT)\nheld.__enter__()', 'sys.displayhook = SAID.append', "OUT.mode = 'x'",
)  # fmt: skip

_ERRORS = """
import contextlib
NP, SEEN = np.array([1.0, 0.0]), []
def on_error(kind, flag): SEEN.append(kind)
class Log:
    def write(self, text): SEEN.append(text)
LOG = Log()
STATE = np.errstate(all='ignore')
""".strip()
_OF_ERRORS = (
    "np.seterr(all='raise')", "np.seterr(divide='raise')", "np.seterr(all='ignore')", "np.seterr(all='warn')", "np.seterrcall(on_error)\nnp.seterr(all='call')",
    "np.seterrcall(LOG)\nnp.seterr(all='log')", 'np.seterrcall(lambda k, f: SEEN.append(f))', "warnings.simplefilter('error')",
    "warnings.filterwarnings('error', category=RuntimeWarning)", "warnings.filterwarnings('ignore', 'divide')", 'warnings.resetwarnings()',
    "warnings.simplefilter('always')\nwarnings.showwarning = lambda *a, **k: SEEN.append(a[1].__name__)", 'NP[1] = 2.0', 'NP = np.array([1.0, 4.0])',
    'NP = NP.astype(np.float32)', "np.seterr(under='raise', over='raise')", "cupyx.seterr(linalg='raise')", "cupyx.seterr(linalg='ignore')",
    "STATE = np.errstate(all='raise')", "np.errstate(all='raise').__enter__()", 'def on_error(kind, flag): raise ValueError(kind)',
    "np.seterr(invalid='raise')", 'Log.write = lambda s, t: SEEN.append(1)', 'NP = NP.astype(int)', 'np.float64.first = 1.0',
)  # fmt: skip
_CAUGHT = 'except (FloatingPointError, RuntimeWarning, ValueError, UserWarning):\n    y = y + 7.0'


def _tried(line: str) -> str:
    """A statement, and what is done where it raises."""
    return f'try:\n    {line}\n{_CAUGHT}'


_LOGGERS = """
FOUND = []
class Collects(logging.Handler):
    def emit(self, record): FOUND.append(record.getMessage())
class Adapted(logging.LoggerAdapter):
    def process(self, message, given): return f'{self.extra} {message}', given
class Own(logging.Logger):
    def isEnabledFor(self, level): return level > 10
def keeps(of, more=None):
    if of.name.startswith('program') and str(more) != 'capturekit':
        FOUND.append((of.name, more))
    return False
import io, logging.handlers
MANY, TEXT = logging.handlers.MemoryHandler(100, 60), io.StringIO()
LOG, OVER, ROOT = logging.getLogger('program.a.b'), logging.getLogger('program.a'), logging.getLogger()
LOG.addHandler(logging.NullHandler())
AD = Adapted(LOG, 'x')
""".strip()
_OF_LOGGERS = (
    'LOG.setLevel(10)', "LOG.setLevel('ERROR')", 'LOG.addHandler(Collects())', 'LOG.handlers[:] = [Collects()]', 'LOG.handlers.clear()', 'LOG.addFilter(keeps)',
    'LOG.filters.append(keeps)', 'LOG.handlers[0].setLevel(50)', 'LOG.handlers[0].addFilter(keeps)', "LOG.handlers[0].setFormatter(logging.Formatter('%(message)s'))",
    'LOG.propagate = not LOG.propagate', 'LOG.parent = None', 'logging.disable(30)', 'logging.disable(0)', 'LOG.disabled = True', 'ROOT.setLevel(10)',
    'ROOT.addHandler(Collects())', 'OVER.addHandler(Collects())', 'OVER.setLevel(10)', "logging.getLogger('program').addHandler(Collects())",
    "logging.getLogger('program').setLevel(50)", 'LOG.info = lambda *a: FOUND.append(a)', 'logging.Logger.info = lambda s, *a: keeps(s, a)',
    'LOG.isEnabledFor = lambda level: True', 'logging.setLogRecordFactory(lambda n, *a, **k: keeps(LOG, n) or logging.LogRecord(n, *a, **k))',
    'logging.lastResort = Collects()', 'LOG.__class__ = Own', 'ROOT.manager.disable = 50', 'Collects.emit = lambda s, r: FOUND.append(s.level)',
    'LOG.handlers[0].emit = FOUND.append and (lambda r: FOUND.append(r.name))', 'AD.logger = OVER', "AD.extra = 'y'", 'Adapted.process = lambda s, m, k: (m, k)',
    'AD.isEnabledFor = lambda level: True', 'LOG.level = 10', 'LOG.name = "other"', 'OVER.propagate = False', 'OVER.disabled = True', 'LOG.callHandlers = FOUND.append and (lambda r: FOUND.append(2))',
    "LOG = logging.getLogger('program.c')", 'logging.raiseExceptions = False', 'logging.NullHandler.handle = lambda s, r: keeps(r)',
    "logging.getLogger = lambda n=None: OVER", 'ROOT.handlers.append(Collects())', "logging.basicConfig(level=10, handlers=[Collects()])",
    'LOG.handlers.append(LOG.handlers[0])', 'LOG.handle = lambda r: FOUND.append(4)', 'LOG.filter = lambda r: FOUND.append(5)', 'LOG.addHandler(logging.StreamHandler(TEXT))', 'LOG.handlers[0].handle = lambda r: FOUND.append(6)', 'Own.__init__ = None',
    'LOG.handlers[0].formatter = logging.Formatter()\nLOG.handlers[0].formatter.format = lambda r: FOUND.append(7)', 'ROOT.addHandler(logging.StreamHandler())',
    'LOG.addHandler(MANY)', 'MANY.buffer.clear()', 'TEXT.truncate(0)', 'del LOG.handlers[0]', 'Collects.handle = lambda s, r: FOUND.append(8)',
)  # fmt: skip

_INSTANCES = """
import argparse
class Other(collections.Counter):
    def most_common(self, n=None): return [('b', 7.0)]
class Ordered(collections.OrderedDict): pass
class Filled(collections.defaultdict): pass
COUNTED, ORDERED, FILLED = collections.Counter('aab'), collections.OrderedDict(a=2.0), Filled(float, a=2.0)
USER, SPACE, FLAG = collections.UserDict(a=2.0), argparse.Namespace(a=2.0), threading.Event()
MADE = [COUNTED, ORDERED, FILLED, USER, Ordered(a=1.5)]
""".strip()
_OF_INSTANCES = (
    "COUNTED.most_common = lambda n: [('a', 7.0)]", "COUNTED.most_common = lambda n: [('a', 5.0)]", "vars(COUNTED).pop('most_common', 0)",
    'COUNTED.__class__ = Other', 'COUNTED.__class__ = collections.Counter', 'COUNTED.first = 3.0', "COUNTED['a'] = 4", 'ORDERED.get = lambda k: 5.0',
    "vars(ORDERED).pop('get', 0)", 'ORDERED.first = 3.0', 'COUNTED.get = lambda k: 6.0', 'FILLED.get = lambda k: 0.5', 'FILLED.default_factory = int',
    'FILLED.first = 3.0', 'USER.get = lambda k: 0.5', "USER.data = {'a': 4.0}", 'SPACE.a = 4.0', 'SPACE.__dict__ = dict(a=5.0)', 'MADE.reverse()',
    'FLAG.is_set = lambda: 4.0', 'FLAG.set()', 'MADE[4].get = lambda k: 7.0', 'MADE[0] = collections.Counter(a=4)', 'vars(FLAG).pop("is_set", 0)',
)  # fmt: skip

_COLLECTOR = """
import gc, timeit
from gc import isenabled
ASKING = [gc.isenabled]
LATER = functools.partial(gc.isenabled)
""".strip()
_OF_COLLECTOR = (
    'gc.disable()', 'gc.enable()', 'gc.set_threshold(9000)', 'isenabled = lambda: 3.0', 'LATER = isenabled',
    'gc.collect()', 'ASKING = []',
)  # fmt: skip

_NAMES = """
ONE, NP1, BYTES1 = [1.0, 2.0], np.array([1.0, 2.0, 3.0, 4.0]), bytearray(b'abcdef')
SAME, LIKE = ONE, [1.0, 2.0]
PAIRS, NP2, BYTES2 = {'a': ONE, 'b': LIKE}, NP1[1:3], memoryview(BYTES1)[1:3]
class Place:
    def __init__(self): self.of, self.values = ONE, {'a': 1.0}
PLACE, ELSEWHERE = Place(), Place()
ELSEWHERE.__dict__ = PLACE.__dict__
SEEN_IN = PLACE.values.values()
""".strip()
_OF_NAMES = (
    'SAME = [*ONE]', 'SAME = ONE', 'LIKE = ONE', 'LIKE = [*ONE]', 'ONE = [*ONE]', "PAIRS['b'] = PAIRS['a']", "PAIRS['b'] = [*ONE]",
    'PLACE.of = LIKE', 'PLACE.of = ONE', 'NP2 = NP1[1:3].copy()', 'NP2 = NP1[1:3]', 'NP2 = NP1[:2]', 'NP1 = NP1.copy()', 'NP2 = NP1[2:0:-1]',
    'BYTES2 = memoryview(BYTES1)[1:3]', 'BYTES2 = memoryview(bytes(BYTES1))[1:3]', 'BYTES1 = bytearray(BYTES1)', 'BYTES2 = memoryview(BYTES1)[2:4]',
    'ELSEWHERE.__dict__ = dict(PLACE.__dict__)', 'ELSEWHERE.__dict__ = PLACE.__dict__', 'SEEN_IN = PLACE.values.values()',
    'SEEN_IN = dict(PLACE.values).values()', 'PLACE.values = dict(PLACE.values)', 'ONE, SAME = SAME, ONE',
)  # fmt: skip

#: Each is a deed: lines before the function, lines in it, changes between calls. None has to be in a call's own step.
SURROUNDINGS: tuple[Deed, ...] = (
    # attributes that arrays have, and objects of the program too
    Deed(_NAMED, 'y = y * NAMED.base + (1.0 if AT.base is None else 3.0)', _OF_NAMED, odd=True),
    Deed(_NAMED, 'y = y * NAMED.base + (1.0 if x.base is None else 3.0)', _OF_ARGUMENTS, weight=5),
    Deed(_NAMED, "w = NAMED.flags\ny = y + w * (1.0 if x.flags['OWNDATA'] else 3.0)", _OF_ARGUMENTS, weight=3),
    Deed(_NAMED, 'w = AT.flags\ny = y + w.c_contiguous * NAMED.flags', _OF_NAMED, odd=True),
    Deed(_NAMED, 'y = y + (NAMED.owndata if x.flags.owndata else 5.0)', _OF_ARGUMENTS, weight=3),
    Deed(_NAMED, 'y = y + AT.strides[0] + NAMED.strides + NAMED.inner.base', _OF_NAMED),
    Deed(_NAMED, 'y = y + NAMED.inner.inner.base + NAMED.ptr + NAMED.data + NAMED.metadata', _OF_NAMED, weight=4),
    Deed(_NAMED, 'y = y + sum([(1.0 if v.base is None else 3.0) for v in OTHERS])', _OF_NAMED, odd=True),
    Deed(_NAMED, "y = y + sum([2.0 if getattr(v, 'base', 0) is None else 3.0 for v in OTHERS])", _OF_NAMED, odd=True),
    Deed(_NAMED, "y = y + (1.0 if operator.attrgetter('flags.owndata')(AT) else 3.0)", _OF_NAMED, odd=True),
    Deed(_NAMED, 'match OTHERS[0]:\n    case object(base=None):\n        y = y + 1.0\n    case object(flags=2.0):\n        y = y + 2.0', _OF_NAMED, odd=True),
    Deed(_NAMED, 'def base_of(v): return v.base\ny = y + (base_of(NAMED) if base_of(AT) is None else 5.0)', _OF_NAMED, odd=True),
    Deed(_NAMED, 'w = [NAMED, AT][AT.size % 2]\ny = y + (1.0 if w.base is None else 3.0)', _OF_NAMED, odd=True),
    Deed(_NAMED, 'w = (NAMED if AT.ndim > 1 else AT).flags\ny = y + (1.0 if w.owndata else 3.0)', _OF_NAMED, odd=True),
    Deed(_NAMED, 'y = y + AT.nbytes + AT.itemsize + NAMED.nbytes * NAMED.itemsize', _OF_NAMED),
    Deed(_NAMED, 'y = y + AT.data.mem.size + NAMED.base', _OF_NAMED),
    Deed(_NAMED, 'y = y + AT.data.ptr % 512 * 0.25 + NAMED.ptr', _OF_NAMED, odd=True),
    Deed(_NAMED, 'y = y + NP.flags.writeable * NAMED.flags + NP.flags.c_contiguous', _OF_NAMED, weight=3),
    Deed(_NAMED, 'y = y + (1.0 if NP.base is None else 3.0) + NP.strides[0]', _OF_NAMED, weight=3, odd=True),
    Deed(_NAMED, 'y = y + NP.ctypes.data % 2 + NP.__array_interface__["shape"][0] + NAMED.base', _OF_NAMED, odd=True),
    Deed(_NAMED, 'NAMED.first = AT.strides\ny = y + NAMED.first[0]', _OF_NAMED),
    Deed(_NAMED + '\nKEPT_FLAGS = AT.flags', 'y = y + KEPT_FLAGS.c_contiguous * NAMED.flags + (1.0 if KEPT_FLAGS.owndata else 2.0)',
         (*_OF_NAMED, 'KEPT_FLAGS = cp.ones(9)[:3].flags', 'KEPT_FLAGS = NAMED', 'KEPT_FLAGS = AT.flags', 'KEPT_FLAGS = NP.flags'), odd=True),
    Deed(_NAMED + '\nDATA = AT.data', 'y = y + DATA.mem.size * 0.5', (*_OF_NAMED, 'DATA = cp.ones(900).data', 'DATA = AT.data')),
    Deed(_NAMED + '\nFORM = memoryview(bytearray(6))', 'y = y + FORM.itemsize + FORM.nbytes + FORM.strides[0]',
         (*_OF_NAMED, "FORM = FORM.cast('H')", 'FORM = FORM[::2]', 'FORM.release()')),
    # the standard files
    Deed(_FILES, 'y = y + (1.0 if sys.stdout is OUT else 2.0)', _OF_FILES, odd=True),
    Deed(_FILES, 'y = y + (1.0 if sys.stdout is sys.stderr else 2.0)', _OF_FILES),
    Deed(_FILES, 'y = y + len(sys.stdout.encoding)', _OF_FILES),
    Deed(_FILES, 'w = sys.stdout\ny = y + len(w.encoding) + len(w.errors)', _OF_FILES),
    Deed(_FILES, 'y = y + OUT.line_buffering + 2.0 * OUT.write_through', _OF_FILES, odd=True),
    Deed(_FILES, 'y = y + sys.stdout.isatty() + sys.stdout.closed', _OF_FILES, odd=True),
    Deed(_FILES, 'y = y + len(OUT.encoding) + len(OUT.mode) + OUT.closed', _OF_FILES, odd=True),
    Deed(_FILES, 'y = y + (1.0 if sys.stdout is sys.__stdout__ else 2.0)', _OF_FILES),
    Deed(_FILES, 'print("a line")', _OF_FILES, weight=4),
    Deed(_FILES, 'print("a line", file=sys.stderr)', _OF_FILES),
    Deed(_FILES, 'print("a line", file=TEXT)', _OF_FILES, odd=True),
    Deed(_FILES, 'print("a line", file=OUT, flush=True)', _OF_FILES, odd=True),
    Deed(_FILES, 'sys.stdout.write("a line")', _OF_FILES),
    Deed(_FILES, 'y = y + sys.stdout.write("a line")', _OF_FILES),
    Deed(_FILES, 'try:\n    print("\\xe9\\u20ac")\nexcept UnicodeEncodeError:\n    y = y + 3.0', _OF_FILES, weight=4),
    Deed(_FILES, 'try:\n    print("a line")\nexcept (ValueError, AttributeError, RuntimeError):\n    y = y + 3.0', _OF_FILES, weight=3),
    Deed(_FILES, 'with contextlib.redirect_stdout(TEXT):\n    print("inside")\ny = y + len(TEXT.getvalue())', _OF_FILES, odd=True),
    Deed(_FILES, 'with contextlib.redirect_stdout(io.StringIO()) as f:\n    print("inside")\ny = y + len(f.getvalue())', _OF_FILES, weight=3),
    Deed(_FILES, 'with contextlib.redirect_stderr(OUT):\n    y = y + (1.0 if sys.stderr is sys.stdout else 2.0)', _OF_FILES, odd=True),
    Deed(_FILES, 'try:\n    y = y + TEXT.tell()\nexcept ValueError:\n    y = y + 9.0', _OF_FILES),
    Deed(_FILES, "y = y + (3.0 if hasattr(sys.stdout, 'getvalue') else 4.0)", _OF_FILES),
    Deed(_FILES, "y = y + len(getattr(sys.stdout, 'encoding', None) or 'none')", _OF_FILES),
    Deed(_FILES, 'y = y + (1.0 if type(sys.stdout) is type(OUT) else 2.0)', _OF_FILES, odd=True),
    Deed(_FILES, 'y = y + (1.0 if isinstance(sys.stdout, io.TextIOBase) else 2.0)', _OF_FILES),
    # how errors of numbers are treated, and warnings
    Deed(_ERRORS, _tried('y = y + float((1.0 / NP)[0])'), _OF_ERRORS, weight=4),
    Deed(_ERRORS, _tried('w = np.float64(1.0) / np.float64(0.0)'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = 1.0 / y.get()'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = 1.0 / np.zeros(y.size)'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = np.sqrt(np.array([-1.0]))'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = np.exp(NP * 1e4)'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = np.int32(2147483647) + np.int32(NP.size)'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = NP.astype(np.float16) * np.float16(60000)'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = np.divide(1.0, y.dtype.type(0))'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = np.mean(NP[:0])'), _OF_ERRORS),
    Deed(_ERRORS, _tried('w = NP / 0'), _OF_ERRORS),
    Deed(_ERRORS, 'with np.errstate(all="raise"):\n    ' + _tried('w = 1.0 / NP').replace('\n', '\n    '), _OF_ERRORS, weight=3),
    Deed(_ERRORS, 'with np.errstate(over="warn"):\n    ' + _tried('w = 1.0 / NP').replace('\n', '\n    '), _OF_ERRORS),
    Deed(_ERRORS, _tried('with STATE:\n        w = 1.0 / NP'), _OF_ERRORS, odd=True),
    Deed(_ERRORS, _tried('with np.errstate(call=on_error, divide="call"):\n        w = 1.0 / NP'), _OF_ERRORS),
    Deed(_ERRORS, "y = y + (np.geterr()['divide'] == 'raise') + (np.geterrcall() is on_error)", _OF_ERRORS, odd=True),
    Deed(_ERRORS, "y = y + (cupyx.geterr()['linalg'] == 'raise')", _OF_ERRORS),
    Deed(_ERRORS, 'y = y + cp.linalg.cholesky(cp.eye(2) * 4.0)[0, 0]', _OF_ERRORS),
    Deed(_ERRORS, 'with cupyx.errstate(linalg="ignore"):\n    y = y + cp.linalg.inv(cp.eye(2))[0, 0]', _OF_ERRORS),
    Deed(_ERRORS, _tried("warnings.warn('text')"), _OF_ERRORS, weight=3),
    Deed(_ERRORS, _tried("warnings.warn('text', RuntimeWarning, stacklevel=2)"), _OF_ERRORS),
    Deed(_ERRORS, 'with warnings.catch_warnings():\n    warnings.simplefilter("ignore")\n    ' + _tried('w = 1.0 / NP').replace('\n', '\n    '), _OF_ERRORS),
    Deed(_ERRORS, 'with warnings.catch_warnings(record=True) as caught:\n    w = 1.0 / NP\ny = y + len(caught)', _OF_ERRORS),
    Deed(_ERRORS, 'y = y + len(warnings.filters)', _OF_ERRORS),
    Deed(_ERRORS, 'try:\n    y = y + ~True\nexcept DeprecationWarning:\n    y = y + 7.0', _OF_ERRORS),
    # loggers
    Deed(_LOGGERS, "LOG.info('a step')", _OF_LOGGERS, weight=4),
    Deed(_LOGGERS, "LOG.warning('a step of %s', 2)", _OF_LOGGERS, weight=4),
    Deed(_LOGGERS, "LOG.debug('a step')\nOVER.error('another')", _OF_LOGGERS),
    Deed(_LOGGERS, "LOG.log(15, 'a step')", _OF_LOGGERS),
    Deed(_LOGGERS, "try:\n    raise KeyError(1)\nexcept KeyError:\n    LOG.exception('a step')", _OF_LOGGERS),
    Deed(_LOGGERS, "LOG.critical('a step', extra={'more': 1}, stack_info=False)", _OF_LOGGERS),
    Deed(_LOGGERS, "AD.info('a step')", _OF_LOGGERS, weight=3),
    Deed(_LOGGERS, "AD.warning('a step')", _OF_LOGGERS, weight=3),
    Deed(_LOGGERS, "logging.warning('to the root')", _OF_LOGGERS, weight=3),
    Deed(_LOGGERS, "logging.getLogger('program.a.b').error('a step')", _OF_LOGGERS, weight=3),
    Deed(_LOGGERS, 'y = y + (1.0 if LOG.isEnabledFor(20) else 2.0)', _OF_LOGGERS, weight=3),
    Deed(_LOGGERS, 'y = y + LOG.getEffectiveLevel()', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + LOG.hasHandlers()', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + LOG.level + len(LOG.handlers) + 2 * LOG.propagate', _OF_LOGGERS, weight=3),
    Deed(_LOGGERS, 'y = y + ROOT.level + len(ROOT.handlers)', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + LOG.parent.level + len(LOG.name)', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + AD.isEnabledFor(20) + AD.getEffectiveLevel()', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + (1.0 if logging.root.handlers else 2.0)', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + LOG.manager.disable', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + len(LOG.getChild("c").name)', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + logging.getLogger("program.a").level', _OF_LOGGERS),
    Deed(_LOGGERS, 'y = y + len(logging.getLevelName(LOG.level))', _OF_LOGGERS, odd=True),
    Deed(_LOGGERS, 'if LOG.isEnabledFor(10):\n    LOG.debug("sum %s", float(y.sum()))', _OF_LOGGERS),
    # objects of library classes that take attributes
    Deed(_INSTANCES, 'y = y + COUNTED.most_common(1)[0][1]', _OF_INSTANCES, weight=4),
    Deed(_INSTANCES, 'y = y + ORDERED.get("a") + COUNTED.get("a")', _OF_INSTANCES, weight=3),
    Deed(_INSTANCES, 'y = y + FILLED.get("a") + USER.get("a")', _OF_INSTANCES),
    Deed(_INSTANCES, 'y = y + sum([one.get("a") for one in MADE])', _OF_INSTANCES, weight=2),
    Deed(_INSTANCES, 'y = y + getattr(COUNTED, "first", 1.0) + getattr(ORDERED, "first", 2.0)', _OF_INSTANCES),
    Deed(_INSTANCES, 'y = y + SPACE.a + FLAG.is_set()', _OF_INSTANCES),
    Deed(_INSTANCES, 'COUNTED.last = y * 2.0\nORDERED.count = 3.0', _OF_INSTANCES),
    Deed(_INSTANCES, 'w = collections.Counter("ab")\nw.first = y\nORDERED.made = w', _OF_INSTANCES),
    # containers under two names, changed and changed back
    Deed(_NAMES, 'ONE.append(3.0)\ny = y + len(SAME) + 2 * len(LIKE)\nONE.pop()', _OF_NAMES, weight=4),
    Deed(_NAMES, "PAIRS['a'].append(3.0)\ny = y + len(PAIRS['b']) + len(PLACE.of) + len(SAME)\nPAIRS['a'].pop()", _OF_NAMES, weight=3),
    Deed(_NAMES, 'NP1[1] = 9.0\ny = y + float(NP2[0] + 2.0 * NP2[1])\nNP1[1] = 2.0', _OF_NAMES, weight=3),
    Deed(_NAMES, 'BYTES1[2] = 200\ny = y + (BYTES2[0] + 2.0 * BYTES2[1])\nBYTES1[2] = 99', _OF_NAMES, weight=3),
    Deed(_NAMES, 'PLACE.rate = 3.0\ny = y + getattr(ELSEWHERE, "rate", 1.0)\ndel PLACE.rate', _OF_NAMES, weight=3),
    Deed(_NAMES, "PLACE.values['b'] = 3.0\ny = y + sum(SEEN_IN)\ndel PLACE.values['b']", _OF_NAMES, weight=3),
    # equal containers that are put in their places
    Deed(_NAMES, 'PLACE.of = [*PLACE.of]\ny = y + len(PLACE.of)', (*_OF_NAMES, 'SAME = PLACE.of', 'SAME.append(1.0)', 'SAME.pop()'), weight=2, odd=True),
    Deed(_NAMES, "PAIRS['a'], PAIRS['b'] = PAIRS['b'], PAIRS['a']\ny = y + len(PAIRS['a'])", (*_OF_NAMES, 'ONE.append(1.0)', 'ONE.pop()'), weight=2, odd=True),
    # the collector
    Deed(_COLLECTOR, 'y = y + gc.isenabled()', _OF_COLLECTOR, odd=True),
    Deed(_COLLECTOR, 'y = y + isenabled()', _OF_COLLECTOR, odd=True),
    Deed(_COLLECTOR, 'y = y + sum([ask() for ask in ASKING])', _OF_COLLECTOR, odd=True),
    Deed(_COLLECTOR, 'y = y + LATER()', _OF_COLLECTOR, odd=True),
    Deed(_COLLECTOR, 'gc.disable()\ny = y + gc.isenabled()\ngc.enable()', _OF_COLLECTOR, odd=True),
    Deed(_COLLECTOR, 'timeit.timeit(lambda: 1, number=1)\ny = y + gc.isenabled()', _OF_COLLECTOR, odd=True),
)  # fmt: skip
WEIGHTED_SURROUNDINGS = tuple(one for one in SURROUNDINGS for _ in range(one.weight))
USUAL_SURROUNDINGS = tuple(one for one in WEIGHTED_SURROUNDINGS if not one.odd)

"""What a function does with what it reads, and deeds that need things of their own: streams, generators, threads."""

from __future__ import annotations

from dataclasses import dataclass

#: ``y`` is the array at work, ``x`` the argument, ``{v}`` what is read.
USES_OF_NUMBERS = (
    'y = y * {v} + 1.0',
    'y = y + {v}',
    'y = y + {v}',
    'y = y - float({v})',
    'if {v} > 1.0:\n    y = y - 1.0\nelse:\n    y = y * 0.5',
    'for _ in range(int({v}) % 3):\n    y = y + 1.5',
    'y = cp.where(y > {v}, y, y - 1.0)',
    'y = cp.roll(y, int({v}))',
    "y = y + len(f'{{{v}}}')",
    "y = y + len('{{}}'.format({v}))",
    "y = y + len('%s' % ({v},))",
    'try:\n    y = y * (1.0 / {v})\nexcept ZeroDivisionError:\n    y = y + 3.0',
    'if not {v}:\n    raise ValueError({v})\ny = y + 1.0',
    'w = {v}\ny = y * w if isinstance(w, (int, float)) else y + 1.0',
    'y = y * min({v}, 2.0) if {v} == {v} else y',
    'y[0] = {v}',
    'y[y > 2.0] = {v}',
    'y[x > 1.0] += {v}',
    'y = y + sum([{v} for _ in range(2)])',
    'y = y + math.copysign(1.0, {v})',
    'y = y + {{True: 1.0, False: 2.0}}[{v} == 1.5]',
    'match {v}:\n    case 1.5:\n        y = y + 1.0\n    case bool():\n        y = y - 1.0\n    case _:\n        y = y * 2.0',
    'y = y + sorted([2.0, {v}], key=abs)[0]',
    'y = y.astype(type({v}))',
    'y = y + cp.full((3,), {v})',
    'y = y.clip(None, {v})',
    'y = y + cp.asarray([{v}, 1.0, 2.0])',
    'y = y + math.sqrt(abs({v}))',
    'y = y * max({v}, 0.5) - pow(abs({v}), 0.5)',
)
USES_OF_ARRAYS = (
    'y = y + {v}',
    'y = y * {v} + 1.0',
    'y = cp.where(y > {v}, y, {v})',
    'if float({v}[0]) > 1.0:\n    y = y - 1.0\nelse:\n    y = y * 0.5',
    'y = y + float({v}.sum())',
    'y = cp.maximum(y, {v})',
    'y = y + {v}[cp.argsort({v})]',
    'y[1] = {v}[0]',
    'y = y.copy() @ cp.diag({v})',
    '{v}[...] = y if y.shape == (3,) else 1.0',
    '{v}[0] += 1.0\ny = y + {v}',
    'w = {v}\nw *= 2.0\ny = y + w',
    'w = {v}\nif w[0] > 2.0:\n    w -= 1.0\ny = y + w',
    'w = {v}\nw += 1.0\nif y.ravel()[0] > 2.0:\n    y = y + w',
    'w = {v}\ny = y + (2.0 if w is x else 1.0)',
    'y = y + {v}.size + {v}.ndim',
    'y = y + {v}[::2].sum()',
    'y = y[{v}[0] > 0]',
    'w = {v}\ny = y + int(w.argmax())',
    'w = cp.concatenate([{v}, {v}])\ny = y + w[1:4]',
    'y = y + cp.stack([{v}, {v}]).sum(axis=0)',
)
#: Statements that read nothing besides.
PLAIN = (
    'y = y + 1.0',
    'y = y * 2.0',
    'y = cp.sqrt(cp.abs(y))',
    'y = y - y.mean()',
    'y = y + sum([n for n in (1.0, 2.0)])',
    'if y.ravel()[0] > 2.0:\n    y = y - 2.0',
    'y = y + float(y.sum())',
    'y = y.copy()',
    'y = cp.sort(y)',
    'y = y[::-1]',
    'y = cp.cumsum(y.ravel()).reshape(y.shape)',
    'if y.sum() > 1e6:\n    raise OverflowError("too much")',
    'try:\n    y = y.copy() @ cp.ones(7)\nexcept ValueError:\n    y = y + 0.5',
    'x += 1.0',
    'x[0] = 2.0',
    'x[...] = y if y.shape == x.shape else 2.0',
    'y = y.astype(cp.float32)',
    'y = cp.linalg.norm(y) + y',
    'y = y + max(y.shape)',
    'with np.errstate(divide="ignore"):\n    y = y / 2.0',
    'with cupyx.errstate(linalg="raise"):\n    y = y + 1.0',
    'y = y + math.sqrt(4.0)',
    'y = y + abs(-2.0)',
    'w = float(y.sum())\ny = y / (abs(w) + 1.0) + math.cos(w)',
    'y = y + math.sqrt(cp.abs(y.sum()))',
    'w = y.sum().item()\ny = y * max(w, 1.0) - min(w, 5.0)',
    'w = float(y.max())\ny = y + (w if type(w) is float else 2.0)',
    'try:\n    y = y + math.log(float(y.min()))\nexcept ValueError:\n    y = y + 0.25',
    'w = float(y.sum())\ny = y / (cp.exp(-abs(w) / 9.0) + 1.0)',
    'w = y.sum().item()\ny = y + cp.sqrt(w * w + 1.0)',
    'w = [float(y.max())]\nw.append(w[0] * 0.5)\ny = y * w[1]\nw = np.array(w)\ny = y + len(w)',
    'w = [y.sum().item(), 1.0]\ny = y * w[0]\ny = y + np.array(w)[0]',
    'w = float(y.max())\ny = y * w if not np.isnan(w) else y + 1.0',
    'w = (y, float(y.sum()), 1.0)[0:2]\ny = y * w[1]',
    'y = by_number(y, float(y.sum()))',
    'y = by_number(y, more=y.max().item(), times=2)',
    'y = y + WAY.of(y, float(y.max())) + WAY.of(y, 2)',
    'y = seeing(y, float(y.sum()))',
    'y = y * larger(*map(largest, [y]))',
    'w = ([[largest(y)]] + [[1.0]])[0][0]\ny = y * larger(w)',
    'w = Pair(1.0, 2.0)._replace(first=largest(y))\ny = y * larger(w.first)',
    'y = y + len((1, 2))',
    'if y is x:\n    y = y + 1.0',
)


@dataclass(frozen=True)
class Deed:
    """A deed with all it needs: lines before the function, lines in it, changes between calls, lines around a call.

    ``late``: whether it works on streams, so that the device is to be late. ``after``: what is done in the same step
    behind a call whose result is ``r``. ``odd``: functions with it run eagerly.
    """

    before: str
    body: str
    changes: tuple[str, ...] = ()
    late: bool = False
    after: str = ''
    first: str = ''
    weight: int = 2
    odd: bool = False


DEEDS: tuple[Deed, ...] = (
    # streams and events
    Deed('S1 = cp.cuda.Stream()', 'with S1:\n    y = y * 2.0', late=True, weight=5),
    Deed('S1 = cp.cuda.Stream()', 'with S1:\n    y = y * 2.0\ny = y + 1.0', late=True, weight=5),
    Deed('S1 = cp.cuda.Stream()', 'with S1:\n    y = y * 2.0', late=True, after='with S1:\n    Z = r * 2.0', weight=3),
    Deed('S1 = cp.cuda.Stream()', 'y = y * 2.0', late=True, first='with S1:\n    X[0] += 1.0', weight=2),
    Deed('S1, S2 = cp.cuda.Stream(), cp.cuda.Stream(non_blocking=True)\nE1 = cp.cuda.Event()',
         'with S1:\n    y = y * 2.0\n    E1.record()\nS2.wait_event(E1)\nwith S2:\n    y = y + 1.0\n    E1.record()\n'
         'cp.cuda.get_current_stream().wait_event(E1)', late=True),
    Deed('S2 = cp.cuda.Stream(non_blocking=True)',
         'e = cp.cuda.Event()\ne.record()\nS2.wait_event(e)\nwith S2:\n    y = y * 2.0\n    e.record()\n'
         'cp.cuda.get_current_stream().wait_event(e)', late=True),
    Deed('S2 = cp.cuda.Stream(non_blocking=True)',
         'cp.cuda.get_current_stream().synchronize()\nwith S2:\n    y = y * 2.0\nS2.synchronize()', late=True),
    Deed('S2 = cp.cuda.Stream(non_blocking=True)\nB = cp.ones(3)\ncp.cuda.Device().synchronize()',
         'S2.synchronize()\ny = y + B', late=True, first='with S2:\n    B *= 2.0', after='cp.cuda.Device().synchronize()',
         weight=3),
    Deed('E1 = cp.cuda.Event()\nS2 = cp.cuda.Stream(non_blocking=True)', 'y = y + 1.0\nE1.record()', late=True,
         after='S2.wait_event(E1)\nwith S2:\n    Z = r * 2.0\nS2.synchronize()', weight=3),
    Deed('S2 = cp.cuda.Stream(non_blocking=True)\nB = cp.ones(3)\ncp.cuda.Device().synchronize()',
         'cp.cuda.get_current_stream().synchronize()\nwith S2:\n    B[...] += y[:3].ravel()[:3]', late=True,
         after='with S2:\n    B *= 0.5\nS2.synchronize()', weight=3),
    Deed('E1 = cp.cuda.Event()\nS2 = cp.cuda.Stream(non_blocking=True)\nB = cp.ones(3)\ncp.cuda.Device().synchronize()',
         'cp.cuda.get_current_stream().wait_event(E1)\ny = y + B', late=True,
         first='with S2:\n    B *= 2.0\n    E1.record()', after='cp.cuda.Device().synchronize()', weight=3),
    Deed('', 'y = y * 2.0\nreturn y, cp.cuda.Event()', late=True, after='r[1].record()\nr[1].synchronize()\nR.append(r[1].done)\nr = r[0]', odd=True),
    Deed('', 'e = cp.cuda.Event()\ny = y * 2.0\ne.record()\nreturn y, e', late=True,
         after='r[1].synchronize()\nR.append(r[1].done)\nr = r[0]', weight=3, odd=True),
    Deed('', 's = cp.cuda.Stream()\nwith s:\n    y = y * 2.0', late=True, odd=True),
    Deed('', 'w = cp.cuda.Device(1)\nwith w:\n    v = y * 2.0\n    w.synchronize()\ny = y + v', late=True, weight=3),
    Deed('with cp.cuda.Device(1):\n    B1 = cp.ones(3)\n    cp.cuda.Device(1).synchronize()',
         'with cp.cuda.Device(1):\n    B1[...] *= 2.0\n    cp.cuda.Device(1).synchronize()\ny = y + cp.asarray(B1)', late=True),
    Deed('with cp.cuda.Device(1):\n    B1 = cp.ones(3)\n    cp.cuda.Device(1).synchronize()',
         'with cp.cuda.Device(1):\n    B1[...] += 2.0', late=True,
         after='with cp.cuda.Device(1):\n    B1 *= 0.5\n    cp.cuda.Device(1).synchronize()', weight=4),
    Deed('POOL = cp.cuda.MemoryPool()', 'with cp.cuda.using_allocator(POOL.malloc):\n    y = y * 2.0', weight=4, odd=True),
    # random numbers
    Deed('', 'y = y + cp.random.random(3)[0]', ('cp.random.seed(5)', 'cp.random.set_random_state(cp.random.RandomState(7))',
         'cp.random.random(2)', 'cp.random.reset_states()\ncp.random.seed(3)'), weight=6),
    Deed('GEN = cp.random.default_rng(4)', 'y = y + GEN.random(3)[0]', ('GEN = cp.random.default_rng(9)', 'GEN.random(2)')),
    Deed('STATE = cp.random.RandomState(4)', 'y = y + STATE.uniform(0, 1, 3)[0]', ('STATE.seed(3)',
         'STATE = cp.random.RandomState(5)', 'STATE.uniform(0, 1, 2)')),
    Deed('', 'y = y + cp.random.permutation(4)[0]\nif y.ravel()[0] > 4.0:\n    y = y - 3.0', ('cp.random.seed(5)',)),
    Deed('', 'y = y + random.random()', ('random.seed(5)',), weight=1, odd=True),
    Deed('', 'y = y + np.random.random()', ('np.random.seed(5)',), weight=1, odd=True),
    # what is asked of the outside
    Deed("os.environ['OF_PROGRAM'] = '2'", "y = y + float(os.environ['OF_PROGRAM'])", ("os.environ['OF_PROGRAM'] = '5'",), odd=True),
    Deed("os.environ['OF_PROGRAM'] = '2'", "y = y + float(os.environ.get('OF_PROGRAM', 7))", ("del os.environ['OF_PROGRAM']",), odd=True),
    Deed("os.environ['OF_PROGRAM'] = '2'", "y = y + float(os.getenv('OF_PROGRAM', 7))", ("os.environ['OF_PROGRAM'] = '4'",), odd=True),
    Deed('np.set_printoptions(precision=4)', 'y = y + len(str(np.array(0.123456789)))', ('np.set_printoptions(precision=8)',), odd=True),
    Deed('np.set_printoptions(precision=4)', 'y = y + len(np.array2string(np.array([0.123456789])))',
         ('np.set_printoptions(precision=7)',), odd=True),
    Deed('', 'y = y + len(str(y.ravel()[:1]))', ('np.set_printoptions(precision=3)',), odd=True),
    Deed('', 'y = y + np.array([1.0, 2.0]).sum() + (np.geterr()["divide"] == "raise")', ('np.seterr(divide="raise")',), odd=True),
    Deed('import decimal', 'y = y + float(decimal.Decimal(1) / 3)', ('decimal.getcontext().prec = 3',), odd=True),
    Deed('LOCAL = threading.local()\nLOCAL.first = 2.0', 'y = y + LOCAL.first', ('LOCAL.first = 4.0',), odd=True),
    Deed("CONFIG = configparser.ConfigParser()\nCONFIG.read_string('[a]\\nb = 2')", "y = y + float(CONFIG['a']['b'])",
         ("CONFIG['a']['b'] = '5'",), odd=True),
    Deed('', 'y = y + math.sqrt(4.0)', ('math.sqrt = lambda v: 7.0',)),
    Deed('', 'y = y + abs(-2.0)', ('abs = lambda v: 9.0', 'import builtins; builtins.abs = lambda v: 8.0')),
    Deed('', 'y = y + len((1, 2))', ('def len(v): return 5',)),
    Deed('', 'try:\n    y = y * LATER\nexcept NameError:\n    y = y + 1.0', ('LATER = 3.0', 'LATER = cp.ones(3)'), weight=3),
    Deed('LOOKED = Plain(2.0)', 'try:\n    y = y * LOOKED.later\nexcept AttributeError:\n    y = y + 1.0',
         ('LOOKED.later = 3.0', 'Plain.later = 4.0')),
    Deed('LOOKED = Plain(2.0)', 'for name in vars(LOOKED):\n    y = y + getattr(LOOKED, name)', ('LOOKED.later = 3.0',)),
    Deed('LOOKED = Plain(2.0)', "y = y + (1.0 if hasattr(LOOKED, 'later') else 2.0)", ('LOOKED.later = 3.0',)),
    Deed('', 'y = y + len(dir(side))', ('side.later = 3.0',)),
    Deed('', 'y = y + sum(v for v in vars(side).values() if isinstance(v, float))', ('side.later = 3.0', 'side.more = 2.5')),
    Deed('SWITCH = True', 'y = y + (1.0 if isinstance(2.0, collections.abc.Hashable) else 2.0)',
         ('collections.abc.Sized.register(Plain)',)),
    # threads, refusals that are caught, memory of the host's
    Deed('', 'box = []\ndef more(v=y):\n    if isinstance(v, cp.ndarray):\n        box.append(v * 2.0)\nt = threading.Thread(target=more)\nt.start()\nt.join()\n'
         'y = box[0]', odd=True),
    Deed('COUNTS = cp.zeros(3)', 'def work():\n    COUNTS[...] += 1.0\nt = threading.Thread(target=work)\nt.start()\nt.join()', odd=True),
    Deed('HOST = np.zeros(3)', 'try:\n    y = y + cp.asarray(HOST)\nexcept Exception:\n    y = y * 100.0', ('HOST += 1.0',), odd=True),
    Deed('', 'try:\n    y.set(np.ones(y.shape, y.dtype))\nexcept BaseException:\n    y = y * 100.0', weight=3),
    Deed('', 'try:\n    w = y.get()\n    y = y + float(w.sum())\nexcept Exception:\n    y = y * 100.0', weight=3),
    Deed('', 'try:\n    cp.cuda.runtime.deviceSynchronize()\n    w = cp.asnumpy(x)\n    y = y + w[0]\nexcept Exception:\n'
         '    y = y * 100.0', weight=3),
    Deed('HOST = np.zeros(3)', 'y.ravel()[:3].get(out=HOST)', weight=3, odd=True),
    Deed('HOST = np.zeros(3)', 'HOST[...] = cp.asnumpy(x).ravel()[:3]', odd=True),
    Deed('HOST = np.zeros(3)', 'cp.asnumpy(y.ravel()[:3], out=HOST)\ny = y + cp.asarray(HOST)', ('HOST[0] = 9.0',), weight=3, odd=True),
    Deed('HOSTS = [np.zeros(3)]', 'y.ravel()[:3].get(out=HOSTS[0])', ('HOSTS[0] = np.ones(3)',), odd=True),
    # shapes, bases, identities
    Deed('B = cp.ones((3, 1))', 'y = y + B.sum()\nB.shape = (1, 3)', ('B.shape = (3, 1)', 'B.shape = (3,)'), odd=True),
    Deed('B = cp.ones((3, 1))', 'y = y + B', ('B.shape = (1, 3)', 'B.shape = (3,)'), weight=3),
    Deed('', 'x.shape = (*x.shape, 1)', ('X[0].shape = (3,)',), odd=True),
    Deed('', 'y = y + (1.0 if x.base is None else 2.0)', weight=3, odd=True),
    Deed('', 'y = y + x.flags.owndata', odd=True),
    Deed('B = cp.ones(3)', 'y = y + (1.0 if B.base is None else 2.0) + B.flags.owndata', ('B = cp.ones(9)[:3]',), odd=True),
    Deed('OPTIONS = [1.0]\nKEPT_OPTIONS = [OPTIONS]', 'y = y + (1.0 if OPTIONS is KEPT_OPTIONS[0] else 2.0)', ('OPTIONS = [1.0]',
         'KEPT_OPTIONS[0] = OPTIONS'), odd=True),
    Deed('OPTIONS = [1.0]', 'return y, OPTIONS', after='r = r[0]', weight=3, odd=True),
    Deed('OPTIONS = Plain([1.0])', 'return y, OPTIONS.first', ('OPTIONS.first.append(2.0)',), after='r = r[0]', odd=True),
    Deed('B = cp.ones(3)', 'return y, B', ('B = cp.zeros(3)', 'B += 1.0'), after='r = r[0]', weight=3),
    Deed('B = cp.ones(3)', 'return y, B[1:], x', ('B = cp.zeros(3)', 'B += 1.0'), after='r = r[0]'),
    # what the function changes
    Deed('COUNT = 0', 'global COUNT\nCOUNT += 1', ('COUNT = 5', 'COUNT = 2.5', 'COUNT = True'), weight=3),
    Deed('LOOKED = Plain(2)', 'LOOKED.first += 1', ('LOOKED.first = 7', 'LOOKED.first = 1.5', 'LOOKED = Plain(3)'), weight=3),
    Deed('LOOKED = Plain(2)', 'for n in range(3):\n    LOOKED.first -= n\n    LOOKED.first += 2', ('LOOKED.first = 7',)),
    Deed('LOOKED = Plain(2)', 'LOOKED.first += 1\nif LOOKED.first % 2:\n    y = y + 1.0', ('LOOKED.first = 7',)),
    Deed('LOOKED = Plain(True)', 'LOOKED.first = not LOOKED.first\ny = y + (1.0 if LOOKED.first else 2.0)', ('LOOKED.first = 1',), weight=3),
    Deed('LOOKED = Plain(cp.ones(3))', 'LOOKED.first = y\ny = y + 1.0', (
         'LOOKED.first = X[0]', 'LOOKED.first = BASE[1:4]', 'LOOKED.first = cp.ones(2)', 'LOOKED.first = 2.0', 'LOOKED.first *= 2.0',
         'LOOKED.later = LOOKED.first'), weight=4),
    Deed('LOOKED = Plain(cp.ones(3))', 'LOOKED.first = LOOKED.first * 0.5 + y.ravel()[:3]\ny = y + LOOKED.first[:1]', (
         'LOOKED.first = X[0]', 'LOOKED.first = BASE[1:4]', 'LOOKED.first = cp.ones(2)', 'LOOKED.first = cp.ones(3)',
         'LOOKED.first = X[0][::-1]', 'LOOKED = Plain(cp.zeros(3))'), weight=4),
    Deed('LOOKED = Plain(cp.ones(3))\nLOOKED.later = cp.zeros(3)', 'LOOKED.first[0] += 1.0\n'
         'LOOKED.first, LOOKED.later = LOOKED.later, LOOKED.first\ny = y + LOOKED.first[0]', (
         'LOOKED.later = LOOKED.first', 'LOOKED.later = cp.ones(3)', 'X[0][...] = LOOKED.first', 'LOOKED.later = X[0]'), weight=4),
    Deed('LOOKED = Plain((cp.ones(3), 2.0))', 'LOOKED.first = (LOOKED.first[0] * y.ravel()[0], LOOKED.first[1])\ny = y + LOOKED.first[0][0]', (
         'LOOKED.first = (X[0], 2.0)', 'LOOKED.first = (cp.ones(3), 1.0)'), weight=3),
    Deed("GRADS = {'a': cp.ones(3), 'b': None}", "GRADS['a'] = y * 2.0\nif y.ravel()[0] > 2.0:\n    GRADS['b'] = 3", (
         "GRADS['a'] = X[0]", "GRADS['b'] = None", "GRADS['c'] = 1.0", "GRADS = {'b': None, 'a': cp.ones(3)}"), weight=4),
    Deed("GRADS = {'a': cp.ones(3)}", "GRADS['a'] = GRADS['a'] + y.ravel()[:3]\nreturn y, GRADS['a']", (
         "GRADS['a'] = X[0]", "GRADS['a'] *= 2.0", "GRADS = dict(GRADS)"), after='r[1][0] = 2.0\nr = r[0]', weight=4),
    Deed('ROWS = [cp.ones(3), cp.zeros(3)]', 'ROWS[0], ROWS[1] = ROWS[1], y * 1.0\ny = y + ROWS[0].ravel()[0]', (
         'ROWS[0] = X[0]', 'ROWS.append(2.0)', 'ROWS[1] = ROWS[0]', 'ROWS.reverse()'), weight=3),
    Deed('LOOKED = Plain(cp.ones(3))', 'w = LOOKED.first\nLOOKED.first = y\nw += 1.0\ny = y + w[0]', (
         'LOOKED.first = cp.ones(3)', 'X.append(LOOKED.first)'), weight=3),
    Deed('LOOKED = Plain(cp.ones(3))', 'if LOOKED.first is x:\n    y = y + 5.0\nLOOKED.first = x', ('LOOKED.first = cp.ones(3)',), weight=3),
    Deed('LOOKED = Plain(2.0)', 'LOOKED.count = getattr(LOOKED, "count", 0) + 1', weight=1, odd=True),
    Deed('LOOKED = Plain(2.0)', 'name = "fir" + "st"\nsetattr(LOOKED, name, getattr(LOOKED, name) + 1.0)', weight=1, odd=True),
    Deed('LOOKED = Plain(2.0)', 'LOOKED.last = y', weight=1, odd=True),
    Deed('GONE = []', 'GONE.append(y)', weight=1, odd=True),
    Deed('GONE = {}', 'GONE[len(GONE)] = y', weight=1, odd=True),
    Deed('CACHE = {}', 'if "w" not in CACHE:\n    CACHE["w"] = cp.ones(3) * 2.0\ny = y + CACHE["w"]', ('CACHE.clear()',
         'CACHE["w"] = cp.zeros(3)'), weight=3),
    Deed('@functools.lru_cache(None)\ndef cached(n):\n    return cp.full(3, float(n))', 'y = y + cached(2)',
         ('cached.cache_clear()', 'cached(2)[0] = 9.0'), weight=3, odd=True),
    Deed('B = cp.ones(3)', 'B[...] += 1.0\nif y.ravel()[0] > 2.0:\n    y = y + B', ('B *= 0.5',), weight=4),
    Deed('BOX = weakref.WeakValueDictionary()\nB = cp.ones(3)\nHOLD = Plain(B)\nBOX["b"] = HOLD',
         'BOX["b"].first += 1.0\nif y.ravel()[0] > 2.0:\n    y = y + 1.0', odd=True),
    Deed('B = cp.ones(3)\nVOICE = ValueError(B)', 'VOICE.args[0][...] += 1.0\nif y.ravel()[0] > 2.0:\n    y = y + 1.0',
         ('VOICE.args = (cp.zeros(3),)',), weight=3, odd=True),
    Deed('VOICE = ValueError(2.0)', 'y = y + VOICE.args[0]', ('VOICE.args = (4.0,)',), odd=True),
    Deed('', 'y[y > 1.0] = [7.0]'),
    Deed('', 'y[y.ravel()[:1] > 0] = 5.0'),
    Deed('', 'y[y > 1e9] = "no"'),
    Deed('', 'y[y > 1.0] = 1j'),
    Deed('', 'y[cp.ones(5, bool)] = 1.0'),
    # CuPy takes indices modulo the length: in an axis of length 0 its kernel writes outside of the array.
    Deed('', 'y[[0, 1] if y.size else []] = 3.0'),
    Deed('', 'y = cp.linalg.svd(cp.outer(y.ravel()[:2], y.ravel()[:2]) + cp.eye(2))[1]'),
    Deed('', 'y = y + cp.linalg.eigvalsh(cp.eye(3) * 2.0)'),
    Deed('', 'y = cp.nonzero(y > 1.0)[0] + 0.5'),
    Deed('', 'y = cp.unique(y)'),
)  # fmt: skip
WEIGHTED_DEEDS = tuple(deed for deed in DEEDS for _ in range(deed.weight))
USUAL_DEEDS = tuple(deed for deed in WEIGHTED_DEEDS if not deed.odd)

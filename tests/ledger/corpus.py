"""Programs for the sentences of the guide that say what is launched: three for each, as users of CuPy write them.

A line that begins with ``===`` is a sentence. One that begins with ``---`` is a program: its name, a call, a change
between calls and what is expected; its module follows. A change that names ``n``, the number of the call, is made
before each call, another one once.
"""

from __future__ import annotations

from tests.ledger.harness import Case, cases_of

_TEXT = """
=== The first call of a kind runs eagerly, the second call is recorded, later calls launch the graph.
--- affine | f(m, x + n) | | launched
@ck.graphed
def f(weights, v): return weights @ v + 1
--- softmax | f(m + n) | | launched
@ck.graphed
def f(logits):
    e = cp.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
--- heat | f(m * n) | | launched
@ck.graphed
def f(u):
    for _ in range(3):
        u = u + 0.1 * (cp.roll(u, 1, 0) + cp.roll(u, -1, 0) - 2 * u)
    return u
=== Calls are of one kind if shape, dtype and strides agree, and if all other arguments are equal.
--- two batch sizes | f(cp.ones((2 + n % 2, 3)) * n) | | launched
@ck.graphed
def f(batch): return batch.mean(axis=0)
--- two modes | f(x + n, 'mean' if n % 2 else 'sum') | | launched
@ck.graphed
def f(losses, reduction): return losses.mean() if reduction == 'mean' else losses.sum()
--- two dtypes | f((x + n).astype('f4' if n % 2 else 'f8')) | | launched
@ck.graphed
def f(v): return v * v + 1
=== Arrays may lie anywhere in nested containers.
--- parameters | f({'w': m, 'b': x + n}, x) | | launched
@ck.graphed
def f(params, v): return params['w'] @ v + params['b']
--- layers | f([(m, x), (m, x + n)], x) | | launched
@ck.graphed
def f(layers, v):
    for weights, bias in layers:
        v = cp.maximum(weights @ v + bias, 0)
    return v
--- batch | f((x + n, {'mask': x > 2, 'targets': [x, x * n]})) | | launched
@ck.graphed
def f(batch):
    inputs, more = batch
    return cp.where(more['mask'], inputs - more['targets'][0], more['targets'][1])
=== Sparse matrices and keyword arguments work.
--- sparse product | f(s, x + n) | | eager
# On the simulated device the arrays of a sparse matrix are reached by its methods, too.
s = cupyx.scipy.sparse.csr_matrix(cp.eye(4) * 2)
@ck.graphed
def f(matrix, v): return matrix @ v
--- keyword array | f(x + n, scale=x) | | launched
@ck.graphed
def f(v, *, scale): return v * scale
--- keyword options | f(m + n, axis=0, keepdims=True) | | launched
@ck.graphed
def f(v, axis=None, keepdims=False): return v.sum(axis=axis, keepdims=keepdims)
=== If the function changes an array in place, the caller's array is changed.
--- accumulate | f(total, x + n) | | launched
total = cp.zeros(4)
@ck.graphed
def f(into, v): into += v
--- boundary | f(m, n * x) | | launched
@ck.graphed
def f(u, edge):
    u[0] = edge
    u[1:-1] = 0.5 * (u[:-2] + u[2:])
--- out | f(x, m) | | launched
@ck.graphed
def f(v, weights):
    cp.multiply(v, 0.5, out=v)
    return weights @ v
=== Every launch draws fresh numbers, the same that eager calls would have drawn.
--- dropout | f(x + n) | | launched
@ck.graphed
def f(v): return v * (cp.random.random(v.shape) > 0.5)
--- noise | f(x + n) | | launched
@ck.graphed
def f(v): return v + cp.random.normal(0, 0.1, v.shape)
--- generator | f(x + n) | | launched
rng = cp.random.default_rng(3)
@ck.graphed
def f(v): return v + rng.standard_normal(4)
=== Globals, closures, attributes and defaults that the function reads are compared at each call.
--- global | f(x + n) | rate = 3.0 | launched
rate = 2.0
@ck.graphed
def f(v): return v * rate
--- closure | f(x + n) | f = make(m * 2) | launched
def make(weights): return ck.graphed(lambda v: weights @ v)
f = make(m)
--- attribute | model.forward(x + n) | model.scale = 3.0 | launched
class Model:
    scale = 2.0
    @ck.graphed
    def forward(self, v): return v * self.scale
model = Model()
=== Calls that no capture can hold are made by the host between two graphs.
--- eigh | f(m + m.T + n * cp.eye(4)) | | in parts
@ck.graphed
def f(a):
    values, vectors = cp.linalg.eigh(a)
    return values * 2, abs(vectors)
--- svd | f(m + n) | | in parts
@ck.graphed
def f(a): return cp.linalg.svd(a * 2, compute_uv=False) + 1
--- pinv | f(m, x + n) | | in parts
@ck.graphed
def f(a, b): return cp.linalg.pinv(a) @ b
=== A function that reads a clock stays eager; code that only times itself is recorded.
--- deadline | f(x + n) | | eager
deadline = 4e9
@ck.graphed
def f(v): return v * 2 if time.time() < deadline else v
--- took | f(x + n) | | launched
@ck.graphed
def f(v):
    begun = time.perf_counter()
    v = cp.sqrt(v)
    took = time.perf_counter() - begun
    return v
--- timers | f(x + n) | | launched
@ck.graphed
def f(v):
    times = []
    for _ in range(2):
        begun = time.time()
        v = cp.sin(v)
        times.append(time.time() - begun)
    return v
=== A function that reads files, processes or whatever else lies outside stays eager.
--- open | f(x + n) | | eager
@ck.graphed
def f(v):
    with open(os.devnull) as file:
        return v * (len(file.read()) + 1)
--- exists | f(x + n) | | eager
@ck.graphed
def f(v): return v if os.path.exists('stop_now') else v * 2
--- urandom | f(x + n) | | eager
@ck.graphed
def f(v): return v * len(os.urandom(2))
=== Print prints in eager runs only; where sys.stdout is a file in memory, the function stays eager.
--- a text | f(x + n) | | launched
@ck.graphed
def f(v):
    print('one step')
    return v * 2
--- a shape | f(x + n) | | launched
@ck.graphed
def f(v):
    print(f'{v.shape[0]} rows of', v.dtype)
    return v * 2
--- into memory | f(x + n) | | eager
sys.stdout = io.StringIO()
@ck.graphed
def f(v):
    print('one step')
    return v * 2
=== A number among the arguments may differ at each call, where the function does nothing but arithmetic.
--- step size | f(x, m @ x, 0.1 * n) | | launched
@ck.graphed
def f(v, grad, lr): return v - lr * grad
--- leapfrog | f(x, x + n, 0.1 / (n + 1)) | | launched
@ck.graphed
def f(q, p, dt):
    p = p - 0.5 * dt * q
    return q + dt * p, p
--- threshold | f(x, 0.5 * n) | | launched
@ck.graphed
def f(v, level): return v * (v > level)
=== With a number that decides something or goes into functions, the host computes what the function computes of it.
--- every second | f(x, n) | | in parts
@ck.graphed
def f(v, step):
    if step % 2 == 0:
        v = v / 2
    return v + 1
--- clip | f(x, 0.5 * n) | | in parts
@ck.graphed
def f(v, top): return cp.clip(v, 0, top)
--- helper | f(x, n) | | in parts
def decayed(step, rate=0.1): return math.exp(-rate * step)
@ck.graphed
def f(v, step): return v * decayed(step)
=== If the number goes anywhere else, each value is a kind of its own.
--- rounds | f(x, n + 1) | | eager
@ck.graphed
def f(v, rounds):
    for _ in range(rounds):
        v = v * 0.5 + 1
    return v
--- index | f(cp.arange(20.0), n) | | eager
@ck.graphed
def f(v, i): return v[i] * 2
--- in a text | f(x, n) | | eager
@ck.graphed
def f(v, i): return {f'step {i}': v * 2}
=== A value by which the host decides is an assumption; each way that was taken is a variant.
--- clipped gradient | f(x * (10.0 if n % 2 else 0.01)) | | launched
@ck.graphed
def f(grad):
    norm = cp.linalg.norm(grad)
    return grad / norm if norm > 1 else grad * 2
--- mask | f(x + n, x > 2) | | launched
@ck.graphed
def f(v, mask): return v[mask] * 2
--- count | f(x + n) | | launched
@ck.graphed
def f(v):
    count = int((v > 0).sum())
    return cp.arange(count) * 2
=== A value that the function only keeps is copied at each launch.
--- costs | f(x + n) | | launched
costs = []
@ck.graphed
def f(v):
    costs.append(float(cp.linalg.norm(v)))
    return v * 2
--- loss | f(x + n) | | launched
@ck.graphed
def f(v):
    loss = ((v - 1) ** 2).mean()
    return v * 0.9, float(loss)
--- on the host | f(x + n) | | launched
@ck.graphed
def f(v): return (v * 2).get()
=== If the value is also compared with a number that stays, only the outcome is an assumption.
--- tolerance | f(x + n) | | launched
@ck.graphed
def f(v, tol=1e-6):
    error = float(abs(v).max())
    if error < tol:
        return v, error
    return v * 0.9, error
--- not a number | f(x + n) | | launched
@ck.graphed
def f(v):
    loss = float(v.sum())
    if np.isnan(loss):
        raise FloatingPointError('diverged')
    return v * 0.9, loss
--- best | f(x + n) | | launched
LIMIT = 1e9
@ck.graphed
def f(v):
    cost = v.sum().item()
    if cost > LIMIT:
        v = v / 2
    return v * 2, cost
=== Where it computes with a value that the host reads, each launch computes with the value that it finds.
--- alpha | f(m + 4 * cp.eye(4), x + n) | | in parts
@ck.graphed
def f(a, p):
    ap = a @ p
    alpha = float(p @ p) / float(p @ ap)
    return p - alpha * ap
--- normalized | f(x + n) | | in parts
@ck.graphed
def f(v): return v / float(cp.linalg.norm(v))
--- standard deviation | f(x * (n + 1)) | | in parts
@ck.graphed
def f(v):
    variance = ((v - v.mean()) ** 2).mean().item()
    return v / math.sqrt(variance + 1)
=== The number may be given to abs, max, min, and functions of math and CuPy, but not of NumPy.
--- at least | f(x + n) | | in parts
@ck.graphed
def f(v): return v / max(float(v.sum()), 1e-8)
--- decay by NumPy | f(x + n) | | eager
@ck.graphed
def f(v): return v * np.exp(-v.mean().item() / 2)
--- floor by CuPy | f(x + n) | | in parts
@ck.graphed
def f(v):
    level = float(v.mean())
    return cp.maximum(v, level)
=== It may be put into a list or a dict and taken out again, and passed to a function of yours.
--- in a dict | f(x + n) | | in parts
@ck.graphed
def f(v):
    stats = {'mean': float(v.mean())}
    return v - stats['mean']
--- in a list | f(x + n) | | in parts
@ck.graphed
def f(v):
    sums = []
    sums.append(float(v.sum()))
    return v * sums[0]
--- to a helper | f(x + n) | | in parts
def scaled(v, by): return v * (0.5 * by)
@ck.graphed
def f(v): return scaled(v, float(v.max()))
=== Anything else makes the value itself an assumption.
--- rounds read | f(x + n) | | eager
@ck.graphed
def f(v):
    for _ in range(int(v.min())):
        v = v * 0.5
    return v
--- index read | f(x + n) | | eager
@ck.graphed
def f(v): return cp.arange(20.0)[int(v[0])] * v
--- rounded | f(x + n) | | eager
@ck.graphed
def f(v): return v * round(float(v.mean()), 1)
=== Each launch makes the same change of Python state again, with this call's arrays.
--- momentum | opt.step(x + n) | | launched
class Momentum:
    velocity = cp.zeros(4)
    @ck.graphed
    def step(self, grad):
        self.velocity = 0.9 * self.velocity + grad
        return -0.1 * self.velocity
opt = Momentum()
--- swap | wave.step() | | launched
class Wave:
    def __init__(self): self.old, self.new = cp.ones(4), cp.ones(4) * 2
    @ck.graphed
    def step(self): self.old, self.new = self.new, 2 * self.new - self.old
wave = Wave()
--- gradients | f(x + n) | | launched
grads, losses, counts = {}, [], {'steps': 0}
@ck.graphed
def f(v):
    grads['w'] = 2 * v
    losses.append((v * v).sum())
    counts['steps'] += 1
=== An attribute, a global or a variable may also get a list, a dict or an object that the call makes.
--- result object | model.fit(x + n) | | launched
class Result:
    def __init__(self, weights): self.weights = weights
class Model:
    @ck.graphed
    def fit(self, v): self.result_ = Result(v / v.sum())
model = Model()
--- list | model.forward(x + n) | | launched
class Model:
    @ck.graphed
    def forward(self, v):
        self.cache = [v * 2, cp.tanh(v)]
        return self.cache[1]
model = Model()
--- global dict | f(x + n) | | launched
last = None
@ck.graphed
def f(v):
    global last
    last = {'mean': v.mean(), 'max': v.max()}
=== Other numbers in attributes are computed anew at each launch, but not those in items of dicts.
--- running mean | stats.add(x + n) | | in parts
class Running:
    def __init__(self): self.n, self.mean = 0, cp.zeros(4)
    @ck.graphed
    def add(self, v):
        self.n += 1
        self.mean += (v - self.mean) / self.n
stats = Running()
--- Adam | opt.step(x + n) | | in parts
class Adam:
    def __init__(self): self.t, self.m, self.v = 0, cp.zeros(4), cp.zeros(4)
    @ck.graphed
    def step(self, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.99 * self.v + 0.01 * g * g
        return 0.1 * math.sqrt(1 - 0.99**self.t) / (1 - 0.9**self.t) * self.m / (cp.sqrt(self.v) + 1e-8)
opt = Adam()
--- decayed rate | f(x + n) | | eager
state = {'lr': 0.1}
@ck.graphed
def f(v):
    state['lr'] = state['lr'] * 0.9
    return v * state['lr']
=== The same holds for numbers there that others change at nearly each call, as schedulers do.
--- scheduler | opt.step(x) | opt.lr = 0.1 / (n + 1) | in parts
class Sgd:
    lr = 0.1
    def __init__(self): self.lr = 0.1
    @ck.graphed
    def step(self, grad): return -self.lr * grad
opt = Sgd()
--- settings by a scheduler | f(x) | settings['lr'] = 0.1 * 0.9**n | eager
settings = {'lr': 0.1}
@ck.graphed
def f(grad): return -settings['lr'] * grad
--- temperature | model(x) | model.temperature = 1.0 + n / 4 | in parts
class Model:
    def __init__(self): self.temperature = 1.0
    @ck.graphed
    def __call__(self, logits): return cp.exp(logits / self.temperature)
model = Model()
=== Where such a number decides which way a call goes, each way has a recording.
--- every second step | model.step(x + n) | | in parts
class Model:
    def __init__(self): self.n = 0
    @ck.graphed
    def step(self, v):
        self.n += 1
        return v * 2 if self.n % 2 == 0 else v
model = Model()
--- warm up | model.step(x + n) | | in parts
class Model:
    def __init__(self): self.n = 0
    @ck.graphed
    def step(self, v):
        self.n += 1
        return v * 0.1 if self.n < 3 else v
model = Model()
--- flag | model.step(x + n) | | launched
class Model:
    def __init__(self): self.red = False
    @ck.graphed
    def step(self, v):
        self.red = not self.red
        return v * 2 if self.red else v * 3
model = Model()
=== Any other change keeps the function eager.
--- insert | f(x + n) | | eager
calls = []
@ck.graphed
def f(v):
    calls.insert(0, 1)
    return v * 2
--- deque | f(x + n) | | eager
window = collections.deque(maxlen=3)
@ck.graphed
def f(v):
    window.append(v.sum())
    return v * 2
--- seen | f(x + n) | | eager
seen = set()
@ck.graphed
def f(v):
    seen.add(len(seen))
    return v * 2
=== With pure=True functions are recorded that would stay eager.
--- promised | f(x + n) | | launched
@ck.graphed(pure=True)
def f(v): return v * 2 if time.time() > 0 else v
--- promised files | f(x + n) | | launched
@ck.graphed(pure=True)
def f(v): return v if os.path.exists('stop_now') else v * 2
--- promised size | f(x + n) | | launched
@ck.graphed(pure=True)
def f(v): return v * len(os.urandom(2))
"""

#: All of them.
CORPUS: list[Case] = cases_of(_TEXT)

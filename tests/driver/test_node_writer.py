"""Nodes of the driver's given something else. The driver is a small one with the structures of CUDA's header, compiled
here; what an executable graph does is kept beside what its definition has, so that both can be looked at."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from capturekit.driver.cuda import CudaDevice
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_reader import Reader
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

DRIVER = """
#include <stddef.h>
#include <string.h>

typedef struct { const char* name; size_t count; size_t offsets[8]; size_t sizes[8]; } Function;
typedef struct {
    void* func;
    unsigned int grid[3], block[3], shared;
    void** kernelParams;
    void** extra;
    void* kern;
    void* ctx;
} Params;
typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD; int srcMemoryType; const void* srcHost; unsigned long long srcDevice;
    void* srcArray; void* reserved0; size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD; int dstMemoryType; void* dstHost; unsigned long long dstDevice;
    void* dstArray; void* reserved1; size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} Memcpy;
typedef struct { unsigned long long dst; size_t pitch; unsigned int value, elementSize; size_t width, height; } Memset;
typedef struct { void (*fn)(void*); void* user; } Host;
typedef struct { int result; void* node; void* source; } Result;

struct Graph;
typedef struct { Params kernel; char data[128]; void* args[8]; Memcpy copy; Memset set; Host host; void* event; } Has;
typedef struct Node { int kind; struct Graph* child; Has has; Has runs; unsigned int enabled; } Node;
typedef struct Graph { size_t count; Node* nodes[4]; } Graph;

Function fill = {"cupy_multiply__float64_float_float64", 3, {0, 32, 40}, {32, 8, 32}};
Node made[8];
Graph graphs[4];
int refuse = 0, last_exec = 0, result = 0, answer = 0;
void* context = (void*)77;

static void keep(Has* to, const Params* of)
{
    char data[128];
    const Function* f = of->func;
    for (size_t i = 0; i < f->count; i++) memcpy(data + f->offsets[i], of->kernelParams[i], f->sizes[i]);
    to->kernel = *of;
    memcpy(to->data, data, sizeof data);
    for (size_t i = 0; i < f->count; i++) to->args[i] = to->data + f->offsets[i];
    to->kernel.kernelParams = to->args;
}
void begin(void)
{
    memset(made, 0, sizeof made);
    memset(graphs, 0, sizeof graphs);
    refuse = result = answer = 0;
    int kinds[] = {0, 1, 2, 3, 6, 7, 4, 0};
    for (int i = 0; i < 8; i++) { made[i].kind = kinds[i]; made[i].enabled = 1; }
    for (int i = 0; i < 8; i += 7) {
        double two = 2;
        char array[32] = {0};
        void* args[] = {array, &two, array};
        Params p = {&fill, {1, 1, 1}, {128, 1, 1}, 0, args, 0, 0, 0};
        keep(&made[i].has, &p);
    }
    Memcpy c = {0};
    c.srcMemoryType = 1; c.srcHost = (void*)0x1000; c.dstMemoryType = 2; c.dstDevice = 0x7f0000000000;
    c.WidthInBytes = 64; c.Height = 1; c.Depth = 1;
    made[1].has.copy = c;
    Memset s = {0x7f0000000100, 0, 5, 4, 16, 1};
    made[2].has.set = s;
    made[4].has.event = (void*)1; made[5].has.event = (void*)2;
    made[6].child = &graphs[1];
    graphs[1].count = graphs[2].count = 1;
    graphs[1].nodes[0] = &made[7];
}
static void settle(Has* has)
{
    const Function* f = has->kernel.func;
    for (size_t i = 0; f && i < f->count; i++) has->args[i] = has->data + f->offsets[i];
    has->kernel.kernelParams = has->args;
}
void exchange(Node* n)
{
    Has has = n->has;
    n->has = n->runs;
    n->runs = has;
    settle(&n->has);
    settle(&n->runs);
}
int cuGraphGetNodes(Graph* g, Node** to, size_t* count)
{
    if (to) for (size_t i = 0; i < g->count; i++) to[i] = g->nodes[i];
    *count = g->count;
    return 0;
}
int cuGraphNodeGetType(Node* n, int* kind) { *kind = n->kind; return 0; }
int cuFuncGetName(const char** name, Function* f) { *name = f->name; return 0; }
int cuFuncGetParamInfo(Function* f, size_t i, size_t* offset, size_t* size)
{
    if (i >= f->count) return 1;
    *offset = f->offsets[i]; *size = f->sizes[i];
    return 0;
}
int cuGraphKernelNodeGetParams_v2(Node* n, Params* p) { if (n->kind) return 1; *p = n->has.kernel; return 0; }
int cuGraphKernelNodeSetParams_v2(Node* n, const Params* p) { if (n->kind) return 1; keep(&n->has, p); return 0; }
int cuGraphExecKernelNodeSetParams_v2(int x, Node* n, const Params* p)
{
    last_exec = x;
    if (refuse) return refuse;
    keep(&n->runs, p);
    return 0;
}
int cuCtxGetCurrent(void** to) { *to = context; return 0; }
#define PLAIN(NAME, TYPE, FIELD, KIND) \\
    int cuGraph##NAME##NodeGetParams(Node* n, TYPE* p) \\
    { if (n->kind != KIND) return 1; *p = n->has.FIELD; return 0; } \\
    int cuGraph##NAME##NodeSetParams(Node* n, const TYPE* p) \\
    { if (n->kind != KIND) return 1; n->has.FIELD = *p; return 0; }
PLAIN(Memcpy, Memcpy, copy, 1)
PLAIN(Memset, Memset, set, 2)
PLAIN(Host, Host, host, 3)
int cuGraphExecMemcpyNodeSetParams(int x, Node* n, const Memcpy* p, void* c)
{
    last_exec = x;
    if (refuse || c != context) return refuse;
    n->runs.copy = *p;
    return 0;
}
int cuGraphExecMemsetNodeSetParams(int x, Node* n, const Memset* p, void* c)
{
    last_exec = x;
    if (refuse || c != context) return refuse;
    n->runs.set = *p;
    return 0;
}
int cuGraphExecHostNodeSetParams(int x, Node* n, const Host* p) { last_exec = x; n->runs.host = *p; return refuse; }
#define EVENT(NAME, KIND) \\
    int cuGraphEvent##NAME##NodeGetEvent(Node* n, void** e) \\
    { if (n->kind != KIND) return 1; *e = n->has.event; return 0; } \\
    int cuGraphEvent##NAME##NodeSetEvent(Node* n, void* e) \\
    { if (n->kind != KIND) return 1; n->has.event = e; return 0; } \\
    int cuGraphExecEvent##NAME##NodeSetEvent(int x, Node* n, void* e) \\
    { if (n->kind != KIND) return 1; last_exec = x; n->runs.event = e; return 0; }
EVENT(Wait, 6)
EVENT(Record, 7)
int cuGraphChildGraphNodeGetGraph(Node* n, Graph** to) { if (n->kind != 4) return 1; *to = n->child; return 0; }
int cuGraphExecChildGraphNodeSetParams(int x, Node* n, Graph* g)
{
    last_exec = x;
    n->runs.event = g;
    return refuse;
}
int cuGraphNodeSetEnabled(int x, Node* n, unsigned int on)
{
    if (n->kind > 2) return 1;
    last_exec = x;
    n->enabled = on;
    return 0;
}
int cuGraphNodeGetEnabled(int x, Node* n, unsigned int* on) { *on = n->enabled; return 0; }
int cuGraphExecUpdate_v2(int x, Graph* g, Result* to)
{
    last_exec = x;
    to->result = result; to->node = result ? g->nodes[0] : 0; to->source = 0;
    return answer;
}
int cuPointerGetAttribute(unsigned int* to, int what, unsigned long long address)
{
    if (what != 2 || address < 0x10000) return 1;
    *to = address < 0x7f0000000000 ? 1 : 2;
    return 0;
}
"""

KERNEL, COPY, SET, HOST, WAIT, RECORD, CHILD, INNER = range(8)
EXEC = 0x55


class _Node(ctypes.Structure):
    _fields_ = [('kind', ctypes.c_int), ('child', ctypes.c_void_p)]


class Driver:
    """The small driver, as it is at first."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.library.begin()
        self.reader, self.device = Reader(), object.__new__(CudaDevice)
        self.device._reader = self.reader
        self.size = ctypes.c_int.in_dll(self.library, 'last_exec')
        self._base = ctypes.addressof(_Node.in_dll(self.library, 'made'))

    def int(self, name: str) -> Any:
        return ctypes.c_int.in_dll(self.library, name)

    def node(self, number: int) -> int:
        """A node's handle. A node is as large as a graph's first inner node says."""
        graph = self.graph(1)
        return self._base + number * ((self.reader.handles(graph)[0] - self._base) // INNER)

    def graph(self, number: int) -> int:
        return ctypes.addressof(ctypes.c_byte.in_dll(self.library, 'graphs')) + number * 40


@pytest.fixture
def driver(libcuda: str) -> Driver:
    return Driver(libcuda)


def took(driver: Driver, number: int) -> Any:
    """What an executable graph's node does after it took over what the definition has."""
    node = driver.node(number)
    driver.device.node_take(EXEC, node, 0, node)
    assert driver.int('last_exec').value == EXEC
    driver.library.exchange(ctypes.c_void_p(node))
    if number == KERNEL:
        args = [one.data for one in driver.device.node_arguments(0, node)]
    told = driver.reader.info(node).detail
    driver.library.exchange(ctypes.c_void_p(node))
    if number == KERNEL:
        assert args == [one.data for one in driver.device.node_arguments(0, node)]
    return told


def test_arguments_of_a_kernel_of_cupy_s(driver: Driver) -> None:
    array = Argument(bytes(32), 'float64', True)
    scalar = Argument(struct.pack('d', 2), 'float64', False)
    assert driver.device.node_arguments(0, driver.node(KERNEL)) == [array, scalar, array]


def test_a_kernel(driver: Driver) -> None:
    node = driver.node(KERNEL)
    new = [b'a' * 32, struct.pack('d', 7), b'b' * 32]
    change = driver.device.set_kernel(0, node, (3, 2, 1), (64, 2, 1), 512, new)
    assert [one.data for one in driver.device.node_arguments(0, node)] == new
    assert took(driver, KERNEL) == {'grid': (3, 2, 1), 'block': (64, 2, 1), 'shared': 512}
    change.undo()
    assert [one.data for one in driver.device.node_arguments(0, node)] == [bytes(32), struct.pack('d', 2), bytes(32)]
    assert took(driver, KERNEL) == {'grid': (1, 1, 1), 'block': (128, 1, 1), 'shared': 0}


def test_a_copy(driver: Driver) -> None:
    node = driver.node(COPY)
    change = driver.device.set_memcpy(0, node, 0x7F0000000800, 0x20000, 32)
    assert took(driver, COPY) == {'dst': 0x7F0000000800, 'src': 0x20000, 'bytes': 32}
    for ends in ((0x20000, 0x20000), (0x7F0000000800, 0x7F0000000800), (0x1000, 0x1000)):
        with pytest.raises(CudaCallError) as info:
            driver.device.set_memcpy(0, node, *ends, 32)
        assert info.value.code == Code.cudaErrorInvalidValue
    assert took(driver, COPY) == {'dst': 0x7F0000000800, 'src': 0x20000, 'bytes': 32}
    change.undo()
    assert took(driver, COPY) == {'dst': 0x7F0000000000, 'src': 0x1000, 'bytes': 64}


def test_a_memset(driver: Driver) -> None:
    node = driver.node(SET)
    change = driver.device.set_memset(0, node, 0x7F0000000900, 9, 32)
    assert took(driver, SET) == {'dst': 0x7F0000000900, 'value': 9, 'bytes': 32}
    with pytest.raises(CudaCallError):
        driver.device.set_memset(0, node, 0x7F0000000900, 9, 33)
    change.undo()
    assert took(driver, SET) == {'dst': 0x7F0000000100, 'value': 5, 'bytes': 64}


def test_a_host_function(driver: Driver) -> None:
    called: list[int] = []
    change = driver.device.set_host(0, driver.node(HOST), lambda: called.append(1))
    took(driver, HOST)
    change.keep(None)
    assert called == [1]
    change.undo()


def test_events(driver: Driver) -> None:
    for number in (WAIT, RECORD):
        change = driver.device.set_event(0, driver.node(number), 0x99)
        took(driver, number)
        change.undo()
    with pytest.raises(CudaCallError):
        driver.device.set_event(0, driver.node(KERNEL), 0x99)


def test_a_child_graph(driver: Driver) -> None:
    driver.device.set_kernel(0, driver.node(KERNEL), (9, 1, 1), (1, 1, 1), 0, [bytes(32), bytes(8), bytes(32)])
    other = driver.graph(2)
    ctypes.c_void_p.from_address(other + 8).value = driver.node(KERNEL)
    driver.device.set_child(0, driver.node(CHILD), other)
    assert driver.reader.info(driver.node(INNER)).detail['grid'] == (9, 1, 1)
    driver.device.child_take(EXEC, driver.node(CHILD), other)
    ctypes.c_void_p.from_address(other + 8).value = driver.node(SET)
    with pytest.raises(CudaCallError) as info:
        driver.device.set_child(0, driver.node(CHILD), other)
    assert info.value.code == Code.cudaErrorGraphExecUpdateFailure
    took(driver, CHILD)


def test_a_refusal_of_the_driver_s_has_its_code(driver: Driver) -> None:
    driver.int('refuse').value = 1
    with pytest.raises(CudaCallError) as info:
        driver.device.node_take(EXEC, driver.node(KERNEL), 0, driver.node(KERNEL))
    assert info.value.code is Code.cudaErrorInvalidValue and 'cuGraphExecKernelNodeSetParams' in str(info.value)
    driver.int('refuse').value = 31337
    with pytest.raises(CudaCallError) as info:
        driver.device.node_take(EXEC, driver.node(COPY), 0, driver.node(COPY))
    assert info.value.code == 31337


def test_nodes_are_disabled(driver: Driver) -> None:
    node = driver.node(SET)
    driver.device.node_enable(EXEC, node, False)
    assert not driver.device.node_enabled(EXEC, node)
    driver.device.node_enable(EXEC, node, True)
    assert driver.device.node_enabled(EXEC, node)
    with pytest.raises(CudaCallError):
        driver.device.node_enable(EXEC, driver.node(HOST), False)


@pytest.mark.parametrize(
    ('result', 'reason'),
    [(2, 'topology changed'), (5, 'parameters changed'), (8, 'attributes changed'), (99, 'result 99')],
)
def test_a_refused_update_says_why_and_where(driver: Driver, result: int, reason: str) -> None:
    graph = driver.graph(1)
    assert driver.device.graph_exec_update(EXEC, graph) == ('', 0)
    assert driver.int('last_exec').value == EXEC
    driver.int('answer').value, driver.int('result').value = 910, result
    assert driver.device.graph_exec_update(EXEC, graph) == (reason, driver.node(INNER))
    driver.int('answer').value = 1
    with pytest.raises(CudaCallError):
        driver.device.graph_exec_update(EXEC, graph)

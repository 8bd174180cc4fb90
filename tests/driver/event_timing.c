#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 512, EDGES = 1024, EVENT_RECORD = 7 };
typedef struct { double at; int recorded; } Event;
typedef struct Node { int kind; double cost; struct Node* of; Event* event; double end; int done, off; } Node;
typedef struct {
    int count, edges, running;
    Node* nodes[NODES];
    Node *from[EDGES], *to[EDGES];
    unsigned long long data[EDGES];
} Graph;

double now, mark_cost, launch_cost;
int events, graphs, executables, running, calls, fail_at, launches, enabled;
size_t flags_seen;

static int failing(void) { return ++calls == fail_at ? 2 : 0; }
void begin(double mark, double launch)
{
    now = 1e6; mark_cost = mark; launch_cost = launch;
    events = graphs = executables = running = calls = fail_at = launches = enabled = 0;
}

/* what a test makes */
Graph* make(void) { return calloc(1, sizeof(Graph)); }
Node* node(Graph* g, int kind, double cost)
{
    Node* n = calloc(1, sizeof(Node));
    n->kind = kind; n->cost = cost;
    return g->nodes[g->count++] = n;
}
void edge(Graph* g, Node* a, Node* b, unsigned long long data)
{
    g->from[g->edges] = a; g->to[g->edges] = b; g->data[g->edges++] = data;
}

/* what the device's verbs call */
int clone(Graph* g, Graph** to)
{
    if (failing()) return 2;
    Graph* c = make();
    for (int i = 0; i < g->count; i++) node(c, g->nodes[i]->kind, g->nodes[i]->cost)->of = g->nodes[i];
    for (int e = 0; e < g->edges; e++) {
        int a = 0, b = 0;
        while (g->nodes[a] != g->from[e]) a++;
        while (g->nodes[b] != g->to[e]) b++;
        edge(c, c->nodes[a], c->nodes[b], g->data[e]);
    }
    graphs++;
    *to = c;
    return 0;
}
int destroy(Graph* g) { graphs--; return failing(); }
int instantiate(Graph* g, Graph** x) { if (failing()) return 2; executables++; *x = g; return 0; }
int destroy_executable(Graph* x) { executables--; return failing(); }
int enable(Graph* x, Node* n, int on) { if (failing()) return 2; n->off = !on; enabled++; return 0; }
int upload(Graph* x) { return failing(); }
int synchronize(void) { running = 0; return failing(); }
int launch(Graph* x)
{
    if (failing()) return 2;
    double start = now + launch_cost, last = start;
    int left = x->count;
    for (int i = 0; i < x->count; i++) x->nodes[i]->done = 0;
    while (left)
        for (int i = 0; i < x->count; i++) {
            Node* n = x->nodes[i];
            int ready = !n->done;
            double at = start;
            for (int e = 0; e < x->edges; e++)
                if (x->to[e] == n) { ready &= x->from[e]->done; if (x->from[e]->end > at) at = x->from[e]->end; }
            if (!ready) continue;
            n->end = at + (n->off ? 0 : n->event ? mark_cost : n->cost);
            if (n->event) { n->event->at = n->end; n->event->recorded = 1; }
            if (n->end > last) last = n->end;
            n->done = 1;
            left--;
        }
    now = last;
    running = 1;
    launches++;
    return 0;
}

/* the driver's own */
int cuGraphKernelNodeGetParams_v2(Node* n, void* params) { return 1; }
int cuGraphGetNodes(Graph* g, Node** to, size_t* count)
{
    if (to) memcpy(to, g->nodes, *count * sizeof *to);
    *count = g->count;
    return 0;
}
int cuGraphNodeGetType(Node* n, int* kind) { *kind = n->kind; return 0; }
int cuGraphNodeFindInClone(Node** to, Node* n, Graph* c)
{
    if (failing()) return 2;
    for (int i = 0; i < c->count; i++) if (c->nodes[i]->of == n) { *to = c->nodes[i]; return 0; }
    return 1;
}
int cuGraphGetEdges_v2(Graph* g, Node** from, Node** to, unsigned long long* data, size_t* count)
{
    if (failing()) return 2;
    if (from) {
        memcpy(from, g->from, *count * sizeof *from);
        memcpy(to, g->to, *count * sizeof *to);
        memcpy(data, g->data, *count * sizeof *data);
    }
    *count = g->edges;
    return 0;
}
int cuGraphRemoveDependencies_v2(Graph* g, Node** from, Node** to, const unsigned long long* data, size_t count)
{
    if (failing()) return 2;
    for (size_t i = 0; i < count; i++) {
        int e = 0;
        while (e < g->edges && (g->from[e] != from[i] || g->to[e] != to[i] || g->data[e] != data[i])) e++;
        if (e == g->edges) return 1;
        g->edges--;
        g->from[e] = g->from[g->edges]; g->to[e] = g->to[g->edges]; g->data[e] = g->data[g->edges];
    }
    return 0;
}
int cuGraphAddDependencies_v2(Graph* g, Node** from, Node** to, const unsigned long long* data, size_t count)
{
    if (failing()) return 2;
    for (size_t i = 0; i < count; i++) {
        for (int e = 0; e < g->edges; e++) if (g->from[e] == from[i] && g->to[e] == to[i]) return 1;
        edge(g, from[i], to[i], data[i]);
    }
    return 0;
}
int cuGraphAddEventRecordNode(Node** to, Graph* g, Node* const* after, size_t count, Event* e)
{
    if (failing()) return 2;
    Node* n = node(g, EVENT_RECORD, 0);
    n->event = e;
    for (size_t i = 0; i < count; i++) edge(g, after[i], n, 0);
    *to = n;
    return 0;
}
int cuEventCreate(Event** to, unsigned int flags)
{
    if (failing()) return 2;
    if (flags) return 1;
    events++;
    *to = calloc(1, sizeof(Event));
    return 0;
}
int cuEventDestroy_v2(Event* e) { events--; return failing(); }
int cuEventRecord(Event* e, size_t stream)
{
    if (failing()) return 2;
    if (stream != 0x1100) return 400;
    e->at = now; e->recorded = 1;
    return 0;
}
int cuEventElapsedTime(float* to, Event* a, Event* b)
{
    if (failing()) return 2;
    if (running) return 600;
    if (!a->recorded || !b->recorded) return 400;
    *to = (b->at - a->at) / 1e3;
    return 0;
}

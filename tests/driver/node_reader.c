#include <stddef.h>

typedef struct { const char* name; size_t count; size_t* offsets; size_t* sizes; int of_library; } Function;
typedef struct { int kind; Function* func; Function* kern; void** args; } Node;
typedef struct { size_t count; Node** nodes; } Graph;

typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
    void* func;
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void** kernelParams;
    void** extra;
    void* kern;
    void* ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;

int asked = 0;

int cuGraphGetNodes(Graph* graph, Node** nodes, size_t* count)
{
    if (nodes) for (size_t i = 0; i < *count && i < graph->count; i++) nodes[i] = graph->nodes[i];
    *count = graph->count;
    return 0;
}
int cuGraphKernelNodeGetParams_v2(Node* node, CUDA_KERNEL_NODE_PARAMS_v2* params)
{
    if (node->kind != 0) return 1;
    params->func = node->func;
    params->gridDimX = params->blockDimZ = params->sharedMemBytes = 0xFFFFFFFF;
    params->kernelParams = node->args;
    params->extra = 0;
    params->kern = node->kern;
    params->ctx = (void*)-1;
    return 0;
}
static int name_of(const char** name, Function* function) { asked++; *name = function->name; return 0; }
static int info_of(Function* function, size_t index, size_t* offset, size_t* size)
{
    if (index >= function->count) return 1;
    *offset = function->offsets[index];
    *size = function->sizes[index];
    return 0;
}
int cuFuncGetName(const char** name, Function* f) { return f->of_library ? 400 : name_of(name, f); }
int cuKernelGetName(const char** name, Function* f) { return f->of_library ? name_of(name, f) : 400; }
int cuFuncGetParamInfo(Function* f, size_t index, size_t* offset, size_t* size)
{
    return f->of_library ? 400 : info_of(f, index, offset, size);
}
int cuKernelGetParamInfo(Function* f, size_t index, size_t* offset, size_t* size)
{
    return f->of_library ? info_of(f, index, offset, size) : 400;
}
int cuMemGetAddressRange_v2(size_t* base, size_t* size, size_t address)
{
    if (address < 0x7f0000000000 || address >= 0x7f0000001000) return 1;
    *base = 0x7f0000000000;
    *size = 0x1000;
    return 0;
}
typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD; int srcMemoryType; const void* srcHost; unsigned long long srcDevice;
    void* srcArray; void* reserved0; size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD; int dstMemoryType; void* dstHost; unsigned long long dstDevice;
    void* dstArray; void* reserved1; size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
typedef struct {
    unsigned long long dst; size_t pitch; unsigned int value, elementSize; size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

int cuGraphNodeGetType(Node* node, int* kind) { *kind = node->kind; return 0; }
int cuGraphMemcpyNodeGetParams(Node* node, CUDA_MEMCPY3D* copy)
{
    if (node->kind != 1) return 1;
    copy->srcMemoryType = 1; copy->srcHost = (void*)0x1234500000; copy->srcDevice = 7;
    copy->dstMemoryType = 2; copy->dstHost = (void*)9; copy->dstDevice = 0x7f0000000800;
    copy->WidthInBytes = 64; copy->Height = 2; copy->Depth = 1;
    return 0;
}
int cuGraphMemsetNodeGetParams(Node* node, CUDA_MEMSET_NODE_PARAMS* set)
{
    if (node->kind != 2) return 1;
    set->dst = 0x7f0000000400; set->pitch = 99; set->value = 5; set->elementSize = 4; set->width = 16; set->height = 1;
    return 0;
}
int cuGraphChildGraphNodeGetGraph(Node* node, Graph** inner)
{
    if (node->kind != 4) return 1;
    *inner = (Graph*)node->args;
    return 0;
}
int cuGraphGetEdges_v2(Graph* graph, Node** from, Node** to, unsigned long long* data, size_t* count)
{
    size_t edges = graph->count ? graph->count - 1 : 0;
    for (size_t i = 0; from && i < edges; i++) { from[i] = graph->nodes[i]; to[i] = graph->nodes[i + 1]; data[i] = 0; }
    *count = edges;
    return 0;
}
int captured = 0;
Graph* into = 0;
int cuStreamGetCaptureInfo_v2(
    size_t stream, int* status, unsigned long long* id, Graph** graph, Node*** nodes, size_t* count)
{
    if (stream != 0x1100 && stream != 0x3300) return 400;
    *status = stream == 0x1100 ? captured : 0;
    *id = 7;
    if (*status == 1) {
        *graph = into;
        *count = into->count ? 1 : 0;
        *nodes = into->nodes + into->count - 1;
    }
    return 0;
}

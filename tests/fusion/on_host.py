"""Fused kernels' generated source, compiled for the host and run thread by thread, one block after another.

A few lines stand for what CUDA's compiler knows by itself. Only the operations are NumPy's and the host's: where each
element lies, which thread has it, and what is loaded and stored, is the generated code's.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capturekit.fusion.source import Source

PAGE = 4096
COMPILER = shutil.which('g++') or shutil.which('clang++')
#: What CUDA has and C++ has not.
HEAD = """
#include <complex>
#include <cstddef>
#include <cstring>
#include <cmath>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(n)
static int misaligned = 0;
template <int N> struct ck_moved {
  char bytes[N];
  static const ck_moved &at(const ck_moved &it) {
    volatile size_t where = reinterpret_cast<size_t>(&it);
    misaligned += where % N != 0;
    return it;
  }
  ck_moved() {}
  ck_moved(const ck_moved &from) { memcpy(bytes, at(from).bytes, N); }
  ck_moved &operator=(const ck_moved &from) { at(*this); memcpy(bytes, from.bytes, N); return *this; }
};
typedef ck_moved<1> uchar1;
typedef ck_moved<2> ushort1;
typedef ck_moved<4> uint1;
typedef ck_moved<8> uint2;
typedef ck_moved<16> uint4;
struct ck_dim { unsigned int x, y, z; };
static ck_dim blockIdx, threadIdx, blockDim;
namespace thrust { template <typename T> using complex = std::complex<T>; }
struct float16 { unsigned short bits; };
class bfloat16 { unsigned short bits; };
static unsigned int __umulhi(unsigned int a, unsigned int b) { return ((unsigned long long)a * b) >> 32; }
template <typename T> static void __stcg(T *to, T one) { *to = one; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static double __dadd_rn(double a, double b) { return a + b; }
static double __dsub_rn(double a, double b) { return a - b; }
static double __dmul_rn(double a, double b) { return a * b; }
static unsigned int __float_as_uint(float x) { unsigned int y; memcpy(&y, &x, 4); return y; }
static float __uint_as_float(unsigned int x) { float y; memcpy(&y, &x, 4); return y; }
static int __double2hiint(double x) { long long y; memcpy(&y, &x, 8); return (int)(y >> 32); }
static int __double2loint(double x) { long long y; memcpy(&y, &x, 8); return (int)y; }
static double __hiloint2double(int h, int l) {
  long long y = (long long)h << 32 | (unsigned int)l; double x; memcpy(&x, &y, 8); return x;
}
"""


def _program(sources: Sequence[Source]) -> str:
    parts = [HEAD]
    for n, one in enumerate(sources):
        code = '\n'.join(line for line in one.code('kernel').splitlines() if not line.startswith('#include'))
        parts.append(f'namespace k{n} {{\n{code.replace(chr(34) + "C" + chr(34), "").replace("extern ", "static ")}')
        every = (*one.inputs, *one.outputs, one.index)
        names = []
        parts.append(f'extern "C" int call{n}(const char *const *bytes, unsigned blocks, unsigned x, unsigned y) {{')
        for k, argument in enumerate(every):
            kind = argument.code.removeprefix('const ').rpartition(' ')[0]
            parts.append(f'{kind} a{k}; memcpy((void *)&a{k}, bytes[{k}], sizeof a{k});')
            names.append(f'a{k}')
        parts.append(
            'blockDim = {x, y, 1};\n'
            'for (unsigned b = 0; b < blocks; b++)\n'
            'for (unsigned j = 0; j < y; j++) for (unsigned i = 0; i < x; i++) {\n'
            f'blockIdx = {{b, 0, 0}}; threadIdx = {{i, j, 0}}; kernel({", ".join(names)});\n}}\n'
            'return misaligned;\n}\n}'
        )
    return '\n'.join(parts)


def compiled(sources: Sequence[Source], folder: Path) -> Any:
    """A library with one function for each source."""
    assert COMPILER is not None
    text, library = folder / 'kernels.cpp', folder / 'kernels.so'
    text.write_text(_program(sources))
    flags = ['-std=c++17', '-O0', '-fPIC', '-shared', '-ffp-contract=off', '-fno-strict-aliasing', '-w']
    done = subprocess.run([COMPILER, *flags, '-o', str(library), str(text)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def run(library: Any, number: int, source: Source, guards: Sequence[int] = ()) -> int:
    """Run one kernel on the memory that its arguments say, which has to be shared; return how it ended.

    That is 0, 1 where a word was moved whose address is no multiple of its size, and a signal's number, made negative,
    where the kernel has used one of the pages at these addresses.
    """
    data = [ctypes.create_string_buffer(one, len(one)) for one in source.arguments()]
    pointers = (ctypes.c_char_p * len(data))(*(ctypes.cast(one, ctypes.c_char_p) for one in data))
    child = os.fork()
    if child == 0:
        for page in guards:
            ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), PAGE, 0)
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os._exit(min(getattr(library, f'call{number}')(pointers, source.layout.blocks, *source.layout.block), 1))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

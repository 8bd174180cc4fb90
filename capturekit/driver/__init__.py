"""All access to CUDA: calls, nodes read and written, the profiler, vendor libraries, the arguments of CuPy's
kernels."""

"""Kernels of a recorded graph that become one kernel: ``graph.fuse()`` and ``fuse=``."""

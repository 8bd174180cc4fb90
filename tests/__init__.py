"""The tests. Their matrices are small: threads of OpenBLAS that wait for work would take the cores of other tests."""

import os

os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

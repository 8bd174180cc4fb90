"""The tests work on small matrices: threads of OpenBLAS that wait for work would take the cores of other tests."""

import os

os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

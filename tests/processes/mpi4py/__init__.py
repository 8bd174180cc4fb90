"""As much of mpi4py as ``samples/mpi_stencil.py`` needs, between processes that a test has started."""

"""Programs of several processes on the simulated device, and what stands in for mpi4py where MPI is not installed."""

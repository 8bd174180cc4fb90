"""The simulated machine: CUDA's answers, graphs, addresses."""

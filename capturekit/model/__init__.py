"""What is known without CUDA and without CuPy: the rules, the ledger of lanes, recordings, lines, host reads,
containers."""

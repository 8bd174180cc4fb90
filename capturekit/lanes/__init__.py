"""The order that a graph's data needs, and lanes for it: ``graph.relane()`` and ``lanes='auto'``."""

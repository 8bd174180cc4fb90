"""The executable graph: launched, updated, edited, aimed at other arrays, measured."""

"""The executable graph: launched, updated, edited, pointed at other arrays, measured."""

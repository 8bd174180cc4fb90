"""Analyses of a graph: races, concurrency, differences, values that became constants."""

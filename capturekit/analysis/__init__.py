"""Analyses of a graph: races, concurrency, differences, values that were baked in."""

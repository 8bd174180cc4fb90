"""What can be said of a graph: races, concurrency, differences, values that were baked in."""

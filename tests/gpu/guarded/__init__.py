"""The calls that tests/gpu/test_entry_points.py makes inside a capture: a row each."""

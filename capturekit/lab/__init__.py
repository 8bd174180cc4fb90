"""Experiments with lanes, and lint."""

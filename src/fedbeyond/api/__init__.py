"""The Python API: run, compare, and their results."""

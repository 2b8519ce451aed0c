"""Datasets: the built-in one, folders, tables and the benchmarks of the field."""

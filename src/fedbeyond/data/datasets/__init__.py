"""Datasets: the built-in one, folders, tables and known benchmarks."""

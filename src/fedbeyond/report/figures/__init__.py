"""Figures that need a run's model and data, one module per kind."""

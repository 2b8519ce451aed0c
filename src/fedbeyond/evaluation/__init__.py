"""Metrics of models, who computes them, model selection, and warnings about misleading results."""

"""Metrics of models, evaluators, model selection, and warnings about misleading results."""

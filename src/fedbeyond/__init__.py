"""Federated domain generalization: methods as small values, a round as a conversation."""

__version__ = "0.1.0"

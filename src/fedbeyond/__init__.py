"""Federated domain generalization: methods as small values, a round as a conversation."""

__version__ = "0.1.0"

NUMERICS = 6  # of results: raised by every change after which the same configuration gives other numbers
WIRE = 1  # of messages between server and sites: raised by every change after which old and new cannot talk

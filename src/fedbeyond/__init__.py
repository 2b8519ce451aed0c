"""Federated domain generalization: methods that compose, obey the same laws and run on a real federation."""

__version__ = "0.2.0"

NUMERICS = 6  # version of results: raised by every change after which the same configuration gives other numbers
WIRE = 2  # version of messages between server and sites: raised by every change that the other side must know

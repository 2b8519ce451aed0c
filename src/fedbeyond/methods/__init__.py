"""The federated methods and their references, one self-contained file each."""

"""Operate a federation: folder, certificates, processes, checks, proxy."""

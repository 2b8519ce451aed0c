"""Partition a dataset into sites, their splits, and unseen domains."""

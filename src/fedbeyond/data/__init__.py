"""Datasets on disk, their partition into sites and unseen domains, and augmentations."""

"""Domains, their splits, and what a site sees of them."""

"""Check a dataset on disk before it is used, and describe known datasets."""

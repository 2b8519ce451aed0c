"""Images on disk: list, decode, cache."""

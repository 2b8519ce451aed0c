"""Runs as they go on: a folder looked at again and again, and a page of it for this machine's own browser."""

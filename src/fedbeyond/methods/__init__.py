"""The methods: one file each, readable alone."""

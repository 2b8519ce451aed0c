"""Run and compare configurations: build, run, resume, checkpoint, store results."""

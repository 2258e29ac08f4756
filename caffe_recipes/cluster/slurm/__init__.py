"""Slurm: all that asks or tells it. It does not know recipes; `run/submit/` stands above it."""

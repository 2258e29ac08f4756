"""Submitting a chain to Slurm: the planned jobs, submitting them exactly once, and their state afterwards."""

"""Handing a chain to Slurm: what is asked for, submitting it once, and what became of it."""

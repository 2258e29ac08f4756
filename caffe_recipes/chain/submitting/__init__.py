"""Handing a chain to Slurm: once and only once, within the limits of the machine and of Slurm."""

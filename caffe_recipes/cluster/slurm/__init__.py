"""Slurm as its users see it: ask for jobs and partitions, submit a script, say in words what it answers."""

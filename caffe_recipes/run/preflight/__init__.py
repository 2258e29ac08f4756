"""Preflight: check, before a run changes anything, all that could make it fail."""

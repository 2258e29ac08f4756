"""Preflight: check, before a run changes anything, everything that could make it fail."""

"""Preflight: everything that can be known to be wrong before a run, looked at before anything is changed."""

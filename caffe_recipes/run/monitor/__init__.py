"""Monitoring runs: their files, events, logs and status, and cancelling them."""

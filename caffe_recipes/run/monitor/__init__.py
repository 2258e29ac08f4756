"""Watching runs: their files, events and logs, where they stand, and ending them."""

"""Staging: an LMDB from where one machine sees it to the disk of every node, where it is missing."""

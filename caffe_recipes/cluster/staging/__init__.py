"""Staging: copy an LMDB or a set of files to the local disk of every node that lacks it."""

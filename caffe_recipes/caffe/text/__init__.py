"""Protobuf's text format: tokens, parser, writer, comments. `prototxt.py` is the way in."""

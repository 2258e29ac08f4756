"""Protobuf's text format: tokens, parser, writer, comments. Other packages use it through `prototxt.py`."""

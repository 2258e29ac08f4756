"""Caffe's own formats: schema, prototxt text, layers, nets, shapes, rates, caffemodels, LMDB records, logs.

Knows no recipe. Floor 1: imports itself and `errors` only.
"""

"""Caffe's own formats: schema, prototxt text, layers, nets, shapes, rates, caffemodels, LMDBs, logs."""

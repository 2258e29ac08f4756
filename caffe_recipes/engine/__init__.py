"""The PyTorch executor of prototxts, `caffe-torch`. Imports `caffe` and `errors` only. Floor 3."""

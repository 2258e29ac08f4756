"""The PyTorch executor of Caffe's prototxts: Caffe's arithmetic, files and log, without Caffe."""

"""Run Caffe's prototxts on PyTorch, with Caffe's arithmetic, files and log but without Caffe."""

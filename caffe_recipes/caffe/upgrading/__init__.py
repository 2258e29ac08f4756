"""The steps of `upgrade.py`: one module for each era of Caffe's formats."""

"""Build LMDBs and TFRecords of images, and check them."""

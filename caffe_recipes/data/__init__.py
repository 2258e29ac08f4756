"""Building LMDBs of images. Floor 4."""

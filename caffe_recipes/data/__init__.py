"""Building LMDBs of images. Floor 3."""

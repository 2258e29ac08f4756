"""Recipe -> {path: text}, without side effects; comparison with the files on disk. Floor 4."""

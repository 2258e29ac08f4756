"""Recipe -> {path: text}, pure; comparing with what is on disk. Floor 4."""

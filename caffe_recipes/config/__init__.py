"""What people write as YAML: frozen values, and the file and line of whatever is wrong. Floor 0."""

"""Tools for reviewing prototxts and recipes: lint, diff, summary. Floor 5. Reads files and runs nothing."""

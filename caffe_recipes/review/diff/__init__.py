"""Compare two prototxts, recipes, folders or git revisions by meaning, not by text."""

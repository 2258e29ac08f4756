"""What a reviewer asks of prototxts and recipes: lint, diff, summary. Floor 5. Reads, never runs."""

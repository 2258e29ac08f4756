"""What a reviewer asks of prototxts and recipes: lint, diff, summary. Floor 4. Reads, never runs."""

"""What changed in meaning between two prototxts, recipes, folders or revisions."""

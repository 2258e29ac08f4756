"""Learning rates over a recipe: as a page, a table, a picture."""

"""Time and cost of recipes: as a page, a sweep, a picture, and the paper's own tables computed again."""

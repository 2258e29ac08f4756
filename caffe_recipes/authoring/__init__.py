"""New recipes: by the authors' rules, of another recipe, of a folder of prototxts. Floor 6."""

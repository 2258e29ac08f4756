"""New recipes: by the authors' rules, from another recipe, or from a folder of prototxts. Floor 6."""

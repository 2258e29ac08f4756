"""New recipes: by the paper's rules, from another recipe, or from a folder of prototxts. Floor 6."""

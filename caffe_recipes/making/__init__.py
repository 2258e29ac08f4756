"""Making recipes: from files that there are, from the authors' rules, from another recipe. Floor 5."""

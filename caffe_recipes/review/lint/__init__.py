"""What is wrong with a prototxt, a chain of solvers, or a recipe: rules that yield findings."""

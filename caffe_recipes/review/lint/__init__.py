"""Rules that find mistakes in prototxts, chains of solvers, and recipes."""

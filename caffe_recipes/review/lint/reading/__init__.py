"""What lint is given, and the chain that it comes to."""

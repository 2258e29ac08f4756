"""What is trained: frozen recipe values, and the arithmetic of epochs and iterations. Floor 3."""

"""A net's graph as a picture: boxes, stages side by side, and wires between them."""

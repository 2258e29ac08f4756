"""Draw the graph of a net: layers as boxes, in stages side by side, with wires between them."""

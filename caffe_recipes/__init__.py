"""caffe-recipes: large-minibatch Caffe training recipes as values; everything else is a function of them."""

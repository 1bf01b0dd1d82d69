"""Products of rows with weights: a product as a value, forms of weights, the choice among kernels, and the norms and
activations that products take along. Nothing here knows a cache, a sequence or another rank."""

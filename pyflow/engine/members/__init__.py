"""A member of a model on each socket: weights, threads and cells of its own, one step together."""

"""A backbone of torch on a GPU: CUDA graphs, a stream for each model, and memory of a policy."""

"""Runs torch backbones on a GPU: CUDA graphs, a stream for each model, and memory by the memory policy."""

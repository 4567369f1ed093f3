"""Runs models larger than their memory: each layer's weights are read from a file just before the layer runs."""

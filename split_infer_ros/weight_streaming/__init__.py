"""Runs models larger than their memory: each layer's weights are read from a file just before the layer runs.

Paper 002 calls this demand layering. A node streams weights only if the parameter ``weights_residency`` says so, or if
tenants have a budget for weights.
"""

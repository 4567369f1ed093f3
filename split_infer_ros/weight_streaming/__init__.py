"""Runs models larger than their memory: each layer's weights are read from a file just before the layer runs.

The paper calls this demand layering. Frames pass through it only if the parameter ``weights_residency`` says so, or if
tenants have a budget for weights.
"""

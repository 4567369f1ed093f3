"""Runs models larger than their memory: it reads each layer's weights from a file just before the layer runs.

The paper calls this demand layering. A node uses it only if the parameter ``weights_residency`` says so, or if tenants
have a budget for weights.
"""

"""Checks whether there is enough memory for features, images and weights."""

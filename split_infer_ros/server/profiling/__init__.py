"""Measures and stores the times of a model's partitions at its split points."""

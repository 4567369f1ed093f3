"""The times of a model's partitions at its split points, measured and stored."""

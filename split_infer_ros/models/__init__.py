"""The catalogue of models, users' own models, their weights, pre-processing and decoding."""

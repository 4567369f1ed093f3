"""The catalogue of models, models of users, and their weights, pre-processing and decoding."""

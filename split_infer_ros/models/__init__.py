"""The models: which there are (catalogue), their weights, what goes in (preprocess) and what comes out."""

"""Models larger than their memory: weights are read from a file just before their layers run."""

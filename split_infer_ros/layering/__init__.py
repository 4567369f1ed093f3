"""Models larger than their memory: weights in a packed file, streamed through a ring as the layers come to run."""

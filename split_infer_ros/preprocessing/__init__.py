"""Turns images into the backbone's input, on the host or on a GPU."""

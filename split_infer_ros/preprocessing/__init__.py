"""From images to the backbone's input, on the host or on a GPU."""

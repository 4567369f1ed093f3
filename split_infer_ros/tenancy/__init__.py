"""Many cameras and models on one processor: whose turn it is, what runs as one, and what runs side by side."""

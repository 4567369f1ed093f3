"""Many cameras and models on one processor: whose turn it is, what runs as one execution, and where it runs."""

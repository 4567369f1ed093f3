"""What several packages ask of torch's modules and traced graphs: their tensors, how they are traced, their sizes."""

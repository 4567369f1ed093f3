"""What executes a partition of a model: torch as it is, fused oneDNN convolutions, oneDNN graphs, compiled code."""

"""What executes a partition of a model: eager torch, fused oneDNN convolutions, oneDNN graphs, or compiled code."""

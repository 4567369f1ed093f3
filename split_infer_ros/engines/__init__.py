"""What executes a part of a model: torch (fused, blocked or compiled), ONNX Runtime or OpenVINO."""

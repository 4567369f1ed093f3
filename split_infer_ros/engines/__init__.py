"""The engines, which execute parts of models: torch (fused, blocked or compiled), ONNX Runtime and OpenVINO."""

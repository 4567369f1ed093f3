"""Reads, checks, describes and cuts ONNX models as graphs. No engine is needed."""

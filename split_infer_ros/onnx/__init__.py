"""Reads, checks, describes, cuts and converts ONNX models as graphs. No engine is needed."""

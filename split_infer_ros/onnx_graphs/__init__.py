"""ONNX models as graphs: read, checked, described and cut, without an engine that runs them."""

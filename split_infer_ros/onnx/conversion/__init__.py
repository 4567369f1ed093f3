"""Makes ONNX graphs of torch's traced graphs, and the other way round."""

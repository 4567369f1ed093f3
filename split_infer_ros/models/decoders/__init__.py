"""How the outputs of an ONNX file are read: layouts, the families that have them, and the decoder of every layout."""

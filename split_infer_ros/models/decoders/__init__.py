"""Reads the outputs of ONNX files. Layouts say which numbers mean what, and families say which layout a model has.

One decoder serves all layouts.
"""

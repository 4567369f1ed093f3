"""Triton kernels of the operators. They are imported where they are used: Triton is there on some machines only."""

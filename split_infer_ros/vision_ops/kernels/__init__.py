"""Triton kernels of the operators. They are imported where they are used: Triton is there on some machines only.

Arguments of jitted functions have no types: Triton evaluates each annotation and refuses all but its own.
"""

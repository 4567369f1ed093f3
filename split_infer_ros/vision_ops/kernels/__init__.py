"""Triton kernels of the operators. They are imported where they are used, because Triton is optional.

Arguments of jitted functions have no types: Triton evaluates each annotation and refuses all but its own.
"""

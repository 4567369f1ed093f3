"""The GPUs for which Triton kernels are compiled: Turing, Orin, Hopper and Blackwell."""

from __future__ import annotations

# Memory that the threads of a block can share, by target (90 for sm_90): CUDA C++ Programming Guide, table of features
SHARED_BYTES = {75: 64 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10}

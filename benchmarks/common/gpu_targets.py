"""The GPUs for which Triton kernels are compiled: Turing, Orin, Hopper and Blackwell.

Numbers are from the CUDA C++ Programming Guide, table of features. Targets are keys: 90 for sm_90.
"""

from __future__ import annotations

from split_infer_ros.vision_ops.launch_limits import MultiprocessorLimits

SHARED_BYTES = {75: 64 << 10, 87: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # that the threads of a block can share
MULTIPROCESSORS = {
    75: MultiprocessorLimits(shared_bytes=64 << 10, reserved_bytes=0),
    87: MultiprocessorLimits(shared_bytes=164 << 10),
    90: MultiprocessorLimits(shared_bytes=228 << 10),
    100: MultiprocessorLimits(shared_bytes=228 << 10),
}

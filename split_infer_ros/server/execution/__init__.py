"""Runs backbones on the device, merged, fused or recorded as CUDA graphs."""

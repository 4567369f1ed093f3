"""What runs on the device: backbones, merged, fused or recorded as CUDA graphs."""

"""A GPU without a GPU: its work is done late, its memory is its own, and what nothing orders is reported."""

import torch

from simulated_gpu.findings import CudaError
from simulated_gpu.gpu import Gpu
from simulated_gpu.installed import simulated
from simulated_gpu.memory_map import Race

GPU = torch.device("cuda", 0)

__all__ = ["GPU", "CudaError", "Gpu", "Race", "simulated"]

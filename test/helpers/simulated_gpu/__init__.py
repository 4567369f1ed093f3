"""A simulated GPU: work is done late, device memory is separate, and unordered accesses are reported."""

import torch

from simulated_gpu.findings import CudaError
from simulated_gpu.gpu import Gpu
from simulated_gpu.installed import simulated
from simulated_gpu.memory_map import Race

GPU = torch.device("cuda", 0)

__all__ = ["GPU", "CudaError", "Gpu", "Race", "simulated"]

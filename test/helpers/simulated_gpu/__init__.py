"""A simulated GPU for tests. It does work late, has its own memory, and reports races: accesses without an order."""

import torch

from simulated_gpu.findings import CudaError
from simulated_gpu.gpu import Gpu
from simulated_gpu.installed import simulated
from simulated_gpu.memory_map import Race

GPU = torch.device("cuda", 0)

__all__ = ["GPU", "CudaError", "Gpu", "Race", "simulated"]

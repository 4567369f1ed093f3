"""Tensors that claim to lie on the GPU, over bytes of the simulated device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simulated_gpu.trees import leaves

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu


class GpuTensor(Tensor):
    """A tensor on the simulated GPU.

    Attributes:
        plain: a CPU tensor over the same bytes. Only the simulation may use it.
        keeper: an object that keeps the memory in use, as long as any tensor lies in it.
        gpu: the simulated GPU.
    """

    plain: Tensor
    keeper: object
    gpu: Gpu

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def make(gpu: Gpu, plain: Tensor, keeper: object, inference: bool) -> GpuTensor:
        """Returns a tensor on the GPU over the elements of ``plain``, which is an inference tensor if ``inference``."""
        with torch.inference_mode(inference):
            made: GpuTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                GpuTensor,
                plain.size(),
                strides=plain.stride(),
                storage_offset=plain.storage_offset(),
                dtype=plain.dtype,
                device=gpu.device,
            )
        made.plain, made.keeper, made.gpu = plain, keeper, gpu
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from simulated_gpu.operators import dispatch

        return dispatch(_gpu_of(args, kwargs), func, args, kwargs or {})

    def data_ptr(self) -> int:  # type: ignore[override]
        """Returns the tensor's address for CUDA."""
        return self.plain.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Returns the tensor's storage. Only its size may be used."""
        return self.plain.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        """As in torch, the tensor's memory is not reused before ``stream`` has done the work that it has by then."""
        self.keeper.streams.add(stream.queue)  # type: ignore[attr-defined]

    def is_pinned(self, device: object = None) -> bool:
        """Returns False: device memory is never page-locked."""
        return False

    def tolist(self) -> Any:
        """Returns the elements as a list. The host waits for them."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Returns a copy on the host, which waits for it. Without ``force``, it raises TypeError, like torch."""
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        return self.cpu().numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        with torch.no_grad():
            copied = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"GpuTensor({tuple(self.shape)}, {self.dtype})"


def _gpu_of(args: Any, kwargs: Any) -> Gpu:
    for each in leaves((args, kwargs)):
        if isinstance(each, GpuTensor):
            return each.gpu
    raise AssertionError("no tensor of the simulated GPU")

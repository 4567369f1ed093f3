"""The one place that knows of CUDA streams; on a CPU there is nothing to order and nothing to wait for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class DeviceQueue:
    """Work for one device in the order in which it is given."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def work(self) -> AbstractContextManager[Any]:
        """Operations inside the block go to this queue."""
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()

    def wait(self) -> None:
        """Return once all that was given is done, this queue's alone."""
        if self._stream is not None:
            self._stream.synchronize()

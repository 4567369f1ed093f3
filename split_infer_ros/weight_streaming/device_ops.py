"""The operations of a device that weight streaming needs. The device works asynchronously: work may not be done yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from split_infer_ros.runtime.streams import Fence, Mark

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceOps:
    """The operations of a device that weight streaming needs.

    Attributes:
        copy: copies from the host (second argument) to the device (first argument). It returns when the copy is done,
            and does not wait for what the device computes.
        fence: creates a fence after all computation that the device was given so far.
        mark: the same point with its time.
    """

    copy: Callable[[Tensor, Tensor], None]
    fence: Callable[[], Fence]
    mark: Callable[[], Mark]

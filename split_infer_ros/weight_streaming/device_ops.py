"""The device operations that weight streaming needs. The device works asynchronously: calls return before it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from split_infer_ros.runtime.streams import Fence, Mark

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceOps:
    """The device operations that weight streaming needs.

    Attributes:
        copy: copies from the host (second argument) to the device (first argument). It returns when the copy is done,
            and does not wait for the device's computation.
        fence: creates a fence after all computation that was queued on the device so far.
        mark: creates a mark after the same computation. A mark also records the time.
    """

    copy: Callable[[Tensor, Tensor], None]
    fence: Callable[[], Fence]
    mark: Callable[[], Mark]

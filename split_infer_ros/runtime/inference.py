"""torch's inference mode, for code that does not know whether torch is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


def inference_mode() -> AbstractContextManager[None]:
    """Returns a context in which torch records no gradients.

    The context does nothing in a process that has not imported torch.
    """
    make: Callable[[], AbstractContextManager[None]] = getattr(sys.modules.get("torch"), "inference_mode", nullcontext)
    return make()

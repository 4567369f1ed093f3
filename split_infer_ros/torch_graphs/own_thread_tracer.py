"""A torch.fx tracer that does not disturb modules that other threads call meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import fx, nn


class OwnThreadTracer(fx.Tracer):
    """A tracer that records only calls from the thread that made it. Calls from other threads run as usual.

    torch.fx's own tracer intercepts the calls of all modules in the process while it traces.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records a call from the tracing thread. Runs a call from another thread."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return self.call_own(m, forward, args, kwargs)

    def call_own(
        self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records a call from the tracing thread, as torch.fx does it. Subclasses may override this method."""
        return super().call_module(module, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Returns an attribute of a module: to the tracing thread a proxy if need be, to other threads the value."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

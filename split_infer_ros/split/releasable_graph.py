"""The traced graph of a model. Its weights can be released and read again.

To release weights is to free their memory on the CPU. Stand-ins without memory take their places in the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from torch import Tensor, fx

from split_infer_ros.split.graph import set_own_state, set_state, stand_in
from split_infer_ros.torch_graphs.module_state import state_of

Fetch = Callable[[Collection[str]], Mapping[str, Tensor]]
"""Takes names of released weights, and returns their tensors by name. Raises a ConfigurationError on failure."""


class ReleasableGraph:
    """A graph that several models share. Its methods may be called from any thread.

    Args:
        module: the prepared graph. Weights on the device ``meta`` become stand-ins.

    Attributes:
        module: the graph on the CPU, with stand-ins for weights that were released. It must not be changed.
        lock: the lock that is held while weights are released or read again. Models hold it while they make a
            partition.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.lock = threading.RLock()
        self._released: dict[str, Fetch] = {}  # by name of the weight: what reads it again
        set_state(module, {name: stand_in(tensor) for name, tensor in state_of(module).items() if tensor.is_meta})

    def release(self, names: Collection[str], fetch: Fetch) -> bool:
        """Frees the memory of weights. Partitions that were made before keep their weights.

        Args:
            names: the names of parameters and buffers.
            fetch: reads the weights again when they are needed.

        Returns:
            True if memory was freed; False if all these weights had been released before.
        """
        with self.lock:
            state = state_of(self.module)
            frees_any = any(name not in self._released for name in names)
            set_own_state(self.module, {name: stand_in(state[name]) for name in names})
            self._released |= dict.fromkeys(names, fetch)
            return frees_any

    def restore(self, names: Collection[str] | None = None) -> bool:
        """Reads released weights again.

        Args:
            names: the names of parameters and buffers; None for all. Those that were not released are left as they are.

        Returns:
            True if weights were read; False if none of them was released.

        Raises:
            ConfigurationError: released weights cannot be read.
        """
        with self.lock:
            candidates = list(self._released) if names is None else names
            released = [name for name in candidates if name in self._released]
            set_state(self.module, self._fetch(released))
            for name in released:
                del self._released[name]
            return bool(released)

    def whole(self) -> fx.GraphModule:
        """Returns the graph with all its weights. Released weights are read again.

        Raises:
            ConfigurationError: released weights cannot be read.
        """
        self.restore()
        return self.module

    def state(self) -> dict[str, Tensor]:
        """Returns all weights by name. Released weights are read, but not kept.

        Raises:
            ConfigurationError: released weights cannot be read.
        """
        with self.lock:
            return state_of(self.module) | self._fetch(self._released)

    def _fetch(self, released: Collection[str]) -> dict[str, Tensor]:
        """Reads released weights again."""
        tensors: dict[str, Tensor] = {}
        for fetch in {self._released[name] for name in released}:
            tensors.update(fetch([name for name in released if self._released[name] is fetch]))
        return tensors

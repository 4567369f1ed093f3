"""A model that is loaded, prepared, and cut where asked."""

from __future__ import annotations

import copy
import threading
from functools import lru_cache
from weakref import WeakValueDictionary

import torch
from torch import nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.weights import load_weights
from split_infer_ros.split.cuts import Cut, choose_cut, find_cuts
from split_infer_ros.split.fusion import fuse_convolutions
from split_infer_ros.split.graph import prepare
from split_infer_ros.split.halves import Halves, split

SEED = 0  # untrained weights are at least the same ones each time


class SplitModel:
    """A prepared model and its cuts; the backbone's half lies on ``device``, the head's on the CPU.

    Args:
        entry: the catalogue's.
        module: the model with its weights; it is taken over and changed.
        device: where the backbone runs.
    """

    def __init__(self, entry: ModelEntry, module: nn.Module, device: torch.device) -> None:
        self.entry = entry
        self.device = device
        self._graph = prepare(module, entry.image_shape)
        self.cuts = find_cuts(self._graph, entry.image_shape)
        self._halves = lru_cache(maxsize=4)(self._split)
        self._lock = threading.Lock()

    def cut(self, name: str) -> Cut:
        """The cut of that name; ``default`` is the entry's.

        Raises:
            UnknownCutError: there is none.
        """
        default = self.entry.default_cut or self.cuts[-2].name
        return choose_cut(self.cuts, default if name == "default" else name, self.entry.name)

    def halves(self, name: str) -> Halves:
        """The two halves at the cut of that name, as callables for their devices."""
        cut = self.cut(name)
        with self._lock:
            return self._halves(cut)

    def _split(self, cut: Cut) -> Halves:
        halves = split(self._graph, cut)
        fuse_convolutions(halves.head)
        if self.device.type == "cpu":
            fuse_convolutions(halves.backbone)
            return halves
        return Halves(cut, copy.deepcopy(halves.backbone).to(self.device), halves.head)


_loaded: WeakValueDictionary[tuple[str, str, str], SplitModel] = WeakValueDictionary()
_loading = threading.Lock()


def load_model(name: str, weights: str, device: str, allow_user_code: bool = False) -> SplitModel:
    """A model by name; whoever asks for the same one in this process shares it.

    Args:
        name: of the catalogue, of timm's, or of the user's own; see ``find_model``.
        weights: ``default``, ``none``, ``random`` or a path.
        device: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (CUDA where there is one).
        allow_user_code: whether a model of the user's own may be loaded, which may run any code.

    Raises:
        ConfigurationError: an unknown model or device, a model that cannot be cut, or weights that do not fit.
    """
    where = choose_device(device)
    key = (name, weights, str(where))
    with _loading:
        model = _loaded.get(key)
        if model is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                entry = find_model(name, allow_user_code)
                module = entry.build().eval()
            load_weights(module, entry, weights)
            model = _loaded[key] = SplitModel(entry, module, where)
        return model


def choose_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first GPU, or the CPU where there is none.

    Raises:
        ConfigurationError: this machine has no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["auto", "cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if name not in known:
        raise ConfigurationError(f"device '{name}' is not on this machine; it takes one of: {', '.join(known)}.")
    if name == "auto":
        name = "cuda" if count else "cpu"
    return torch.device(name)

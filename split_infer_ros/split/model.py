"""A model that is loaded, prepared, and cut where asked."""

from __future__ import annotations

import copy
import threading
from functools import cached_property, lru_cache
from weakref import WeakValueDictionary

import torch
from torch import fx, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.weights import load_weights
from split_infer_ros.split.cuts import Cut, choose_cut, find_cuts
from split_infer_ros.split.fusion import fuse_convolutions
from split_infer_ros.split.graph import fingerprint, prepare
from split_infer_ros.split.halves import Halves, split
from split_infer_ros.split.segments import segments

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
        self._graph = prepare(module)
        self.cuts = find_cuts(self._graph, entry.image_shape)
        self._halves = lru_cache(maxsize=4)(self._split)
        self._lock = threading.Lock()

    def cut(self, name: str) -> Cut:
        """The cut of that name; ``default`` is the entry's.

        Raises:
            UnknownCutError: there is none.
        """
        return choose_cut(self.cuts, self.entry.default_cut if name == "default" else name, self.entry.name)

    def halves(self, name: str) -> Halves:
        """The two halves at the cut of that name, as callables for their devices."""
        cut = self.cut(name)
        with self._lock:
            return self._halves(cut)

    @cached_property
    def fingerprint(self) -> str:
        """Tells the model's operations from any other's."""
        return fingerprint(self._graph)

    def segments(self) -> tuple[tuple[fx.GraphModule, ...], tuple[fx.GraphModule, ...]]:
        """The pieces between neighbouring cuts, twice: as the backbone and as the head runs them."""
        pieces = segments(self._graph, self.cuts)
        for piece in pieces:
            fuse_convolutions(piece)
        if self.device.type == "cpu":
            return pieces, pieces
        return tuple(copy.deepcopy(piece).to(self.device) for piece in segments(self._graph, self.cuts)), pieces

    def _split(self, cut: Cut) -> Halves:
        halves = split(self._graph, cut)
        fuse_convolutions(halves.head)
        if self.device.type == "cpu":
            fuse_convolutions(halves.backbone)
            return halves
        return Halves(cut, copy.deepcopy(halves.backbone).to(self.device), halves.head)


_loaded: WeakValueDictionary[tuple[str, str, str], SplitModel] = WeakValueDictionary()
_loading = threading.Lock()


def load_model(name: str, weights: str, device: str) -> SplitModel:
    """A model of the catalogue; whoever asks for the same one in this process shares it.

    Args:
        name: of the catalogue.
        weights: ``default``, ``none`` or a path.
        device: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (CUDA where there is one).

    Raises:
        ConfigurationError: an unknown model or device, or weights that do not fit.
    """
    where = choose_device(device)
    key = (name, weights, str(where))
    with _loading:
        model = _loaded.get(key)
        if model is None:
            entry = find_model(name)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
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

"""A model that is loaded, prepared, and cut where asked."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from weakref import WeakValueDictionary

import torch
from torch import Tensor, fx, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.user import check_detections, is_user_model
from split_infer_ros.models.weights import load_weights
from split_infer_ros.split.cuts import Cut, choose_cut, find_cuts
from split_infer_ros.split.export import place
from split_infer_ros.split.fusion import fuse_convolutions
from split_infer_ros.split.graph import fingerprint, prepare, put, stand_in, state_of
from split_infer_ros.split.halves import Halves, backbone_of, head_of
from split_infer_ros.split.segments import segments

SEED = 0  # untrained weights are at least the same ones each time

MOST_HALVES = 4  # of each kind are kept: a split point that moves may come back

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

Fetch = Callable[[Collection[str]], Mapping[str, Tensor]]

_Made = OrderedDict[Cut, fx.GraphModule]


class SplitModel:
    """A prepared model and its cuts; the backbone's half lies on ``device``, the head's on the CPU in float32.

    Args:
        entry: the catalogue's.
        module: the model with its weights; it is taken over and changed.
        device: where the backbone runs.

    Attributes:
        dtype: in which the backbone computes and its features cross.
    """

    def __init__(self, entry: ModelEntry, module: nn.Module, device: torch.device) -> None:
        self.entry = entry
        self.device = device
        self.dtype = torch.float32
        self._source: SplitModel | None = None
        self._graph = prepare(module, entry.image_shape)
        self._absent: dict[str, Fetch] = {}  # whence what was released comes back
        hollow = {name: stand_in(tensor) for name, tensor in state_of(self._graph).items() if tensor.is_meta}
        put(self._graph, hollow)
        self.cuts = find_cuts(self._graph, entry.image_shape)
        self._forget()

    def placed(self, device: torch.device, dtype: torch.dtype) -> SplitModel:
        """The same model and, on the CPU, the same weights, with its backbone elsewhere or in another precision."""
        other = copy.copy(self)
        other._source = self  # whoever asks for that one meanwhile gets it, not another
        other.device, other.dtype = device, dtype
        other.cuts = tuple(cut.in_precision(dtype) for cut in self.cuts)
        other._forget()
        return other

    def release(self, names: Collection[str], fetch: Fetch) -> None:
        """Give weights' memory back; a half that needs them gets them anew.

        Halves that were made before and are in use keep theirs.

        Args:
            names: of parameters and buffers.
            fetch: reads them again; given some names, returns the tensors.
        """
        with self._lock:
            state = state_of(self._graph)
            put(self._graph, {name: stand_in(state[name]) for name in names})
            self._absent |= dict.fromkeys(names, fetch)
            self._backbones.clear()
            self._heads.clear()

    def cut(self, name: str) -> Cut:
        """The cut of that name; ``default`` is the entry's.

        Raises:
            UnknownCutError: there is none.
        """
        default = self.entry.default_cut or self.cuts[-2].name
        return choose_cut(self.cuts, default if name == "default" else name, self.entry.name)

    def backbone(self, name: str) -> fx.GraphModule:
        """The half before the cut of that name: (N, C, H, W) of ``dtype`` on ``device`` to the cut's tensors."""
        return self._half(self._backbones, self._make_backbone, name)

    def head(self, name: str) -> fx.GraphModule:
        """The half behind the cut of that name: the cut's tensors, in float32, to the model's outputs."""
        return self._half(self._heads, self._make_head, name)

    def halves(self, name: str) -> Halves:
        """Both halves at the cut of that name."""
        return Halves(self.cut(name), self.backbone(name), self.head(name))

    def _half(self, made: _Made, make: Callable[[Cut], fx.GraphModule], name: str) -> fx.GraphModule:
        cut = self.cut(name)
        with self._lock:
            if cut not in made:
                made[cut] = make(cut)
            made.move_to_end(cut)
            while len(made) > MOST_HALVES:
                made.popitem(last=False)
            return made[cut]

    @property
    def graph(self) -> fx.GraphModule:
        """The whole model on the CPU, batch norms folded; everybody's, so not to be changed.

        Weights that were released are not in it.
        """
        return self._graph

    @cached_property
    def fingerprint(self) -> str:
        """Tells the model's operations from any other's."""
        return fingerprint(self._graph)

    @property
    def parameters(self) -> int:
        """How many the whole model has."""
        return sum(parameter.numel() for parameter in self._graph.parameters())

    def segments(self) -> tuple[tuple[fx.GraphModule, ...], tuple[fx.GraphModule, ...]]:
        """The pieces between neighbouring cuts, twice: as the backbone and as the head runs them."""
        with self._lock:
            self._recall(list(self._absent))
        pieces = segments(self._graph, self.cuts)
        backbones = tuple(map(self._as_backbone, pieces))
        for piece in pieces:
            fuse_convolutions(piece)
        return backbones, pieces

    def _make_backbone(self, cut: Cut) -> fx.GraphModule:
        return self._as_backbone(self._with_weights(backbone_of, cut))

    def _make_head(self, cut: Cut) -> fx.GraphModule:
        head = self._with_weights(head_of, cut)
        fuse_convolutions(head)
        return head

    def _with_weights(self, part_of: Callable[[fx.GraphModule, Cut], fx.GraphModule], cut: Cut) -> fx.GraphModule:
        part = part_of(self._graph, cut)
        return part_of(self._graph, cut) if self._recall(state_of(part)) else part

    def _recall(self, names: Collection[str]) -> bool:
        """Have those of the weights here that were released; False if none was."""
        missing = [name for name in names if name in self._absent]
        for fetch in {self._absent[name] for name in missing}:
            put(self._graph, fetch([name for name in missing if self._absent[name] is fetch]))
        for name in missing:
            del self._absent[name]
        return bool(missing)

    def _as_backbone(self, part: fx.GraphModule) -> fx.GraphModule:
        if self.device.type == "cpu" and self.dtype == torch.float32:
            fuse_convolutions(part)
            return part
        return place(part, self.device, self.dtype)

    def _forget(self) -> None:
        self._backbones: _Made = OrderedDict()
        self._heads: _Made = OrderedDict()
        self._lock = threading.Lock()


_loaded: WeakValueDictionary[tuple[str, ...], SplitModel] = WeakValueDictionary()
_loading = threading.Lock()


def load_model(
    name: str, weights: str, device: str, precision: str = "fp32", *, allow_user_code: bool = False
) -> SplitModel:
    """A model by name; whoever asks for the same one in this process shares it.

    Args:
        name: of the catalogue, of timm's, or of the user's own; see ``find_model``.
        weights: ``default``, ``none``, ``random`` or a path.
        device: where its backbone runs: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (CUDA where there is one).
        precision: of its backbone: ``fp32``, ``fp16`` or ``bf16``.
        allow_user_code: whether a model of the user's own may be loaded, which may run any code.

    Raises:
        ConfigurationError: an unknown model or device, a model that cannot be cut, or weights that do not fit.
    """
    where, dtype = choose_device(device), PRECISIONS[precision]
    with _loading:
        key: tuple[str, ...] = (name, weights, str(allow_user_code))  # who may not load it may not share it
        model = _loaded.get(key)
        if model is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                entry = find_model(name, allow_user_code)
                module = entry.build().eval()
            load_weights(module, entry, weights)
            if is_user_model(name):
                check_detections(entry, module)
            model = _loaded[key] = SplitModel(entry, module, torch.device("cpu"))
        if (where, dtype) == (model.device, model.dtype):
            return model
        key += str(where), precision
        placed = _loaded.get(key)
        if placed is None:
            placed = _loaded[key] = model.placed(where, dtype)
        return placed


def hollow_model(name: str) -> SplitModel:
    """A model without its weights: enough to find its cuts, and to run it on weights that are streamed.

    Raises:
        ConfigurationError: an unknown model.
    """
    entry = find_model(name)
    with torch.device("meta"):
        module = entry.build().eval()
    return SplitModel(entry, module, torch.device("cpu"))


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

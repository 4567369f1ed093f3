"""Models by name: loaded once in a process, and shared by all who ask for the same."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

import torch
from torch import nn

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.user import check_detections, is_user_model
from split_infer_ros.models.weights import load_weights
from split_infer_ros.split.model import PRECISIONS, SplitModel

SEED = 0  # untrained weights are at least the same ones each time

_loaded: WeakValueDictionary[tuple[str, ...], SplitModel] = WeakValueDictionary()
_loading = threading.Lock()


def load_model(
    name: str,
    weights: str,
    device: str,
    precision: str = "fp32",
    *,
    allow_user_code: bool = False,
    form: ExecutionConfig | None = None,
) -> SplitModel:
    """A model by name; whoever asks for the same one in this process shares it.

    Args:
        name: of the catalogue, of timm's, or of the user's own; see ``find_model``.
        weights: ``default``, ``none``, ``random`` or a path.
        device: where its backbone runs: ``cpu``, ``cuda``, ``cuda:1``, ... or ``auto`` (CUDA where there is one).
        precision: of its backbone: ``fp32``, ``fp16`` or ``bf16``.
        allow_user_code: whether a model of the user's own may be loaded, which may run any code.
        form: in which it is run.

    Raises:
        ConfigurationError: an unknown model or device, a model that cannot be split, or weights that do not fit.
    """
    where, dtype, form = choose_device(device), PRECISIONS[precision], form or ExecutionConfig()
    with _loading:
        # Who may not load it may not share it.
        key: tuple[str, ...] = (name, weights, str(allow_user_code), str(form.folding))
        model = _loaded.get(key)
        if model is None:
            entry, module = build_model(name, weights, allow_user_code)
            model = _loaded[key] = SplitModel(entry, module, torch.device("cpu"), ExecutionConfig(folding=form.folding))
        if (where, dtype, form) == (model.device, model.dtype, model.execution_config):
            return model
        key += str(where), precision, repr(form)
        placed = _loaded.get(key)
        if placed is None:
            placed = _loaded[key] = model.placed(where, dtype, form)
        return placed


def hollow_model(name: str) -> SplitModel:
    """A model without its weights: enough to find its split points, and to run it on weights that are streamed.

    Raises:
        ConfigurationError: an unknown model.
    """
    entry = find_model(name)
    with torch.device("meta"):
        module = entry.build().eval()
    return SplitModel(entry, module, torch.device("cpu"))


def build_model(name: str, weights: str, allow_user_code: bool = False) -> tuple[ModelEntry, nn.Module]:
    """A model as built, with its weights, in eval mode; arguments and errors as ``load_model``'s."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        entry = find_model(name, allow_user_code)
        module = entry.build().eval()
    load_weights(module, entry, weights)
    if is_user_model(name):
        check_detections(entry, module)
    return entry, module


def choose_device(name: str) -> torch.device:
    """The device of that name, with its index if it is a GPU.

    ``cuda`` is the first GPU; so is ``auto``, or the CPU where there is none.

    Raises:
        ConfigurationError: this machine has no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["auto", "cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if name not in known:
        raise ConfigurationError(f"device '{name}' is not on this machine; it takes one of: {', '.join(known)}.")
    if name == "auto":
        name = "cuda" if count else "cpu"
    return torch.device("cuda", 0) if name == "cuda" else torch.device(name)

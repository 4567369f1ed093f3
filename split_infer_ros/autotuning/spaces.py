"""The spaces of configurations in which a model is tuned. A record with a configuration outside them is not used."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.engines.engine import Engine, parse_engine
from split_infer_ros.engines.execution_config import Compiler, Convolutions
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import precisions_of
from split_infer_ros.search.space import Config, Space, Value
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import ENGINES
from split_infer_ros.telemetry.machine import num_cores
from split_infer_ros.vision_ops.implementations import ImplementationChoice

NETWORK, PIPELINE = STAGES = ("network", "pipeline")  # the stages of a task
SEGMENTS, CHAIN = "segments", "chain"  # the graph tuner's trials: all segments alone, and the chain made of them
SEGMENTS_PARTS = WORK, CONVERSION = ("work", "conversion")  # times of the segment, and of converting its inputs
LAYOUTS = "layouts"  # the memory formats of the segments' results
RIVAL, RIVALS, TURNS = "rival", "rivals", "turns"  # trials of one engine and of all in turns; their times
PROFILE, QUANTISE = "profile", "quantise"  # the trials that measure split points, and make a model in int8
SPLIT_POINT = "split_point"
UNIFORM = "uniform"  # the best configuration without segments; a chain takes turns with it
BATCH_SIZES = (1, 2, 4, 8, 16)
MICRO_BATCHES = (0, 1, 2, 4)  # images that an engine computes at once; 0: the whole batch
TORCH_KNOBS = ("convolutions", "folding", "compiler", "operators")  # for other engines, these have only their defaults


def network_space(
    num_cores: int,
    precisions: Sequence[Precision] = (Precision.FP32,),
    device: str | None = None,
    compilers: bool | None = None,
    engines: Sequence[str] = ENGINES,
    falls_back: bool = True,
    micro_batches: Sequence[int] = MICRO_BATCHES,
) -> Space:
    """Returns the space of configurations of the whole network.

    Args:
        num_cores: the number of cores that this process may use.
        precisions: the precisions that the user allows.
        device: ``cpu`` or ``cuda``; the space then has only what can be tried there. None: the space has all values
            that a record may hold.
        compilers: whether torch.compile is tried. None: it is tried if there is a C++ compiler, which it needs.
        engines: the engines that may run the network. The first one runs it untuned; see ``engines_for``.
        falls_back: whether some operators of the network may run on the CPU while the others run on a GPU.
        micro_batches: numbers of images that engines other than torch may compute at once, 0 first; see
            ``micro_batches_of``.
    """
    if compilers is None:
        compilers = device is None or any(map(shutil.which, ("c++", "g++", "clang++")))
    knobs: dict[str, Sequence[Value]] = {
        "engine": tuple(engines),
        "convolutions": tuple(kind.value for kind in _convolutions_on(device, engines)),
        "folding": (True, False),
        "compiler": tuple(each.value for each in Compiler) if compilers else (Compiler.NONE.value,),
        "precision": tuple(precision.value for precision in precisions),
        "threads": thread_counts(num_cores),
        "operators": [choice.value for choice in _operators_on(device, falls_back)],
        "micro_batch": tuple(micro_batches),
    }
    # A compiler cannot look into convolutions with kernels of their own. A compiled model is frozen, and so folded.
    torchs_kernels = Convolutions.CHANNELS_LAST, Convolutions.CONTIGUOUS
    own_kernels = [kind.value for kind in Convolutions if kind not in torchs_kernels]
    compiled = [each.value for each in Compiler if each is not Compiler.NONE]
    excludes: list[Config] = [{"convolutions": kind, "compiler": name} for kind in own_kernels for name in compiled]
    excludes += [{"folding": False, "compiler": name} for name in compiled]
    excludes.append({"folding": False, "convolutions": Convolutions.BLOCKED.value})
    excludes += _not_when_placed(knobs)
    excludes += [{"engine": Engine.TORCH.value, "micro_batch": size} for size in knobs["micro_batch"][1:]]
    excludes += _not_with_other_engines(knobs) + _not_in_precisions(engines, precisions)
    return Space(knobs, excludes)


def _not_when_placed(knobs: Mapping[str, Sequence[Value]]) -> list[Config]:
    """Returns the values that cannot be combined with operators on both processors.

    A placed network has packed convolutions in float32. It is not compiled.
    """
    only = {"convolutions": Convolutions.PACKED, "compiler": Compiler.NONE, "precision": Precision.FP32}
    others = [(name, value) for name, choice in only.items() for value in knobs[name] if value != choice.value]
    return [{"operators": ImplementationChoice.FALLBACK.value, name: value} for name, value in others]


def _operators_on(device: str | None, falls_back: bool) -> list[ImplementationChoice]:
    if device == "cpu":
        return [ImplementationChoice.MEASURED]
    return [choice for choice in ImplementationChoice if falls_back or choice is not ImplementationChoice.FALLBACK]


def _not_with_other_engines(knobs: Mapping[str, Sequence[Value]]) -> list[Config]:
    """Returns the values that only engine torch can have: all but the defaults of torch's knobs."""
    others = [engine for engine in knobs["engine"] if engine != Engine.TORCH.value]
    ours = [(name, value) for name in TORCH_KNOBS for value in knobs[name][1:]]
    return [{"engine": engine, name: value} for engine in others for name, value in ours]


def _not_in_precisions(engines: Sequence[str], precisions: Sequence[Precision]) -> list[Config]:
    """Returns the pairs of engine and precision that do not exist."""
    return [
        {"engine": engine, "precision": precision.value}
        for engine in engines
        for precision in precisions
        if precision not in precisions_of(*parse_engine(engine))
    ]


def _convolutions_on(device: str | None, engines: Sequence[str]) -> list[Convolutions]:
    if device is None:
        return list(Convolutions)
    if Engine.TORCH.value not in engines:
        return [Convolutions.PACKED]
    if device == "cpu":
        from split_infer_ros.engines.onednn_graph import has_onednn_graphs  # only here: it imports torch

        blocked = [Convolutions.BLOCKED] if has_onednn_graphs() else []
        return [Convolutions.PACKED, *blocked, Convolutions.CHANNELS_LAST, Convolutions.CONTIGUOUS]
    triton = [Convolutions.TRITON, Convolutions.MERGED] if importlib.util.find_spec("triton") else []
    return [Convolutions.PACKED, Convolutions.CONTIGUOUS, *triton]  # on a GPU, packed ones run channels last


def pipeline_space(model: SplitModel, num_cores: int) -> Space:
    """Returns a pipeline's space: split point, batch size and threads; on a GPU also CUDA graphs and memory policy."""
    default = model.split_point("default").name
    on_gpu = model.device.type != "cpu"
    return Space(
        {
            "split_point": tuple(dict.fromkeys((default, *(point.name for point in model.split_points)))),
            "batch_size": BATCH_SIZES,
            "backbone_threads": (1,) if on_gpu else thread_counts(num_cores),
            "head_threads": thread_counts(num_cores) if on_gpu else tuple(reversed(thread_counts(num_cores))),
            "cuda_graphs": (True, False) if on_gpu else (True,),
            "memory_policy": (AUTO, *(policy.value for policy in POLICIES)) if on_gpu else (AUTO,),
        }
    )


def served_config(model: SplitModel) -> dict[str, Any]:
    """Returns the configuration in which a model runs, as ``network_space`` has them. It may have ``segments``."""
    config = model.execution_config
    plain = {name: value for name, value in config.as_json().items() if name != "segments" or value}
    return plain | {"threads": config.threads or num_cores()}


def untuned_config(model: SplitModel, precision: Precision, engine: str) -> Config:
    """Returns the untuned configuration of an engine in a precision, with the threads with which a model serves."""
    space = network_space(num_cores(), (precision,), model.device.type, compilers=False, engines=(engine,))
    return {**space.default, "threads": served_config(model)["threads"]}


def objection_to(config: Mapping[str, Any], space: Space, model: SplitModel) -> str | None:
    """Says in a sentence why a network's configuration lies outside the space; None if it lies inside.

    Args:
        config: the configuration. It may also have ``segments``, which the space does not list. Each is a kind of
            convolutions with the split point up to which it is used.
        space: the space of the network.
        model: the model, for the names of its split points.
    """
    plain = {name: value for name, value in config.items() if name != "segments"}
    segments = config.get("segments", [])
    ends = [split_point.name for split_point in model.split_points]
    if not isinstance(segments, list) or not all(_is_segment(each, ends) for each in segments):
        kinds = ", ".join(kind.value for kind in Convolutions)
        return f"'segments' cannot be {segments!r}; it takes pairs of one of {kinds} and a split point."
    places = [ends.index(end) for _, end in segments]
    if places != sorted(set(places)) or (places and places[-1] != len(ends) - 1):
        return f"'segments' cannot be {segments!r}; they end at split points in order, the last one at {ends[-1]}."
    return space.objection(plain)


def _is_segment(value: object, ends: Sequence[str]) -> bool:
    kinds = [kind.value for kind in Convolutions]
    return isinstance(value, list) and len(value) == 2 and value[0] in kinds and value[1] in ends


def micro_batches_of(batch_size: int, device: str) -> tuple[int, ...]:
    """Returns the micro-batches that can be tried for batches of this size.

    On a GPU, only the whole batch (0) is tried.
    """
    return tuple(size for size in MICRO_BATCHES if not size or (size < batch_size and device == "cpu"))


def thread_counts(num_cores: int) -> tuple[int, ...]:
    """Returns numbers of threads to try: all cores, then half as many each time, down to one."""
    return tuple(dict.fromkeys(max(1, num_cores >> power) for power in range(num_cores.bit_length())))

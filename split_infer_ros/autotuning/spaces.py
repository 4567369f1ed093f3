"""What there is to tune in a model: the declared spaces. A record whose configuration lies outside is not used."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.engines.execution_config import (
    BLOCKED,
    CHANNELS_LAST,
    COMPILERS,
    CONTIGUOUS,
    CONVOLUTIONS,
    EAGER,
    PACKED,
    TRITON,
    ExecutionConfig,
)
from split_infer_ros.engines.onednn_graph import can_be_blocked
from split_infer_ros.search.space import Config, Space, Value
from split_infer_ros.split.model import SplitModel
from split_infer_ros.vision_ops.implementations import ImplementationChoice

NETWORK, PIPELINE = STAGES = ("network", "pipeline")  # the stages of a task
SEGMENTS = "segments"  # of a network, for the graph tuner
SEGMENTS_PARTS = WORK, CONVERSION = ("work", "conversion")  # of a segment: itself, and the layout of what it is given
BATCH_SIZES = (1, 2, 4, 8, 16)


def network_space(
    cores: int, precisions: Sequence[str] = ("fp32",), device: str | None = None, compilers: bool | None = None
) -> Space:
    """How the whole network is run, a batch at a time.

    Args:
        cores: that this process may use.
        precisions: those that the user allows.
        device: ``cpu`` or ``cuda``: what there is to try there; None: all that a record may say.
        compilers: whether torch.compile is tried; unless said, where there is a C++ compiler, which it needs.
    """
    if compilers is None:
        compilers = device is None or any(map(shutil.which, ("c++", "g++", "clang++")))
    knobs: dict[str, Sequence[Value]] = {
        "convolutions": _convolutions_on(device),
        "folding": (True, False),
        "compiler": COMPILERS if compilers else (EAGER,),
        "precision": tuple(precisions),
        "threads": fewer(cores),
        "operators": [choice.value for choice in ImplementationChoice]
        if device != "cpu"
        else [ImplementationChoice.MEASURED.value],
    }
    # What has kernels of its own no compiler can look into, and what is frozen is folded thereby.
    whole = (PACKED, BLOCKED, TRITON)
    excludes: list[Config] = [{"convolutions": kind, "compiler": name} for kind in whole for name in COMPILERS[1:]]
    excludes += [{"folding": False, "compiler": name} for name in COMPILERS[1:]]
    excludes.append({"folding": False, "convolutions": BLOCKED})
    return Space(knobs, excludes)


def _convolutions_on(device: str | None) -> tuple[str, ...]:
    if device is None:
        return CONVOLUTIONS
    if device == "cpu":
        return (PACKED, *([BLOCKED] if can_be_blocked() else []), CHANNELS_LAST, CONTIGUOUS)
    return (PACKED, CONTIGUOUS, *([TRITON] if importlib.util.find_spec("triton") else []))  # none is packed there


def pipeline_space(model: SplitModel, cores: int) -> Space:
    """Where the model is split, images a batch, and who has which cores; on a GPU also how it is launched and fed."""
    default = model.split_point("default").name
    on_gpu = model.device.type != "cpu"
    return Space(
        {
            "split_point": (
                default,
                *(split_point.name for split_point in model.split_points if split_point.name != default),
            ),
            "batch_size": BATCH_SIZES,
            "backbone_threads": (1,) if on_gpu else fewer(cores),
            "head_threads": fewer(cores) if on_gpu else tuple(reversed(fewer(cores))),
            "cuda_graphs": (True, False) if on_gpu else (True,),
            "memory_policy": (AUTO, *(policy.value for policy in POLICIES)) if on_gpu else (AUTO,),
        }
    )


def form_of(config: Mapping[str, Any]) -> ExecutionConfig:
    """The form that a configuration of the network's stage stands for."""
    return ExecutionConfig(
        config["convolutions"],
        config["folding"],
        config["compiler"],
        config["operators"],
        tuple((kind, end) for kind, end in config.get("segments", ())),
    )


def objection_to(config: Mapping[str, Any], space: Space, model: SplitModel) -> str | None:
    """Why a configuration of the network's stage, its segments included, is none of the space's; None if it is one."""
    plain = {name: value for name, value in config.items() if name != "segments"}
    segments = config.get("segments", [])
    ends = [split_point.name for split_point in model.split_points]
    if not isinstance(segments, list) or not all(_is_segment(each, ends) for each in segments):
        return (
            f"'segments' cannot be {segments!r}; it takes pairs of one of {', '.join(CONVOLUTIONS)} and a split point."
        )
    places = [ends.index(end) for _, end in segments]
    if places != sorted(set(places)) or (places and places[-1] != len(ends) - 1):
        return f"'segments' cannot be {segments!r}; they end at split points in order, the last one at {ends[-1]}."
    return space.objection(plain)


def _is_segment(value: object, ends: Sequence[str]) -> bool:
    return isinstance(value, list) and len(value) == 2 and value[0] in CONVOLUTIONS and value[1] in ends


def fewer(cores: int) -> tuple[int, ...]:
    """Numbers of threads: all cores, and then partitions of them down to one."""
    return tuple(dict.fromkeys(max(1, cores >> power) for power in range(cores.bit_length())))

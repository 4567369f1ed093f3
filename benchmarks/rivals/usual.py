"""The usual nodes as rivals: their names, how each one starts, and what a report says about its precision.

Around OpenVINO there are two nodes: in fp32, and in the precision that OpenVINO takes if a program names none. torch
and ONNX Runtime compute in fp32 on a CPU unless a program asks for something else, so there is one node around each.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.common.child_process import to_run
from benchmarks.rivals.usual_openvino import AS_IT_COMPILES, FP32

TORCH, ONNXRUNTIME, OPENVINO_FP32, OPENVINO_AS_IT_COMPILES = USUAL = (
    "usual_torch",
    "usual_onnxruntime",
    f"usual_openvino_{FP32}",
    f"usual_openvino_{AS_IT_COMPILES}",
)
NODE = "benchmarks.rivals.usual_detector"
ARGUMENTS = {
    TORCH: ("torch",),
    ONNXRUNTIME: ("onnxruntime",),
    OPENVINO_FP32: ("openvino", "--precision", FP32),
    OPENVINO_AS_IT_COMPILES: ("openvino", "--precision", AS_IT_COMPILES),
}


def command(rival: str, model: str | Path) -> list[str]:
    """Returns the arguments with which a Python interpreter starts a usual node.

    Args:
        rival: the name of the node, one of ``USUAL``.
        model: the ONNX file.
    """
    engine, *options = ARGUMENTS[rival]
    return [*to_run(NODE), engine, str(model), *options]


def without_twin(rivals: Iterable[str], default: str) -> tuple[str, ...]:
    """Returns the rivals without those that would run twice.

    If OpenVINO compiles in fp32 by default, its node as it compiles equals its node in fp32, and is left out.

    Args:
        rivals: the names of the rivals.
        default: the precision in which OpenVINO compiles here if none is named; see ``compiles_in``.
    """
    return tuple(rival for rival in rivals if rival != OPENVINO_AS_IT_COMPILES or default != FP32)


def as_it_compiles(rivals: Iterable[str]) -> str:
    """Returns the rival that runs OpenVINO as it compiles.

    If ``without_twin`` left that node out, the node in fp32 is the same.
    """
    return OPENVINO_AS_IT_COMPILES if OPENVINO_AS_IT_COMPILES in rivals else OPENVINO_FP32


def precision_row(rival: str, default: str) -> dict[str, str]:
    """Returns the part of a row that is about a usual node's precision; empty for any other rival.

    ``stands_for`` names a rival that did not run because it would be the same; see ``without_twin``.

    Args:
        rival: the name of the rival.
        default: the precision in which OpenVINO compiles here if none is named; see ``compiles_in``.
    """
    if rival not in USUAL:
        return {}
    row = {"precision": default if rival == OPENVINO_AS_IT_COMPILES else FP32}
    if rival == OPENVINO_FP32 and default == FP32:
        row["stands_for"] = OPENVINO_AS_IT_COMPILES
    return row

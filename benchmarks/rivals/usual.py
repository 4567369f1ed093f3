"""The usual nodes as rivals: their names, how each one starts, and what a report says of its precision.

Around OpenVINO there are two nodes: in fp32, and as it compiles. torch and ONNX Runtime compute in fp32 on a CPU
unless a program asks for something else, so there is one node around each.
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
    """Returns what follows the name of the Python interpreter, for a usual node with an ONNX file."""
    engine, *options = ARGUMENTS[rival]
    return [*to_run(NODE), engine, str(model), *options]


def without_twin(rivals: Iterable[str], default: str) -> tuple[str, ...]:
    """Returns the rivals, without the node as OpenVINO compiles it where it is the same as the one in fp32.

    Args:
        rivals: their names.
        default: the precision in which OpenVINO compiles here; see ``compiles_in``.
    """
    return tuple(rival for rival in rivals if rival != OPENVINO_AS_IT_COMPILES or default != FP32)


def as_it_compiles(rivals: Iterable[str]) -> str:
    """Returns the rival that stands for the node as OpenVINO compiles it: that node, or the one in fp32."""
    return OPENVINO_AS_IT_COMPILES if OPENVINO_AS_IT_COMPILES in rivals else OPENVINO_FP32


def precision_row(rival: str, default: str) -> dict[str, str]:
    """Returns what a row says of a usual node's precision; nothing for any other rival.

    ``stands_for`` names the rival that did not run because it is the same.

    Args:
        rival: its name.
        default: the precision in which OpenVINO compiles here; see ``compiles_in``.
    """
    if rival not in USUAL:
        return {}
    row = {"precision": default if rival == OPENVINO_AS_IT_COMPILES else FP32}
    if rival == OPENVINO_FP32 and default == FP32:
        row["stands_for"] = OPENVINO_AS_IT_COMPILES
    return row

"""A cell of the benchmark: so many cameras with so many models. Says where its rivals listen, and starts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.yolo_sized import WIDTHS, export, make_network
from benchmarks.rivals.usual import OPENVINO_AS_IT_COMPILES, OPENVINO_FP32, command
from benchmarks.ros.observer import Observer
from benchmarks.ros.processes import Processes
from split_infer_ros.engines.precision import AUTO, Precision

TENANTS, USUAL, PIPELINES = RIVALS = ("tenants", "usual", "pipelines")
LARGE, SMALL, MIDDLE = MODELS = ("yolo_n", "yolo_n_half", "yolo_n_three_quarters")
SHARES = {LARGE: 1.0, SMALL: 0.5, MIDDLE: 0.75}  # of the channels of YOLOv8n
DEFAULT = "default"  # the precision that each rival takes if none is named
FP32 = Precision.FP32.value
COMPARING = "comparing"  # the namespace of the tenants that compare engines
OURS = ("-m", "split_infer_ros", "pipeline")


@dataclass(frozen=True)
class Cell:
    """Some cameras, and the models that their images are for.

    Attributes:
        num_cameras: how many cameras there are.
        models: the names of the models. The cameras use them in turn. A model that no camera uses is left out.
    """

    num_cameras: int
    models: Sequence[str]

    @property
    def name(self) -> str:
        """The name of the cell in rows and claims."""
        count = len(set(self.model_of.values()))
        return f"{self.num_cameras} cameras, {count} model{'s' if count > 1 else ''}"

    @property
    def cameras(self) -> list[str]:
        """The names of the cameras."""
        return [f"camera{index}" for index in range(self.num_cameras)]

    @property
    def model_of(self) -> dict[str, str]:
        """The name of the model of each camera."""
        return {name: self.models[index % len(self.models)] for index, name in enumerate(self.cameras)}


def topics(cell: Cell, rival: str, name: str) -> list[str]:
    """Returns a rival's topics of a name, ``image`` or ``detections``: one for each camera of the cell."""
    return [f"/{rival}/{camera}/{name}" for camera in cell.cameras]


def export_models(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """Writes the models to ONNX files in a folder. Returns their paths by the models' names."""
    paths = {name: folder / f"{name}.onnx" for name in names}
    for name, path in paths.items():
        export(make_network(widths=[round(SHARES[name] * width) for width in WIDTHS]), path)
    return paths


def start(cell: Cell, processes: Processes, paths: Mapping[str, Path], precision: str) -> dict[str, list[int]]:
    """Starts all rivals of a cell. Returns their process ids.

    Before that, the tenants are started once and ended. They compare engines, and the rivals find what was compared. So
    no rival keeps memory that comparing has taken.

    Args:
        cell: the cell.
        processes: starts the nodes.
        paths: the ONNX file of each model.
        precision: ``FP32``, or ``DEFAULT`` for the precision that each rival takes if none is named.
    """
    given = {"improve": "before_start", "source": "none", "precision": AUTO if precision == DEFAULT else precision}
    models = {camera: str(paths[model]) for camera, model in cell.model_of.items()}
    of_tenants: dict[str, Any] = {f"tenant.{camera}.model": model for camera, model in models.items()}
    of_tenants["tenants"] = cell.cameras
    with Processes() as once, Observer() as observer:
        once.start(OURS, COMPARING, **given, **of_tenants)
        for topic in topics(cell, COMPARING, "image"):
            observer.wait_for_subscriber(topic)
    usual = OPENVINO_FP32 if precision == FP32 else OPENVINO_AS_IT_COMPILES
    return {
        TENANTS: [processes.start(OURS, TENANTS, **given, **of_tenants)],
        USUAL: [processes.start(command(usual, model), f"{USUAL}/{camera}") for camera, model in models.items()],
        PIPELINES: [
            processes.start(OURS, f"{PIPELINES}/{camera}", **given, model=model) for camera, model in models.items()
        ],
    }

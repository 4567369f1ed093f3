"""Split inference for ROS 2: the backbone of a model runs on the GPU, its head on the CPU.

The nodes need ROS. The rest of the package does not, and also works in a notebook. This example detects objects in
images. They are NumPy arrays of uint8, (height, width, 3), in RGB.

>>> from split_infer_ros import LocalPipeline, ModelSpec, load_model
>>> from split_infer_ros.sources import draw_scene
>>> images = (draw_scene(seed=seed, index=0).image for seed in (1, 2))
>>> model = load_model(ModelSpec("shapes"))
>>> with LocalPipeline(model) as pipeline:
...     for result in pipeline.run(images):
...         print(result.index, sorted({model.entry.labels[label] for label in result.detections.labels}))
0 ['circle', 'square']
1 ['square', 'triangle']

Names are imported when they are first used, so that importing the package alone does not import torch.
"""

# Only modules that Python itself has imported already. With `python -m`, the search path still has the working folder.
import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from split_infer_ros.errors import (
        ConfigurationError,
        FrameError,
        HandleError,
        ImageError,
        Notice,
        PassingError,
        PointCloudError,
        SourceError,
        SplitInferError,
        StreamError,
        UnknownModelError,
        UnknownSplitPointError,
        WeightsError,
    )
    from split_infer_ros.models.detections import Detections, Limits
    from split_infer_ros.models.entry import ModelEntry
    from split_infer_ros.models.preprocess import Preprocess
    from split_infer_ros.server.local import ImageResult, LocalPipeline
    from split_infer_ros.server.settings import StageSettings
    from split_infer_ros.split.load import load_model, onnx_entry
    from split_infer_ros.split.model_spec import ModelSpec

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "Detections",
    "FrameError",
    "HandleError",
    "ImageError",
    "ImageResult",
    "Limits",
    "LocalPipeline",
    "ModelEntry",
    "ModelSpec",
    "Notice",
    "PassingError",
    "PointCloudError",
    "Preprocess",
    "SourceError",
    "SplitInferError",
    "StageSettings",
    "StreamError",
    "UnknownModelError",
    "UnknownSplitPointError",
    "WeightsError",
    "load_model",
    "onnx_entry",
]

# Lets the package find its installed generated messages when it is imported from the source tree.
__path__ += [
    folder
    for entry in sys.path
    if os.path.isfile(os.path.join(folder := os.path.join(entry, __name__), "__init__.py"))
    and os.path.isabs(folder)
    and folder not in __path__
]

_MODULES = {
    "Detections": "models.detections",
    "ImageResult": "server.local",
    "Limits": "models.detections",
    "LocalPipeline": "server.local",
    "ModelEntry": "models.entry",
    "ModelSpec": "split.model_spec",
    "Preprocess": "models.preprocess",
    "StageSettings": "server.settings",
    "load_model": "split.load",
    "onnx_entry": "split.load",
}


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

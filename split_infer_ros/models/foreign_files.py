"""Refuses model names that the package cannot load: files of other frameworks, folders and addresses."""

from __future__ import annotations

from pathlib import Path, PurePath

from split_infer_ros.errors import UnknownModelError
from split_infer_ros.models.user_names import PROGRAM_SUFFIX
from split_infer_ros.runtime.user_files import is_folder, user_path

MODEL_SUFFIXES = (".onnx", PROGRAM_SUFFIX)

_PYTORCH = "a file of PyTorch, which may hold pickled code; export it to ONNX ({export})"
_STATES = (
    "a file of weights, which needs its network: model takes the network's name and weights this file; or export the "
    "whole model to ONNX ({export})"
)
_EXPORT = "torch.onnx.export in Python; for a YOLO of Ultralytics 'yolo export model={name} format=onnx'"
_KINDS = {
    ".pt": _PYTORCH,
    ".torchscript": _PYTORCH,
    ".pth": _STATES,
    ".ckpt": _STATES,
    ".bin": "a file of weights without a network; export the whole model to ONNX",
    ".safetensors": _STATES,
    ".weights": "Darknet's file of weights: set model to yolov3 or yolov4, and weights to this file",
    ".cfg": "Darknet's description of a network; convert it to ONNX with its weights",
    ".engine": "an engine of TensorRT, which fits one GPU and one version; take the ONNX file from which it was built",
    ".trt": "an engine of TensorRT, which fits one GPU and one version; take the ONNX file from which it was built",
    ".plan": "an engine of TensorRT, which fits one GPU and one version; take the ONNX file from which it was built",
    ".ort": "ONNX Runtime's own format; take the ONNX file from which it was made",
    ".xml": "OpenVINO's own format; take the ONNX file from which it was made, and set engine to openvino",
    ".tflite": "a file of TensorFlow Lite; convert it to ONNX ('python -m tf2onnx.convert --tflite {name} --output "
    "model.onnx')",
    ".pb": "a graph of TensorFlow; convert it to ONNX ('python -m tf2onnx.convert --graphdef {name} --output "
    "model.onnx', with its inputs and outputs)",
    ".h5": "a file of Keras; convert it to ONNX ('python -m tf2onnx.convert --keras {name} --output model.onnx')",
    ".keras": "a file of Keras; convert it to ONNX with tf2onnx",
    ".caffemodel": "a file of Caffe; convert it to ONNX",
    ".pdmodel": "a file of Paddle; convert it to ONNX with paddle2onnx",
    ".param": "a file of ncnn; take the ONNX file from which it was made",
    ".mlpackage": "a model of Core ML; take the ONNX file from which it was made",
    ".mlmodel": "a model of Core ML; take the ONNX file from which it was made",
    ".hef": "a file for Hailo's processors; take the ONNX file from which it was made",
    ".rknn": "a file for Rockchip's processors; take the ONNX file from which it was made",
    ".zip": "an archive; unpack it",
}


def refuse_foreign_file(name: str) -> None:
    """Refuses a name that cannot name a model, such as a file of another framework. Does nothing for other names.

    Raises:
        UnknownModelError: the name is an address, has blanks around it, or names a folder or a kind of file that the
            package cannot load. The error says what to do instead.
    """
    if name != name.strip():
        raise UnknownModelError(f"model {name!r} has blanks around it; take '{name.strip()}'.")
    if "://" in name:
        local = name.removeprefix("file://")
        hint = f"take '{local}'" if local != name else "download the file, and name its path"
        raise UnknownModelError(f"model '{name}' is an address, and model takes a path; {hint}.")
    suffix = PurePath(name).suffix.lower()
    path = user_path(name)
    if name and is_folder(path):
        raise UnknownModelError(f"model '{name}' is a folder; model takes a file{_files_in(path)}.")
    if suffix in _KINDS:
        export = _EXPORT.format(name=name)
        raise UnknownModelError(f"model '{name}' is {_KINDS[suffix].format(name=name, export=export)}.")


def _files_in(folder: Path) -> str:
    """Returns the end of a sentence: the names of up to five models in a folder, or an example if it has none."""
    try:
        found = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in MODEL_SUFFIXES)
    except OSError:
        found = []
    return f"; there are {', '.join(found[:5])}" if found else ", such as FILE.onnx"

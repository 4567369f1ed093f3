"""The catalogue: all models that the package knows by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from torch import nn
from torchvision import models as zoo
from torchvision.models import detection as zoo_detection

from split_infer_ros.errors import UnknownModelError
from split_infer_ros.models import (
    dense,
    faster_rcnn,
    shapes,
    ssd,
    ssd_resnet,
    timm_models,
    user,
    yolo,
    yolov3,
    yolov4,
)
from split_infer_ros.models.classifier import IMAGENET_LABELS, classify
from split_infer_ros.models.decoders.recognition import Reading
from split_infer_ros.models.downloads import DOWNLOADS, refuse_options
from split_infer_ros.models.entry import Decode, ModelEntry, Weights
from split_infer_ros.models.foreign_files import refuse_foreign_file
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.onnx_models import OnnxFile, is_onnx_file, read_onnx_file
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.torchvision_models import classifier_entry, detector_entry

COCO_LABELS = tuple(zoo_detection.SSD300_VGG16_Weights.COCO_V1.meta["categories"])  # with the background and gaps


def find_model(
    name: str,
    *,
    allow_user_code: bool = False,
    onnx_options: OnnxOptions | None = None,
    read_outputs: Callable[[OnnxFile], Reading] = OnnxFile.recognise,
) -> ModelEntry:
    """Returns the entry of a model.

    Args:
        name: a name of the catalogue, ``timm:NAME``, or a user's ``FILE.onnx``, ``package.module:factory`` or
            ``FILE.pt2``. A model that is downloaded has the path of its file; see ``split.located_spec``.
        allow_user_code: whether a factory or an exported program may be loaded, which may run any code. An ONNX file
            runs none.
        onnx_options: what the user says about an ONNX file.
        read_outputs: finds out how the outputs of an ONNX file are read. By default, their names and shapes decide.

    Raises:
        UnknownModelError: there is no such model. The error lists the known ones.
        ConfigurationError: the model cannot be loaded, or options for ONNX files are given for another model.
    """
    options = onnx_options or OnnxOptions()
    if name not in CATALOGUE and not name.startswith(timm_models.PREFIX):
        refuse_foreign_file(name)
    if is_onnx_file(name):
        file = read_onnx_file(name, options)
        return file.entry(read_outputs(file))
    refuse_options(name, options)
    if name.startswith(timm_models.PREFIX):
        return timm_models.find_timm_model(name)
    if user.is_user_model(name):
        return user.load_user_model(name, allow_user_code=allow_user_code)
    try:
        return CATALOGUE[name]
    except KeyError:
        known = [*CATALOGUE, *DOWNLOADS]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UnknownModelError(
            f"There is no model '{name}'.{hint} There are: {', '.join(known)}; and timm:NAME, "
            "FILE.onnx, package.module:factory and FILE.pt2."
        ) from None


def _yolo_entry(name: str, title: str, *, build: Callable[[], nn.Module], decode: Decode) -> ModelEntry:
    """Returns the entry of a YOLO of Darknet's, whose trained weights are in a file that the user has."""
    return ModelEntry(
        name=name,
        summary=f"{title}, 80 classes of COCO; takes Darknet's {name}.weights",
        build=build,
        weights=Weights(darknet_file=f"{name}.weights"),
        preprocess=Preprocess(yolo.SIZE, yolo.SIZE, antialias=False, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
        labels=tuple(label for label in COCO_LABELS[1:] if label != "N/A"),
        default_split_point="output",
        decode=decode,
    )


_DETECTORS = (
    ModelEntry(
        name="shapes",
        summary="finds circles, squares and triangles; its weights are part of this package",
        build=shapes.ShapesNet,
        weights=Weights(path=shapes.WEIGHTS),
        preprocess=Preprocess(shapes.HEIGHT, shapes.WIDTH, mean=shapes.MEAN, std=shapes.STD),
        labels=shapes.LABELS,
        default_split_point=shapes.DEFAULT_SPLIT_POINT,
        decode=shapes.decode,
    ),
    detector_entry(
        "ssdlite320",
        title="SSDlite320 with MobileNetV3-Large",
        build=partial(ssd.SsdNet, ssd.ssdlite320),
        published=zoo_detection.SSDLite320_MobileNet_V3_Large_Weights.COCO_V1,
        preprocess=Preprocess(320, 320, antialias=False, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        decode=ssd.ssd_decode(ssd.ssdlite320),
    ),
    detector_entry(
        "ssd300",
        title="SSD300 with VGG-16",
        build=partial(ssd.SsdNet, ssd.ssd300),
        published=zoo_detection.SSD300_VGG16_Weights.COCO_V1,
        preprocess=Preprocess(
            300, 300, antialias=False, mean=(0.48235, 0.45882, 0.40784), std=(1 / 255, 1 / 255, 1 / 255)
        ),
        decode=ssd.ssd_decode(ssd.ssd300),
    ),
    detector_entry(
        "fasterrcnn_mobilenet_320",
        title="Faster R-CNN with MobileNetV3-Large",
        build=faster_rcnn.FasterRcnn,
        published=zoo_detection.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1,
        preprocess=Preprocess(
            faster_rcnn.HEIGHT, faster_rcnn.WIDTH, antialias=False, letterbox=Letterbox(*faster_rcnn.LETTERBOX)
        ),
        default_split_point="rpn.head",  # the time of what follows depends on the image
    ),
    detector_entry(
        "retinanet",
        title="RetinaNet with ResNet-50",
        build=dense.RetinaNet,
        published=zoo_detection.RetinaNet_ResNet50_FPN_Weights.COCO_V1,
        preprocess=Preprocess(dense.HEIGHT, dense.WIDTH, antialias=False, letterbox=Letterbox(*dense.LETTERBOX)),
    ),
    detector_entry(
        "fcos",
        title="FCOS with ResNet-50",
        build=dense.Fcos,
        published=zoo_detection.FCOS_ResNet50_FPN_Weights.COCO_V1,
        preprocess=Preprocess(dense.HEIGHT, dense.WIDTH, antialias=False, letterbox=Letterbox(*dense.LETTERBOX)),
    ),
    ModelEntry(
        name="ssd_resnet50",
        summary="SSD512 with ResNet-50, 90 classes of COCO; no weights of this network are published",
        build=partial(ssd.SsdNet, ssd_resnet.ssd_resnet50),
        weights=Weights(),
        preprocess=Preprocess(ssd_resnet.SIZE, ssd_resnet.SIZE, antialias=False),
        labels=COCO_LABELS,
        default_split_point="output",
        decode=ssd.ssd_decode(ssd_resnet.ssd_resnet50),
    ),
    _yolo_entry("yolov3", "YOLOv3 with Darknet-53", build=yolov3.Yolov3, decode=yolov3.decode),
    _yolo_entry("yolov4", "YOLOv4 with CSPDarknet-53", build=yolov4.Yolov4, decode=yolov4.decode),
)

_CLASSIFIERS = (
    classifier_entry(
        "mobilenet_v2",
        title="MobileNetV2",
        build=zoo.mobilenet_v2,
        published=zoo.MobileNet_V2_Weights.IMAGENET1K_V1,
        default_split_point="classifier.0",
    ),
    classifier_entry(
        "efficientnet_b2",
        title="EfficientNet-B2",
        build=zoo.efficientnet_b2,
        published=zoo.EfficientNet_B2_Weights.IMAGENET1K_V1,
        default_split_point="classifier.0",
    ),
    ModelEntry(
        name="vit_tiny",
        summary="ViT-Tiny, 1,000 classes of ImageNet; no weights of this network are published",
        build=partial(
            zoo.VisionTransformer,
            image_size=224,
            patch_size=16,
            num_layers=12,
            num_heads=3,
            hidden_dim=192,
            mlp_dim=768,
        ),
        weights=Weights(),
        preprocess=Preprocess(224, 224, shorter_side=256),
        labels=IMAGENET_LABELS,
        default_split_point=None,
        decode=classify(224, 224),
    ),
    classifier_entry(
        "resnet18",
        title="ResNet-18",
        build=zoo.resnet18,
        published=zoo.ResNet18_Weights.IMAGENET1K_V1,
        default_split_point="flatten",
    ),
    classifier_entry(
        "resnet50",
        title="ResNet-50",
        build=zoo.resnet50,
        published=zoo.ResNet50_Weights.IMAGENET1K_V2,
        default_split_point="flatten",
    ),
    classifier_entry(
        "squeezenet1_0",
        title="SqueezeNet 1.0",
        build=zoo.squeezenet1_0,
        published=zoo.SqueezeNet1_0_Weights.IMAGENET1K_V1,
        default_split_point="classifier.3",
    ),
    classifier_entry(
        "alexnet",
        title="AlexNet",
        build=zoo.alexnet,
        published=zoo.AlexNet_Weights.IMAGENET1K_V1,
        default_split_point="classifier.5",
    ),
    classifier_entry(
        "vgg16",
        title="VGG-16",
        build=zoo.vgg16,
        published=zoo.VGG16_Weights.IMAGENET1K_V1,
        default_split_point="classifier.5",
    ),
)

CATALOGUE: dict[str, ModelEntry] = {entry.name: entry for entry in (*_DETECTORS, *_CLASSIFIERS)}

"""The models that are known by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath

from torch import nn
from torchvision import models as zoo
from torchvision.models import detection as zoo_detection

from split_infer_ros.errors import UnknownModelError
from split_infer_ros.models import dense, faster_rcnn, shapes, ssd, ssd_resnet, timm_models, user, yolo
from split_infer_ros.models.classifier import IMAGENET_LABELS, classify
from split_infer_ros.models.detections import suppress_all
from split_infer_ros.models.entry import Decode, ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess

COCO_LABELS = tuple(zoo_detection.SSD300_VGG16_Weights.COCO_V1.meta["categories"])  # with the background and gaps


def find_model(name: str, allow_user_code: bool = False) -> ModelEntry:
    """The entry of that name.

    Args:
        name: of the catalogue; or ``timm:NAME``; or, of the user's own, ``package.module:factory`` or ``FILE.pt2``.
        allow_user_code: whether a model of the user's own may be loaded, which may run any code.

    Raises:
        UnknownModelError: there is none; the error lists those that there are.
        ConfigurationError: it cannot be loaded.
    """
    if name.startswith(timm_models.PREFIX):
        return timm_models.find(name)
    if user.is_user_model(name):
        return user.load(name, allow_user_code)
    try:
        return CATALOGUE[name]
    except KeyError:
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UnknownModelError(
            f"There is no model '{name}'.{hint} There are: {', '.join(CATALOGUE)}; and timm:NAME, "
            "package.module:factory and FILE.pt2."
        ) from None


def _classifier(
    name: str, title: str, build: Callable[..., nn.Module], published: zoo.WeightsEnum, default_split_point: str
) -> ModelEntry:
    """A classifier of torchvision's: size, pre-processing and labels as its weights state them."""
    preset = published.transforms()
    size = preset.crop_size[0]
    return ModelEntry(
        name=name,
        summary=f"{title}, 1,000 classes of ImageNet",
        build=partial(build, weights=None),
        weights=_download(published),
        preprocess=Preprocess(
            size,
            size,
            preset.resize_size[0],
            interpolation=preset.interpolation.value,
            mean=tuple(preset.mean),
            std=tuple(preset.std),
        ),
        labels=tuple(published.meta["categories"]),
        default_split_point=default_split_point,
        decode=classify(size, size),
    )


def _detector(
    name: str,
    title: str,
    build: Callable[[], nn.Module],
    published: zoo.WeightsEnum,
    preprocess: Preprocess,
    decode: Decode = suppress_all,
    default_split_point: str = "output",
) -> ModelEntry:
    """A detector of torchvision's; its weights say nothing of pre-processing."""
    return ModelEntry(
        name=name,
        summary=f"{title}, 90 classes of COCO",
        build=build,
        weights=_download(published),
        preprocess=preprocess,
        labels=tuple(published.meta["categories"]),
        default_split_point=default_split_point,
        decode=decode,
    )


def _download(published: zoo.WeightsEnum) -> Weights:
    return Weights(url=published.url, file_name=PurePosixPath(published.url).name)


CATALOGUE: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
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
        _detector(
            "ssdlite320",
            "SSDlite320 with MobileNetV3-Large",
            partial(ssd.SsdNet, ssd.ssdlite320),
            zoo_detection.SSDLite320_MobileNet_V3_Large_Weights.COCO_V1,
            Preprocess(320, 320, antialias=False, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
            ssd.ssd_decode(ssd.ssdlite320),
        ),
        _detector(
            "ssd300",
            "SSD300 with VGG-16",
            partial(ssd.SsdNet, ssd.ssd300),
            zoo_detection.SSD300_VGG16_Weights.COCO_V1,
            Preprocess(300, 300, antialias=False, mean=(0.48235, 0.45882, 0.40784), std=(1 / 255, 1 / 255, 1 / 255)),
            ssd.ssd_decode(ssd.ssd300),
        ),
        _detector(
            "fasterrcnn_mobilenet_320",
            "Faster R-CNN with MobileNetV3-Large",
            faster_rcnn.FasterRcnn,
            zoo_detection.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1,
            Preprocess(faster_rcnn.HEIGHT, faster_rcnn.WIDTH, antialias=False, letterbox=faster_rcnn.FIT),
            default_split_point="rpn.head",  # behind it, how much there is to do depends on values
        ),
        _detector(
            "retinanet",
            "RetinaNet with ResNet-50",
            dense.RetinaNet,
            zoo_detection.RetinaNet_ResNet50_FPN_Weights.COCO_V1,
            Preprocess(dense.HEIGHT, dense.WIDTH, antialias=False, letterbox=dense.FIT),
        ),
        _detector(
            "fcos",
            "FCOS with ResNet-50",
            dense.Fcos,
            zoo_detection.FCOS_ResNet50_FPN_Weights.COCO_V1,
            Preprocess(dense.HEIGHT, dense.WIDTH, antialias=False, letterbox=dense.FIT),
        ),
        ModelEntry(
            name="ssd_resnet50",
            summary="SSD512 with ResNet-50, 90 classes of COCO; nobody publishes weights of this form",
            build=partial(ssd.SsdNet, ssd_resnet.ssd_resnet50),
            weights=Weights(),
            preprocess=Preprocess(ssd_resnet.SIZE, ssd_resnet.SIZE, antialias=False),
            labels=COCO_LABELS,
            default_split_point="output",
            decode=ssd.ssd_decode(ssd_resnet.ssd_resnet50),
        ),
        ModelEntry(
            name="yolov3",
            summary="YOLOv3 with Darknet-53, 80 classes of COCO; nobody publishes weights of this form",
            build=yolo.Yolov3,
            weights=Weights(),
            preprocess=Preprocess(*(yolo.SIZE, yolo.SIZE), antialias=False, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
            labels=tuple(label for label in COCO_LABELS[1:] if label != "N/A"),
            default_split_point="output",
            decode=yolo.decode,
        ),
        _classifier(
            "mobilenet_v2", "MobileNetV2", zoo.mobilenet_v2, zoo.MobileNet_V2_Weights.IMAGENET1K_V1, "classifier.0"
        ),
        _classifier(
            "efficientnet_b2",
            "EfficientNet-B2",
            zoo.efficientnet_b2,
            zoo.EfficientNet_B2_Weights.IMAGENET1K_V1,
            "classifier.0",
        ),
        ModelEntry(
            name="vit_tiny",
            summary="ViT-Tiny, 1,000 classes of ImageNet; nobody publishes weights of this form",
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
            preprocess=Preprocess(224, 224, 256),
            labels=IMAGENET_LABELS,
            default_split_point=None,
            decode=classify(224, 224),
        ),
        _classifier("resnet18", "ResNet-18", zoo.resnet18, zoo.ResNet18_Weights.IMAGENET1K_V1, "flatten"),
        _classifier("resnet50", "ResNet-50", zoo.resnet50, zoo.ResNet50_Weights.IMAGENET1K_V2, "flatten"),
        _classifier(
            "squeezenet1_0",
            "SqueezeNet 1.0",
            zoo.squeezenet1_0,
            zoo.SqueezeNet1_0_Weights.IMAGENET1K_V1,
            "classifier.3",
        ),
        _classifier("alexnet", "AlexNet", zoo.alexnet, zoo.AlexNet_Weights.IMAGENET1K_V1, "classifier.5"),
        _classifier("vgg16", "VGG-16", zoo.vgg16, zoo.VGG16_Weights.IMAGENET1K_V1, "classifier.5"),
    )
}

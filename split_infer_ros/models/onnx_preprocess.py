"""The pre-processing of ONNX files, which follows what their exporters do."""

from __future__ import annotations

from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.onnx_options import Decoder, Recipe
from split_infer_ros.models.preprocess import RESIZE_RATIO, Preprocess

PADDING = (114.0, 114.0, 114.0)

_ZERO, _ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
_LEVEL = (1 / 255, 1 / 255, 1 / 255)
_IMAGENET_GREY = (0.485 * 255, 0.456 * 255, 0.406 * 255)  # becomes 0 where the network normalises as for ImageNet

_OF_DECODER = {
    Decoder.YOLOV8: Recipe.LETTERBOX,
    Decoder.YOLOV5: Recipe.LETTERBOX,
    Decoder.END_TO_END: Recipe.LETTERBOX,
    Decoder.YOLOX: Recipe.YOLOX,
    Decoder.RTDETR: Recipe.STRETCH,
    Decoder.RTDETR_END_TO_END: Recipe.STRETCH,
    Decoder.DETR: Recipe.STRETCH_SMOOTH,
    Decoder.DETR_SOFTMAX: Recipe.STRETCH_IMAGENET,
    Decoder.TORCHVISION: Recipe.LETTERBOX_CORNER,
    Decoder.CLASSIFIER: Recipe.CROP_IMAGENET,
}


def usual_recipe(decoder: Decoder, output_names: tuple[str, ...], *, is_ultralytics: bool) -> Recipe:
    """Returns the pre-processing that belongs to outputs of this kind.

    RF-DETR, whose boxes are called ``dets``, is normalised as for ImageNet. Other files of the DETR family take 0..1.
    """
    if decoder is Decoder.DETR and "dets" in output_names:
        return Recipe.STRETCH_IMAGENET
    if decoder is Decoder.CLASSIFIER and is_ultralytics:
        return Recipe.CROP
    return _OF_DECODER[decoder]


def make_preprocess(recipe: Recipe, height: int, width: int) -> Preprocess:
    """Makes the pre-processing for an input of this size in pixels."""
    if recipe is Recipe.LETTERBOX:
        area = Letterbox(height, width, centred=True, colour=PADDING)
        return Preprocess(height, width, mean=_ZERO, std=_ONE, letterbox=area, opencv=True)
    if recipe is Recipe.LETTERBOX_CORNER:
        area = Letterbox(height, width, colour=_IMAGENET_GREY)
        return Preprocess(height, width, mean=_ZERO, std=_ONE, letterbox=area, antialias=False)
    if recipe is Recipe.YOLOX:
        area = Letterbox(height, width, colour=PADDING)
        return Preprocess(height, width, mean=_ZERO, std=_LEVEL, letterbox=area, opencv=True, bgr=True)
    if recipe is Recipe.STRETCH:
        return Preprocess(height, width, mean=_ZERO, std=_ONE, opencv=True)
    if recipe is Recipe.STRETCH_SMOOTH:
        return Preprocess(height, width, mean=_ZERO, std=_ONE)
    if recipe is Recipe.STRETCH_IMAGENET:
        return Preprocess(height, width)
    if recipe is Recipe.CROP:
        return Preprocess(height, width, mean=_ZERO, std=_ONE, shorter_side=max(height, width))
    return Preprocess(height, width, shorter_side=round(RESIZE_RATIO * max(height, width)))

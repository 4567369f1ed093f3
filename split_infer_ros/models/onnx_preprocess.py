"""The recipe that belongs to a decoder: it follows what exporters do."""

from __future__ import annotations

from split_infer_ros.models.onnx_options import Decoder
from split_infer_ros.models.recipe import Recipe

_OF_DECODER = {
    Decoder.YOLOV8: "letterbox",
    Decoder.YOLOV5: "letterbox",
    Decoder.END_TO_END: "letterbox",
    Decoder.YOLOX: "yolox",
    Decoder.RTDETR: "stretch",
    Decoder.RTDETR_END_TO_END: "stretch",
    Decoder.DETR: "stretch_smooth",
    Decoder.DETR_SOFTMAX: "stretch_imagenet",
    Decoder.TORCHVISION: "letterbox_corner",
    Decoder.CLASSIFIER: "crop_imagenet",
}


def usual_recipe(decoder: Decoder, output_names: tuple[str, ...], *, is_ultralytics: bool) -> Recipe:
    """Returns the recipe that belongs to outputs of this kind.

    RF-DETR, whose boxes are called ``dets``, is normalised as for ImageNet. Other files of the DETR family take 0..1.
    """
    if decoder is Decoder.DETR and "dets" in output_names:
        return Recipe.parse("stretch_imagenet")
    if decoder is Decoder.CLASSIFIER and is_ultralytics:
        return Recipe.parse("crop")
    return Recipe.parse(_OF_DECODER[decoder])

"""Faster R-CNN as a network that can be split, between backbone and heads or within the backbone.

How many proposals suppression leaves depends on the image. Proposals are therefore padded to a fixed number, so that
all other shapes are fixed. Suppression and padding are one operation of the graph, ``distinct``, which is never split.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torchvision.models.detection import (
    FasterRCNN_MobileNet_V3_Large_320_FPN_Weights,
    fasterrcnn_mobilenet_v3_large_320_fpn,
)
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import clip_boxes_to_image

from split_infer_ros.models.dense import anchors_of
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.torchvision_models import detector_entry
from split_infer_ros.vision_ops.box_nms import box_nms
from split_infer_ros.vision_ops.roi_align import roi_align

LETTERBOX = HEIGHT, WIDTH = 320, 640  # rows and columns into which torchvision fits a landscape image
STRIDES = (32, 32, 64)  # of the levels of the pyramid
POOLED_SIDE = 7  # cells along each side of a proposal's features
SAMPLES_PER_SIDE = 2  # of a cell
MIN_PROPOSAL_SIDE, MIN_BOX_SIDE = 1e-3, 1e-2  # in pixels, as in torchvision


@fx.wrap
def distinct(
    boxes: Tensor, scores: Tensor, levels: Tensor, min_score: float, iou_threshold: float, count: int
) -> Tensor:
    """Returns the best proposals of each image, without those that overlap a better kept one of their level.

    A proposal is a box that may hold an object of any class. N images have n boxes each.

    Args:
        boxes: (N, n, 4), left, top, right, bottom in pixels.
        scores: (N, n), 0..1.
        levels: int64 (n,), the level of the feature pyramid from which each box comes.
        min_score: boxes with a lower score are no proposals.
        iou_threshold: of two boxes of a level, the one with the lower score is dropped if their IoU lies above this.
        count: the number of boxes to return for each image.

    Returns:
        (N, count, 4), best first, padded with empty boxes.
    """
    eligible = ((boxes[..., 2:] - boxes[..., :2]) >= MIN_PROPOSAL_SIDE).all(2) & (scores >= min_score)
    kept = box_nms(
        boxes,
        scores.masked_fill(~eligible, 0.0),
        levels.expand_as(scores),
        score_threshold=0.0,
        iou_threshold=iou_threshold,
        max_detections=count,
    ).unsqueeze(2)
    return boxes.gather(1, kept.clamp(min=0).expand(-1, -1, 4)).masked_fill(kept < 0, 0.0)


@fx.wrap
def pool(features: Tensor, proposals: Tensor, stride: int) -> Tensor:
    """Returns the features of each proposal, resampled to 7x7 cells by ROIAlign.

    Args:
        features: one map of the feature pyramid, (N, C, h, w).
        proposals: n boxes for each image, (N, n, 4), left, top, right, bottom in pixels of the input.
        stride: pixels of the input for each cell of the map.

    Returns:
        (N * n, C, 7, 7).
    """
    images = torch.arange(len(proposals), device=proposals.device).repeat_interleave(proposals.shape[1])
    return roi_align(
        features,
        proposals.flatten(0, 1),
        images,
        output_size=(POOLED_SIDE, POOLED_SIDE),
        spatial_scale=1 / stride,
        sampling_ratio=SAMPLES_PER_SIDE,
    )


class FasterRcnn(nn.Module):
    """torchvision's Faster R-CNN with MobileNetV3-Large for small inputs, untrained.

    Parameters have the names of torchvision's model, so weights of that model load unchanged.

    Args:
        height, width: the size of the input in pixels, multiples of 32.
    """

    anchors: Tensor
    levels: Tensor

    def __init__(self, height: int = HEIGHT, width: int = WIDTH) -> None:
        super().__init__()
        whole = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None).eval()
        rpn, heads = whole.rpn, whole.roi_heads
        self.backbone = whole.backbone
        self.rpn = nn.ModuleDict({"head": rpn.head})
        self.roi_heads = nn.ModuleDict({"box_head": heads.box_head, "box_predictor": heads.box_predictor})
        self._proposal_coder, self._box_coder = rpn.box_coder, heads.box_coder
        self._min_score, self._iou_threshold = rpn.score_thresh, rpn.nms_thresh
        self._size = height, width
        anchors, self._counts = anchors_of(rpn.anchor_generator, self._size, STRIDES)
        self._max_per_level, self._num_proposals = rpn.pre_nms_top_n(), rpn.post_nms_top_n()
        selected = [min(self._max_per_level, count) for count in self._counts]
        levels = torch.arange(len(selected)).repeat_interleave(torch.tensor(selected))
        self.register_buffer("anchors", anchors, persistent=False)
        self.register_buffer("levels", levels, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the candidates of each image, before suppression.

        Args:
            images: (N, 3, height, width).

        Returns:
            Scores (N, M), boxes (N, M, 4) in pixels of the input, and labels int64 (N, M). M is the number of
            candidates of an image: one for each proposal and class.
        """
        features = list(self.backbone(images).values())
        proposals = self._propose(*self.rpn["head"](features))
        # Both levels have the same stride, and torchvision then pools from the first one.
        pooled = pool(features[0], proposals, STRIDES[0])
        hidden = self.roi_heads["box_head"](pooled)
        # The predictor's own forward branches on the number of dimensions, so its layers are called directly.
        predictor = self.roi_heads["box_predictor"]
        logits, offsets = predictor.cls_score(hidden), predictor.bbox_pred(hidden)  # type: ignore[operator]
        boxes = self._box_coder.decode_single(offsets.float(), proposals.flatten(0, 1))
        boxes = clip_boxes_to_image(boxes.unflatten(1, (-1, 4)), self._size)[:, 1:]  # without the background
        is_large = ((boxes[..., 2:] - boxes[..., :2]) >= MIN_BOX_SIDE).all(2)
        is_proposal = (proposals[..., 2] > proposals[..., 0]).flatten().unsqueeze(1)  # not padding
        scores = logits.float().softmax(1)[:, 1:] * (is_large & is_proposal)
        labels = torch.ones_like(scores, dtype=torch.int64).cumsum(1)
        by_image = (-1, self._num_proposals)
        scores, boxes, labels = (values.unflatten(0, by_image).flatten(1, 2) for values in (scores, boxes, labels))
        return scores, boxes, labels

    def _propose(self, objectness: list[Tensor], offsets: list[Tensor]) -> Tensor:
        """Converts the outputs of the region proposal network, a tensor for each level, to n proposals (N, n, 4)."""
        ranks, offset = concat_box_prediction_layers(objectness, offsets)
        total = sum(self._counts)
        boxes = self._proposal_coder.decode_single(
            offset.float(), self.anchors.float().repeat(objectness[0].shape[0], 1)
        ).unflatten(0, (-1, total))
        ranks = ranks.float().unflatten(0, (-1, total)).flatten(1)
        best, start = [], 0
        for count in self._counts:
            best.append(ranks[:, start : start + count].topk(min(self._max_per_level, count), dim=1).indices + start)
            start += count
        selected = torch.cat(best, 1)
        boxes = boxes.gather(1, selected.unsqueeze(2).expand(-1, -1, 4))
        boxes = clip_boxes_to_image(boxes, self._size)
        scores = ranks.gather(1, selected).sigmoid()
        return distinct(boxes, scores, self.levels, self._min_score, self._iou_threshold, self._num_proposals)


ENTRIES = (
    detector_entry(
        "fasterrcnn_mobilenet_320",
        title="Faster R-CNN with MobileNetV3-Large",
        build=FasterRcnn,
        published=FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.COCO_V1,
        preprocess=Preprocess(HEIGHT, WIDTH, antialias=False, letterbox=Letterbox(*LETTERBOX)),
        default_split_point="rpn.head",  # the time of what follows depends on the image
    ),
)

"""Faster R-CNN in a form that can be split, between backbone and heads or within the backbone.

How many proposals are left after suppression depends on values. They are filled up to a fixed number, so that all else
has fixed shapes; what is data-dependent is one operation of the graph, ``distinct``, and stays whole.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import clip_boxes_to_image

from split_infer_ros.models.dense import anchors_of
from split_infer_ros.vision_ops.box_nms import box_nms
from split_infer_ros.vision_ops.roi_align import roi_align

FIT = HEIGHT, WIDTH = 320, 640  # rows and columns within which torchvision makes a landscape image fit
STRIDES = (32, 32, 64)  # of the levels
POOLED = 7  # cells a side that are split out for a proposal
SAMPLES = 2  # a side, of each such cell
SMALLEST_PROPOSAL, SMALLEST_BOX = 1e-3, 1e-2  # pixels; as torchvision has them


@fx.wrap
def distinct(boxes: Tensor, scores: Tensor, levels: Tensor, least: float, overlap: float, count: int) -> Tensor:
    """The best proposals that overlap no better one of their level.

    Args:
        boxes: (N, n, 4).
        scores: (N, n), 0..1.
        levels: int64 (n,), the level from which each comes.
        least: a lower score is no proposal.
        overlap: the IoU from which two are the same.
        count: how many to return.

    Returns:
        (N, count, 4), best first, filled up with empty boxes.
    """
    able = ((boxes[..., 2:] - boxes[..., :2]) >= SMALLEST_PROPOSAL).all(2) & (scores >= least)
    kept = box_nms(
        boxes,
        scores.masked_fill(~able, 0.0),
        levels.expand_as(scores),
        score_threshold=0.0,
        iou_threshold=overlap,
        max_detections=count,
    ).unsqueeze(2)
    return boxes.gather(1, kept.clamp(min=0).expand(-1, -1, 4)).masked_fill(kept < 0, 0.0)


@fx.wrap
def pool(features: Tensor, proposals: Tensor, stride: int) -> Tensor:
    """Features (N, C, h, w) of each proposal, boxes (N, n, 4) in pixels: (N * n, C, 7, 7)."""
    images = torch.arange(len(proposals), device=proposals.device).repeat_interleave(proposals.shape[1])
    return roi_align(
        features, proposals.flatten(0, 1), images, (POOLED, POOLED), spatial_scale=1 / stride, sampling_ratio=SAMPLES
    )


class FasterRcnn(nn.Module):
    """torchvision's Faster R-CNN with MobileNetV3-Large for small inputs.

    Its parameters have the names of torchvision's model, so that model's weights load as they are.

    Args:
        height, width: of the input, in pixels, multiples of 32.
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
        self._least, self._overlap = rpn.score_thresh, rpn.nms_thresh
        self._size = height, width
        grids = [(-(-height // stride), -(-width // stride)) for stride in STRIDES]
        a_cell = rpn.anchor_generator.num_anchors_per_location()[0]
        self._counts = [a_cell * rows * columns for rows, columns in grids]
        self._before, self._after = rpn.pre_nms_top_n(), rpn.post_nms_top_n()
        taken = [min(self._before, count) for count in self._counts]
        levels = torch.arange(len(taken)).repeat_interleave(torch.tensor(taken))
        self.register_buffer("anchors", anchors_of(rpn.anchor_generator, self._size, grids), persistent=False)
        self.register_buffer("levels", levels, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images (N, 3, height, width) to scores (N, M), boxes (N, M, 4) in pixels and labels int64 (N, M)."""
        features = list(self.backbone(images).values())
        proposals = self._propose(*self.rpn["head"](features))
        # Both levels have the same stride, and torchvision takes the first one then.
        pooled = pool(features[0], proposals, STRIDES[0])
        known = self.roi_heads["box_head"](pooled)
        predictor = self.roi_heads["box_predictor"]  # whose own forward branches on how many dimensions it gets
        logits, offsets = predictor.cls_score(known), predictor.bbox_pred(known)  # type: ignore[operator]
        boxes = self._box_coder.decode_single(offsets.float(), proposals.flatten(0, 1))
        boxes = clip_boxes_to_image(boxes.unflatten(1, (-1, 4)), self._size)[:, 1:]  # not the background's
        large = ((boxes[..., 2:] - boxes[..., :2]) >= SMALLEST_BOX).all(2)
        is_one = (proposals[..., 2] > proposals[..., 0]).flatten().unsqueeze(1)  # and not filled up
        scores = logits.float().softmax(1)[:, 1:] * (large & is_one)
        labels = torch.ones_like(scores, dtype=torch.int64).cumsum(1)
        scores, boxes, labels = (v.unflatten(0, (-1, self._after)).flatten(1, 2) for v in (scores, boxes, labels))
        return scores, boxes, labels

    def _propose(self, objectness: list[Tensor], offsets: list[Tensor]) -> Tensor:
        """The region proposal network's answers, a tensor a level, to boxes (N, n, 4)."""
        ranks, offset = concat_box_prediction_layers(objectness, offsets)
        total = sum(self._counts)
        boxes = self._proposal_coder.decode_single(
            offset.float(), self.anchors.float().repeat(objectness[0].shape[0], 1)
        ).unflatten(0, (-1, total))
        ranks = ranks.float().unflatten(0, (-1, total)).flatten(1)
        best, start = [], 0
        for count in self._counts:
            best.append(ranks[:, start : start + count].topk(min(self._before, count), dim=1).indices + start)
            start += count
        chosen = torch.cat(best, 1)
        boxes = boxes.gather(1, chosen.unsqueeze(2).expand(-1, -1, 4))
        boxes = clip_boxes_to_image(boxes, self._size)
        scores = ranks.gather(1, chosen).sigmoid()
        return distinct(boxes, scores, self.levels, self._least, self._overlap, self._after)

#!/usr/bin/env python3
"""Trains the shapes detector on drawn scenes and writes its weights.

    scripts/train_shapes.py [--minutes 40] [--start WEIGHTS] [--output FILE]

Every scene is drawn once, used once and never stored. Training series start at seed 2**62, validation series at 2**61.
Seeds of the camera and of tests have 32 bits, so none of their scenes was ever trained on. The schedule follows the
clock, so a slower machine takes fewer steps instead of more time.

The committed weights come from two runs on 2 busy cores. The first had --minutes 30 and was stopped after 25. The
second continued it with --start WEIGHTS --seed 1 --rate 1.5e-3 --minutes 28.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.ops import generalized_box_iou_loss

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from split_infer_ros.models import shapes  # noqa: E402
from split_infer_ros.models.detections import Limits  # noqa: E402
from split_infer_ros.models.evaluation import Score, f1  # noqa: E402
from split_infer_ros.sources.scenes import Scene, draw_scene  # noqa: E402

TRAINING_SEED, VALIDATION_SEED = 2**62, 2**61
SIZES = [  # width and height
    (320, 240),
    (640, 360),
    (800, 600),
    (960, 540),
    (512, 512),
]


def draw_input(seed: int, index: int) -> Scene:
    """Draws one scene at the network's input size. Every tenth scene is drawn at another size and stretched."""
    if index % 10:
        return draw_scene(seed, index)
    width, height = SIZES[index // 10 % len(SIZES)]
    drawn = draw_scene(seed, index, width=width, height=height)
    image = cv2.resize(drawn.image, (shapes.WIDTH, shapes.HEIGHT), interpolation=cv2.INTER_LINEAR)
    scale = np.array([shapes.WIDTH / width, shapes.HEIGHT / height] * 2, np.float32)
    return Scene(np.asarray(image, np.uint8), drawn.boxes * scale, drawn.labels)


def batches(seed: int, batch_size: int) -> Iterator[list[Scene]]:
    """Draws endless batches of new scenes."""
    with ThreadPoolExecutor(2) as pool:
        start = 0
        while True:
            yield list(pool.map(lambda i: draw_input(seed, i), range(start, start + batch_size)))
            start += batch_size


def normalised_images(batch: list[Scene]) -> Tensor:
    """Returns the normalised images, (N, 3, H, W), channels last."""
    images = torch.from_numpy(np.stack([s.image for s in batch])).float()
    mean, std = (torch.tensor(v) * 255 for v in (shapes.MEAN, shapes.STD))
    return images.sub_(mean).div_(std).permute(0, 3, 1, 2)


def targets(batch: list[Scene]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the targets of all cells.

    Returns:
        The heat (N, 3, h, w), which is 1 in the cell of an object's centre and falls off as a Gaussian around it. The
        boxes (N, h, w, 4) in pixels. The weight of each box (N, h, w), which is above 0 near a centre.
    """
    h, w = shapes.HEIGHT // shapes.STRIDE, shapes.WIDTH // shapes.STRIDE
    heat = torch.zeros(len(batch), len(shapes.LABELS), h, w)
    boxes = torch.zeros(len(batch), h, w, 4)
    weight = torch.zeros(len(batch), h, w)
    y, x = torch.arange(h)[:, None] + 0.5, torch.arange(w) + 0.5
    for i, truth in enumerate(batch):
        for box, label in zip(torch.from_numpy(truth.boxes), truth.labels.tolist(), strict=True):
            centre = (box[:2] + box[2:]) / 2 / shapes.STRIDE
            sigma = ((box[2:] - box[:2]) / shapes.STRIDE / 7).clamp(min=0.5)
            near = torch.exp(-((((x - centre[0]) / sigma[0]) ** 2) + ((y - centre[1]) / sigma[1]) ** 2) / 2)
            row, column = int(centre[1]), int(centre[0])
            near[row, column] = 1
            heat[i, label] = heat[i, label].maximum(near)
            is_nearest = (near > weight[i]) & (near > 0.2)
            boxes[i][is_nearest] = box
            weight[i] = torch.where(is_nearest, near, weight[i])
    return heat, boxes, weight


def loss(outputs: tuple[Tensor, Tensor], batch: list[Scene]) -> Tensor:
    """Returns CenterNet's focal loss of the heat plus the generalised IoU loss of the boxes."""
    logits, raw = (o.float() for o in outputs)
    heat, boxes, weight = targets(batch)
    p = logits.sigmoid()
    hit = heat == 1
    focal = (
        torch.where(hit, (1 - p) ** 2 * F.softplus(-logits), (1 - heat) ** 4 * p**2 * F.softplus(logits)).sum()
        / hit.sum()
    )
    near = weight > 0
    overlap = generalized_box_iou_loss(shapes.boxes_of(raw)[near], boxes[near])
    return focal + 2 * (overlap * weight[near]).sum() / weight.sum()


@torch.inference_mode()
def validate(net: shapes.ShapesNet, count: int = 150) -> tuple[float, Score]:
    """Returns the score threshold with the best F1 on the validation scenes, and the score at it."""
    net.eval()
    outputs, truth = [], []
    for start in range(0, count, 10):
        batch = [draw_scene(VALIDATION_SEED, i) for i in range(start, start + 10)]
        outputs.append(net(normalised_images(batch)))
        truth += [(s.boxes, s.labels) for s in batch]
    best = (0.0, Score(0, 0, 0))
    for threshold in np.arange(0.2, 0.65, 0.05).tolist():
        found = [d for o in outputs for d in shapes.decode(o, Limits(threshold))]
        score = f1(found, truth)
        if score.f1 > best[1].f1:
            best = threshold, score
    return best


def save(net: shapes.ShapesNet, threshold: float, path: Path, metadata: dict[str, str]) -> None:
    """Writes the weights in half precision, shifted so that the best threshold is 0.5."""
    net = deepcopy(net)
    with torch.no_grad():
        net.head.classes.bias -= math.log(threshold / (1 - threshold))  # type: ignore[operator]
    state = {k: v.half().contiguous() if v.is_floating_point() else v for k, v in net.state_dict().items()}
    save_file(state, path, metadata)
    path.chmod(0o644)


def main() -> None:
    """Trains the detector and writes its weights whenever they improve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--batch", type=int, default=16, help="images in a batch")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="weights to continue from")
    parser.add_argument("--output", type=Path, default=shapes.WEIGHTS)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    cv2.setNumThreads(1)
    net = shapes.ShapesNet().to(memory_format=torch.channels_last)
    best_f1, steps = 0.9, 0  # weights with a lower F1 are not written
    if args.start:
        net.load_state_dict(load_file(args.start))
        with safe_open(args.start, "pt") as file:
            steps = int(file.metadata()["steps"])
        best_f1 = validate(net)[1].f1
        print(f"starts at f1 {best_f1:.4f}", flush=True)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    optimiser = torch.optim.AdamW(net.parameters(), args.rate, weight_decay=1e-2)
    started = time.monotonic()
    last_check, smoothed_loss = started, 0.0
    for step, batch in enumerate(batches(TRAINING_SEED + args.seed, args.batch), 1):
        progress = min((time.monotonic() - started) / (60 * args.minutes), 1)
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min(step / 100, 0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)
        net.train()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = net(normalised_images(batch))
        value = loss(outputs, batch)
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 10)
        optimiser.step()
        average.update_parameters(net)
        smoothed_loss += 0.02 * (value.item() - smoothed_loss)
        if step % 20 == 0:
            print(f"{progress:4.0%}  step {step}  loss {smoothed_loss / (1 - 0.98**step):.3f}", flush=True)
        is_last = progress >= 1
        if is_last or time.monotonic() - last_check > 240:
            threshold, score = validate(average.module)
            print(f"{score}  f1 {score.f1:.4f} at threshold {threshold:.2f}", flush=True)
            if score.f1 > best_f1:
                best_f1 = score.f1
                metadata = {"f1": f"{best_f1:.4f}", "steps": str(steps + step), "seed": str(args.seed)}
                save(average.module, threshold, path=args.output, metadata=metadata)
            last_check = time.monotonic()
        if is_last:
            break


if __name__ == "__main__":
    main()

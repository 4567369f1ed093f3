"""Resizes, reorders and normalises images on a GPU with torch."""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from split_infer_ros.images.encodings import RGB
from split_infer_ros.models.fitting import Window
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.runtime.device import Device

_making = threading.Lock()  # held while a constant is made


def make_staging(preprocess: Preprocess, batch_size: int, device: Device) -> Tensor:
    """Makes a buffer for resized images: (batch_size, height, width, 3), uint8 if images are rounded, else float32."""
    dtype = torch.uint8 if preprocess.rounds else torch.float32
    return torch.empty((batch_size, preprocess.height, preprocess.width, 3), dtype=dtype, device=device)


def resize_into(preprocess: Preprocess, target: Tensor, images: Tensor, rgb: tuple[int, int, int]) -> None:
    """Resizes k images of one size into a buffer.

    Args:
        preprocess: how the model's images are pre-processed.
        target: the part of the buffer for these images, (k, h, w, 3), on the images' device.
        images: uint8 (k, H, W, channels).
        rgb: the indices of the red, green and blue channel in the images.
    """
    fitting = preprocess.fitting(*images.shape[1:3])
    rows, columns = fitting.used
    used = images[:, rows, columns]
    if used.shape[1:3] != fitting.size:
        used = _resized(preprocess, used, *fitting.size)
    _fill_outside(target, fitting.place, preprocess.padding)
    rows, columns = fitting.shown
    shown, order = used[:, rows, columns], preprocess.order_of(rgb)
    if order != RGB or shown.shape[3] != len(RGB):
        shown = shown.index_select(3, _constant(order, torch.int64, images.device))
    rows, columns = fitting.place
    target[:, rows, columns].copy_(shown)


def normalise(
    preprocess: Preprocess,
    gathered: Tensor,
    channels_last: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """Converts images (n, h, w, 3) of 0..255 to the model's input, float32 (n, 3, h, w), on their device.

    Args:
        preprocess: how the model's images are pre-processed.
        gathered: resized images.
        channels_last: whether the channels of a pixel lie side by side in the result's memory.
        out: the memory for the result, which must have the memory format that ``channels_last`` says; None for new
            memory.
    """
    mean, std, device = preprocess.mean, preprocess.std, gathered.device
    scale = _constant(tuple(1 / (255 * s) for s in std), torch.float32, device)
    offset = _constant(tuple(-m / s for m, s in zip(mean, std, strict=True)), torch.float32, device)
    if channels_last:
        written = None if out is None else out.permute(0, 2, 3, 1)
        return torch.addcmul(offset, gathered.float(), scale, out=written).permute(0, 3, 1, 2)
    planes = gathered.permute(0, 3, 1, 2)
    contiguous = torch.empty(planes.shape, device=device) if out is None else out
    return torch.addcmul(offset.view(3, 1, 1), planes.float(), scale.view(3, 1, 1), out=contiguous)


def _resized(preprocess: Preprocess, images: Tensor, height: int, width: int) -> Tensor:
    """Resizes images (k, H, W, channels) to float32 (k, height, width, channels). CUDA resizes only floats."""
    planes = images.permute(0, 3, 1, 2).float()
    mode, antialias = ("bilinear", False) if preprocess.opencv else (preprocess.interpolation, preprocess.antialias)
    sizes = [(height, width)]
    if preprocess.rounds and mode == "bicubic":  # as on a CPU: clips after the rows and after the columns
        sizes.insert(0, (planes.shape[2], width))
    for size in sizes:
        planes = functional.interpolate(planes, size=size, mode=mode, antialias=antialias)
        if preprocess.rounds:
            planes = planes.round_().clamp_(0, 255)
    return planes.permute(0, 2, 3, 1)


def _fill_outside(target: Tensor, place: Window, colour: tuple[float, ...]) -> None:
    """Fills the pixels (k, h, w, 3) outside a window with a colour. Grey is faster: it needs no constant."""
    rows, columns = place
    outside = [target[:, : rows.start], target[:, rows.stop :]]
    outside += [target[:, rows, : columns.start], target[:, rows, columns.stop :]]
    for border in outside:
        if border.numel():
            border[...] = colour[0] if len(set(colour)) == 1 else _constant(colour, torch.float32, target.device)


def _constant(values: tuple[float, ...], dtype: torch.dtype, device: Device | torch.device) -> Tensor:
    with _making:  # a second user must not get the constant before its copy is queued
        return _made(values, dtype, device)


@cache
def _made(values: tuple[float, ...], dtype: torch.dtype, device: Device | torch.device) -> Tensor:
    """Makes each constant once, because making a tensor on a GPU waits for all work of the GPU."""
    return torch.tensor(values, dtype=dtype, device=device)

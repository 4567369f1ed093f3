"""Turns handles, features and releases into messages and back. Messages from other processes are checked first."""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from split_infer_ros.buffers.host_arrays import BYTE, Values, copy_into
from split_infer_ros.buffers.layout import Layout, Strides, dense_strides, is_dense, strides_of
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import HandleError, UnknownSplitPointError
from split_infer_ros.msg import FeatureBatch, FeatureHandle, FeatureRelease, TensorSpec
from split_infer_ros.server.frame import Handle, Origin
from split_infer_ros.split.model import SplitModel

MAX_FRAMES = 256


def handle_message(handle: Handle, layout: Layout, features: Sequence[Values]) -> FeatureHandle:
    """Returns the message of a handle.

    Args:
        handle: a handle to features that were written.
        layout: the layout of the features' slot.
        features: views of the features in their slot. The message repeats their strides.
    """
    return FeatureHandle(
        pool=handle.lease.pool,
        slot=handle.lease.slot,
        generation=handle.lease.generation,
        model=handle.model,
        split_point=handle.split_point,
        batch_capacity=handle.batch_capacity,
        tensors=[
            TensorSpec(name=name, dtype=dtype, shape=shape, strides=strides_of(feature), offset=offset)
            for (name, dtype, shape, offset), feature in zip(_tensor_specs(layout), features, strict=True)
        ],
        segment=handle.segment,
        headers=[origin.header for origin in handle.origins],
        sources=[origin.source for origin in handle.origins],
        heights=[origin.height for origin in handle.origins],
        widths=[origin.width for origin in handle.origins],
    )


def batch_message(
    head: str, handle: Handle, layout: Layout, features: Sequence[Values], data: array.array[int]
) -> FeatureBatch:
    """Returns the message of a handle with a copy of its features.

    Args:
        head: the name of the head that gets the message.
        handle: a handle to features that were written.
        layout: the layout of the copies, for as many images as the batch has.
        features: views of the features in their slot.
        data: the memory for the copies. It has as many bytes as a slot of the layout.
    """
    strides = [dense_strides(feature) for feature in features]
    staged = layout.views(np.frombuffer(data, BYTE), len(handle.origins), strides)
    for copy, feature in zip(staged, features, strict=True):
        copy_into(copy, feature)
    sent = replace(handle, batch_capacity=len(handle.origins), segment="", batch=None)
    return FeatureBatch(head=head, handle=handle_message(sent, layout, staged), data=data)


def read_handle(message: FeatureHandle, model: SplitModel) -> tuple[Handle, Layout, tuple[Strides, ...]]:
    """Reads the message of a handle.

    Args:
        message: a message from any process.
        model: this head's own model. The message must fit it.

    Returns:
        The handle, the layout of its slot according to this head's own model, and the strides of each tensor.

    Raises:
        HandleError: ``malformed``: the message contradicts itself. ``foreign``: it contradicts this head's model.
    """
    frames = len(message.headers)
    is_complete = frames == len(message.sources) == len(message.heights) == len(message.widths)
    if not is_complete or not 1 <= frames <= message.batch_capacity <= MAX_FRAMES:
        raise HandleError(
            "malformed", f"A handle to {frames} frames of {message.batch_capacity} does not describe each of them once."
        )
    if message.model != model.entry.name:
        raise HandleError(
            "foreign",
            f"The backbone runs '{message.model}' and this head '{model.entry.name}'; set the parameter model alike.",
        )
    try:
        split_point = model.split_point(message.split_point)
    except UnknownSplitPointError as error:
        raise HandleError("foreign", str(error)) from error
    layouts = (Layout(split_point.in_precision(each.dtype).tensors, message.batch_capacity) for each in Precision)
    received = [(tensor.name, tensor.dtype, tuple(tensor.shape), tensor.offset) for tensor in message.tensors]
    layout = next((layout for layout in layouts if _tensor_specs(layout) == received), None)
    if layout is None:
        raise HandleError(
            "foreign", f"The features at {split_point.name} are not laid out as this head's own model has them."
        )
    strides = tuple(tuple(tensor.strides) for tensor in message.tensors)
    for spec, stride in zip(layout.specs, strides, strict=True):
        if not is_dense((frames, *spec.shape), stride):
            raise HandleError(
                "malformed",
                f"{frames} features {spec.name} of shape {spec.shape} cannot be laid out with the strides {stride}.",
            )
    handle = Handle(
        lease=Lease(message.pool, message.slot, message.generation),
        model=message.model,
        split_point=split_point.name,
        batch_capacity=message.batch_capacity,
        segment=message.segment,
        origins=_origins(message),
    )
    return handle, layout, strides


def release_message(lease: Lease, outcome: Outcome) -> FeatureRelease:
    """Returns the message that tells the backbone that a head has finished a batch.

    Args:
        lease: the lease of the batch's slot, which ends.
        outcome: what became of the batch's frames, and when.
    """
    return FeatureRelease(
        pool=lease.pool,
        slot=lease.slot,
        generation=lease.generation,
        published=outcome.published,
        reason=outcome.reason,
        head_s=outcome.head_end - outcome.head_start,
        postprocess_s=outcome.delivered - outcome.head_end,
    )


def read_release(message: FeatureRelease, now: float) -> tuple[Lease, Outcome]:
    """Returns the lease that ended and its outcome, on this host's steady clock.

    The clocks of two hosts cannot be compared, so the message holds durations only. The outcome looks as if the head
    had published at ``now``. So the time on the way, in both directions, is counted before the head's start.

    Args:
        message: the release.
        now: when the release came, in seconds of this host's steady clock.
    """
    head_end = now - message.postprocess_s
    outcome = Outcome(
        published=message.published,
        reason=message.reason,
        head_start=head_end - message.head_s,
        head_end=head_end,
        delivered=now,
    )
    return Lease(message.pool, message.slot, message.generation), outcome.checked()


def _origins(message: FeatureHandle) -> tuple[Origin, ...]:
    columns = zip(message.headers, message.sources, message.heights, message.widths, strict=True)
    return tuple(
        Origin(header=header, source=source, height=height, width=width) for header, source, height, width in columns
    )


def _tensor_specs(layout: Layout) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Returns the name, dtype, shape and offset of each tensor. Each side takes them from its own model."""
    return [
        (spec.name, spec.dtype.name, spec.shape, offset)
        for spec, offset in zip(layout.specs, layout.offsets, strict=True)
    ]

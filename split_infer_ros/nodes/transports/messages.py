"""Handles as messages and back; what comes from outside is believed only as far as it checks out."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from split_infer_ros.buffers.layout import Layout, Strides, is_dense
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError, UnknownSplitPointError
from split_infer_ros.msg import FeatureHandle, FeatureRelease, TensorSpec
from split_infer_ros.pipeline.frame import Handle, Origin
from split_infer_ros.split.model import PRECISIONS, SplitModel

MOST_FRAMES = 256


def handle_message(handle: Handle, layout: Layout, features: Sequence[Tensor]) -> FeatureHandle:
    """A handle as a message.

    Args:
        handle: to features that were written.
        layout: of the slot in which they lie.
        features: the views of them there, whose strides go along.
    """
    return FeatureHandle(
        pool=handle.lease.pool,
        slot=handle.lease.slot,
        generation=handle.lease.generation,
        model=handle.model,
        split_point=handle.split_point,
        batch_capacity=handle.batch_capacity,
        tensors=[
            TensorSpec(name=name, dtype=dtype, shape=shape, strides=feature.stride(), offset=offset)
            for (name, dtype, shape, offset), feature in zip(_facts(layout), features, strict=True)
        ],
        segment=handle.segment,
        headers=[origin.header for origin in handle.origins],
        sources=[origin.source for origin in handle.origins],
        heights=[origin.height for origin in handle.origins],
        widths=[origin.width for origin in handle.origins],
    )


def read_handle(message: FeatureHandle, model: SplitModel) -> tuple[Handle, Layout, tuple[Strides, ...]]:
    """The handle in a message, how this head's own model lays out what it leads to, and the tensors' strides there.

    Raises:
        HandleError: ``malformed``: its parts do not fit each other; ``foreign``: they do not fit the model.
    """
    frames = len(message.headers)
    same = frames == len(message.sources) == len(message.heights) == len(message.widths)
    if not same or not 1 <= frames <= message.batch_capacity <= MOST_FRAMES:
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
    layouts = (Layout(split_point.in_precision(dtype).tensors, message.batch_capacity) for dtype in PRECISIONS.values())
    told = [(tensor.name, tensor.dtype, tuple(tensor.shape), tensor.offset) for tensor in message.tensors]
    layout = next((layout for layout in layouts if _facts(layout) == told), None)
    if layout is None:
        raise HandleError(
            "foreign", f"The features at {split_point.name} are not laid out as this head's own model has them."
        )
    strides = tuple(tuple(tensor.strides) for tensor in message.tensors)
    for spec, lie in zip(layout.specs, strides, strict=True):
        if not is_dense((frames, *spec.shape), lie):
            raise HandleError(
                "malformed", f"{frames} features {spec.name} of shape {spec.shape} cannot lie by the strides {lie}."
            )
    origins = tuple(
        Origin(*facts) for facts in zip(message.headers, message.sources, message.heights, message.widths, strict=True)
    )
    lease = Lease(message.pool, message.slot, message.generation)
    return (
        Handle(lease, message.model, split_point.name, message.batch_capacity, message.segment, origins),
        layout,
        strides,
    )


def release_message(lease: Lease, outcome: Outcome) -> FeatureRelease:
    """The end of a lease as a message."""
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
    """The end of a lease in a message that came at ``now`` (seconds of this host's steady clock).

    The head's clock is another host's. So all that is not the head's own time is taken to lie before its start: the
    release's way back too.
    """
    head_end = now - message.postprocess_s
    outcome = Outcome(message.published, message.reason, head_end - message.head_s, head_end, now)
    return Lease(message.pool, message.slot, message.generation), outcome.checked()


def _facts(layout: Layout) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Name, dtype, shape and offset of each tensor, which both sides know of their own model."""
    return [
        (spec.name, str(spec.dtype).removeprefix("torch."), spec.shape, offset)
        for spec, offset in zip(layout.specs, layout.offsets, strict=True)
    ]

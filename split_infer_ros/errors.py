"""The package's exceptions.

- SplitInferError
    - ConfigurationError: a value from a user cannot be used.
        - UnknownModelError
        - UnknownSplitPointError
        - WeightsError
        - SourceError
    - FrameError: a frame gives no result. It carries the drop reason.
        - ImageError: an image message cannot be read.
        - PointCloudError: a point cloud cannot be read, or is too large.
        - StreamError: weights did not arrive, for all frames of a batch.
    - PassingError: something fails that may work a moment later by itself.
    - HandleError: a handle gives no access to a slot. It carries the name under which the refused handle is counted.
    - Notice: something runs, but not as it was asked for. No frame is dropped. The notice is reported, not raised.
"""

from __future__ import annotations

from split_infer_ros.drop_reason import DropReason


class SplitInferError(Exception):
    """The base of every error that this package raises on purpose. Its text is a sentence for the user."""


class ConfigurationError(SplitInferError):
    """A value from a user cannot be used. Nothing was changed."""


class UnknownModelError(ConfigurationError):
    """There is no model with the name that the user gave."""


class UnknownSplitPointError(ConfigurationError):
    """The model has no split point with the name that the user gave."""


class WeightsError(ConfigurationError):
    """Weights are missing, cannot be read, or belong to another model."""


class SourceError(ConfigurationError):
    """A camera source cannot be opened or read."""


class FrameError(SplitInferError):
    """A frame, or each frame of a batch, gives no result.

    Attributes:
        reason: why the frame is dropped.
    """

    def __init__(self, reason: DropReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class ImageError(FrameError):
    """An image cannot be read."""


class PointCloudError(FrameError):
    """A point cloud cannot be read, or has more points or voxels than can be computed in time."""


class PassingError(SplitInferError):
    """Something fails now that may work a moment later by itself."""


class StreamError(FrameError):
    """Weights did not arrive from their file while a model ran. The reason is one of the ``WEIGHTS_...`` reasons."""


class Notice(SplitInferError):
    """Something runs, but not as it was asked for, for example in other memory or without CUDA graphs.

    It is an exception only so that the receivers of errors can also take it. It is not raised.
    """


def error_sentence(error: BaseException) -> str:
    """Returns an error as a sentence. For an error of another package, the sentence begins with its type."""
    return str(error) if isinstance(error, SplitInferError) else f"{type(error).__name__}: {error}".rstrip(": ")


def first_line(error: BaseException, length: int | None = 200) -> str:
    """Returns the first line of an error's text, cut to a length. For an error without text, returns its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip()[:length]


class HandleError(SplitInferError):
    """A handle gives no access to a slot.

    Attributes:
        reason: the name under which the refused handle is counted. ``stale``: the slot serves a later batch, or was
            given back. ``released``: the handle was used before. ``busy``: the slot cannot be read now, for example
            because another process reads it. ``foreign``: there is no such slot here, or its features do not fit the
            model. ``malformed``: the handle's message contradicts itself.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason

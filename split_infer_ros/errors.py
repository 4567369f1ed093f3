"""The package's exceptions.

- SplitInferError
    - ConfigurationError: a value from a user cannot be used.
        - UnknownModelError
        - UnknownSplitPointError
        - WeightsError
        - SourceError
    - ImageError: an image message cannot be read. It carries the drop reason of the frame.
    - StreamError: weights did not arrive. It carries the drop reason of the batch's frames.
    - HandleError: a handle gives no access to a slot. It carries the name under which it is counted.
    - Notice: something runs, but not as it was asked for. It costs no frame, and is reported, not raised.
"""

from __future__ import annotations

from split_infer_ros.drop_reason import DropReason


class SplitInferError(Exception):
    """The base of every error that this package raises on purpose. Its text is a sentence for the user."""


class ConfigurationError(SplitInferError):
    """A value from a user cannot be used. Nothing was changed."""


class UnknownModelError(ConfigurationError):
    """There is no model with that name."""


class UnknownSplitPointError(ConfigurationError):
    """The model has no such split point."""


class WeightsError(ConfigurationError):
    """Weights are missing, cannot be read, or belong to another model."""


class SourceError(ConfigurationError):
    """A camera source cannot be opened or read."""


class ImageError(SplitInferError):
    """An image cannot be read.

    Attributes:
        reason: why the frame is dropped.
    """

    def __init__(self, reason: DropReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class StreamError(SplitInferError):
    """Weights did not arrive from their file while a model ran.

    Attributes:
        reason: why the frames of the batch are dropped: one of the ``WEIGHTS_...`` reasons.
    """

    def __init__(self, reason: DropReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Notice(SplitInferError):
    """Something runs, but not as it was asked for, for example in other memory or without CUDA graphs."""


def error_sentence(error: BaseException) -> str:
    """Returns an error as a sentence. For an error of another package, the sentence begins with its type."""
    return str(error) if isinstance(error, SplitInferError) else f"{type(error).__name__}: {error}".rstrip(": ")


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, at most 200 characters of it. Without a text, its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


class HandleError(SplitInferError):
    """A handle gives no access to a slot.

    Attributes:
        reason: ``stale``, ``released``, ``busy`` or ``foreign``.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason

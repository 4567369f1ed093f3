"""The package's exceptions.

- SplitInferError
    - ConfigurationError: a value that a user gave cannot be used.
        - UnknownModelError
        - UnknownSplitPointError
        - WeightsError
        - SourceError
    - ImageError: an image message that cannot be read; carries the name it is counted under.
    - StreamError: weights that did not come; carries the name under which the pass's frames are counted.
    - HandleError: a handle that gives no access to a slot; carries the name it is counted under.
    - Notice: what runs, though not as it was asked for; costs no frame and is reported, not raised.
"""

from __future__ import annotations

from split_infer_ros.drop_reason import DropReason


class SplitInferError(Exception):
    """Base of every error that this package raises on purpose; its text is a sentence for the user."""


class ConfigurationError(SplitInferError):
    """A value that a user gave cannot be used; nothing was changed."""


class UnknownModelError(ConfigurationError):
    """No model of that name."""


class UnknownSplitPointError(ConfigurationError):
    """The model has no such split point."""


class WeightsError(ConfigurationError):
    """Weights that are missing, unreadable or another model's."""


class SourceError(ConfigurationError):
    """A camera source that cannot be opened or read."""


class ImageError(SplitInferError):
    """An image that cannot be read.

    Attributes:
        reason: why the frame is dropped.
    """

    def __init__(self, reason: DropReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class StreamError(SplitInferError):
    """Weights that did not come from their file while a model ran.

    Attributes:
        reason: why the frames of the batch are dropped: one of the ``WEIGHTS_...`` reasons.
    """

    def __init__(self, reason: DropReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Notice(SplitInferError):
    """Something runs, but not as it was asked for: in other memory, say, or without CUDA graphs."""


def error_sentence(error: BaseException) -> str:
    """Returns an error as a sentence, with its type if the package did not raise it."""
    return str(error) if isinstance(error, SplitInferError) else f"{type(error).__name__}: {error}".rstrip(": ")


class HandleError(SplitInferError):
    """A handle that gives no access to a slot.

    Attributes:
        reason: ``stale``, ``released``, ``busy`` or ``foreign``.
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason

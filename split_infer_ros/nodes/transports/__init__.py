"""How handles, and on the network features, get from backbone to head: one file a transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.intra_process import IntraProcessReceiver, IntraProcessSender
from split_infer_ros.nodes.transports.network import NetworkReceiver, NetworkSender
from split_infer_ros.nodes.transports.shared_memory import SharedMemoryReceiver, SharedMemorySender
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.transport import Transport
from split_infer_ros.split.model import SplitModel


class Sender(Transport, Protocol):
    """The backbone's end."""

    def close(self) -> None:
        """Leave the topics."""


class Receiver(Protocol):
    """The head's end; it submits to the head's stage.

    Attributes:
        stands_by: True while another head of the same backbone has the batches.
    """

    @property
    def stands_by(self) -> bool: ...

    def leave(self) -> None:
        """Take no more; what came may still be read."""

    def close(self) -> None:
        """Let go of what was read, once the stage has stopped."""


SENDERS: dict[str, Callable[[ManagedNode, SplitModel], Sender]] = {
    "intra_process": IntraProcessSender,
    "shared_memory": SharedMemorySender,
    "network": NetworkSender,
}
RECEIVERS: dict[str, Callable[[ManagedNode, SplitModel, HeadStage], Receiver]] = {
    "intra_process": IntraProcessReceiver,
    "shared_memory": SharedMemoryReceiver,
    "network": NetworkReceiver,
}

__all__ = ["RECEIVERS", "SENDERS", "Receiver", "Sender"]

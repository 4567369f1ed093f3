"""The transports. They bring handles, and on a network also features, from backbone to head. Each has its own files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.intra_process import IntraProcessReceiver, IntraProcessSender
from split_infer_ros.nodes.transports.network import NetworkSender
from split_infer_ros.nodes.transports.network_receiver import NetworkReceiver
from split_infer_ros.nodes.transports.shared_memory import SharedMemoryReceiver, SharedMemorySender
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.transport import Transport
from split_infer_ros.split.model import SplitModel


class Sender(Transport, Protocol):
    """The backbone's side of a transport. Only the thread of the node's executor may create or close a sender.

    A sender is created with two arguments: the backbone's node, and the text in front of the sender's topics, such as
    ``front/``.
    """

    @property
    def is_used(self) -> bool:
        """Whether a model instance uses this sender."""

    @property
    def heads_reached(self) -> int:
        """How many living heads would get a batch that is sent now."""

    def close(self) -> None:
        """Removes the sender from its topics."""


class Receiver(Protocol):
    """The head's side of a transport. It submits received handles to the head's stage.

    A receiver is created with three arguments: the head's node, the head's own model, and the head's stage.

    Attributes:
        is_standby: True while another head of the same backbone has the batches.
    """

    @property
    def is_standby(self) -> bool: ...

    def stop_receiving(self) -> None:
        """Ends the reception of handles. Features of handles that came before may still be read."""

    def close(self) -> None:
        """Releases the memory of the features. Call it after the stage has stopped."""


INTRA_PROCESS = "intra_process"
SENDERS: dict[str, Callable[[ManagedNode[Any], str], Sender]] = {
    INTRA_PROCESS: IntraProcessSender,
    "shared_memory": SharedMemorySender,
    "network": NetworkSender,
}
RECEIVERS: dict[str, Callable[[ManagedNode[Any], SplitModel, HeadStage], Receiver]] = {
    INTRA_PROCESS: IntraProcessReceiver,
    "shared_memory": SharedMemoryReceiver,
    "network": NetworkReceiver,
}

__all__ = ["INTRA_PROCESS", "RECEIVERS", "SENDERS", "Receiver", "Sender"]

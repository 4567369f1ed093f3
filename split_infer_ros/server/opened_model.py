"""A model that was opened for a server, and what is known about how it runs best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.transport import Transport
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.settings import WeightsSettings


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A loaded model, and how it is to run.

    Attributes:
        model: both of its partitions.
        notes: sentences for the user, such as why it runs in another precision.
        num_threads: of the backbone's operations on a CPU; 0: all.
        head_threads: of the head's operations; 0: as the settings say.
        head_weights: where the head's weights are.
        transport: the way to its head elsewhere; None: the server runs the head.
    """

    model: SplitModel
    notes: tuple[str, ...] = ()
    num_threads: int = 0
    head_threads: int = 0
    head_weights: WeightsSettings = field(default_factory=WeightsSettings)
    transport: Transport | None = None


OpenModel = Callable[[Tenant, SharedSettings], OpenedModel]

"""A model that was opened for a server, and what is known about how it runs best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.improving.rivals import Rivals
from split_infer_ros.server.improving.split_rivals import BackgroundProfiles
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.transport import Transport
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.profile import FindProfile, Profile
from split_infer_ros.weight_streaming.settings import WeightsSettings


def _refuse(batch_sizes: Sequence[int], may_measure: bool) -> Profile:
    raise ConfigurationError(
        "Nobody measures this model, so split_point cannot be auto: take a split point by its name."
    )


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A loaded model, and how it should run.

    Attributes:
        model: the model with both partitions.
        notes: sentences for the user, such as why the model runs in another precision.
        split_point: the split point if the settings leave it open: the one that tuning found, or ``default``.
        find_profile: returns the model's profile on this machine.
        head_threads: threads for the head's operations if the settings give no number and no cores; 0: the default.
        head_weights: where the head's weights are.
        transport: the transport to a head that the server does not run; None: the server runs the head.
        rivals: proposes engines that may run the model faster; None: none are tried.
        profiles: measures the profile while frames flow; None: it is not measured then.
    """

    model: SplitModel
    notes: tuple[str, ...] = ()
    split_point: str = "default"
    find_profile: FindProfile = _refuse
    head_threads: int = 0
    head_weights: WeightsSettings = field(default_factory=WeightsSettings)
    transport: Transport | None = None
    rivals: Rivals | None = None
    profiles: BackgroundProfiles | None = None


OpenModel = Callable[[Tenant, SharedSettings], OpenedModel]

"""Many cameras, many models, one processor: frames of named tenants in, each one's own detections out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from split_infer_ros.errors import ConfigurationError, ImageError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.report import PipelineReport
from split_infer_ros.tenancy.shared_settings import SharedSettings
from split_infer_ros.tenancy.tenant import Tenant
from split_infer_ros.tuning.database import Database

Deliver = Callable[[str, Origin, Detections], None]


class SharedPipeline:
    """Tenants that come and go, on models that they share; may be used from any thread.

    Args:
        settings: the first ones.
        limits: what post-processing keeps.
        deliver: called with the tenant's name, a frame's origin and its detections, on a thread of its model's; for one
            tenant in the order in which its frames came. For a tenant that was removed, or has another model now, no
            call begins after ``set_tenants`` has returned; one that had begun may still be under way. What it raises
            costs that frame alone, as ``head_error``.
        on_error: told of every exception that cost frames, under the tenant's or the model's name.
        database: in which costs of executions are kept; the user's own if None.

    Attributes:
        limits: may be replaced at any time.

    Raises:
        ConfigurationError: this machine has no such device.
    """

    def __init__(
        self,
        settings: SharedSettings,
        limits: Limits,
        deliver: Deliver,
        on_error: Callable[[str, Exception], None],
        database: Database | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def settings(self) -> SharedSettings:
        """The settings in force."""
        raise NotImplementedError

    @property
    def limits(self) -> Limits:
        """What post-processing keeps."""
        raise NotImplementedError

    @limits.setter
    def limits(self, limits: Limits) -> None:
        raise NotImplementedError

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """Those that run, by name; who could not be started is not among them."""
        raise NotImplementedError

    def labels(self, tenant: str) -> Sequence[str]:
        """The name of each label index of its model; raises ConfigurationError if there is no such tenant."""
        raise NotImplementedError

    def set_tenants(self, tenants: Sequence[Tenant]) -> dict[str, ConfigurationError]:
        """Exactly these from now on: who is new is added, who is not listed is removed, the others run on.

        Loads models, which takes its time; the call does not wait until they are measured. Of a tenant that is removed
        (or gets another model) what waits is dropped as ``removed``; what is under way is finished, not delivered, and
        dropped under the same name. The ledger of a tenant that stays goes on.

        Returns:
            By name, those that could not be started, and why: their model does not load, or there is no memory for
            it. A tenant that was there stays as it was then.

        Raises:
            ConfigurationError: a name is there twice; nothing was changed.
        """
        raise NotImplementedError

    def configure(self, settings: SharedSettings) -> None:
        """Change settings while frames flow; those in ``shared_settings.LIVE`` may change.

        Raises:
            ConfigurationError: another one would change, or there is no memory for it; the old ones stay in force.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Accept frames, once models are measured whose costs are not known (some seconds); may be started again."""
        raise NotImplementedError

    def stop(self, drain_s: float) -> None:
        """Accept no more, let what is in flight finish for up to ``drain_s`` seconds, drop the rest as ``shutdown``."""
        raise NotImplementedError

    def close(self) -> None:
        """Free models and memory, once stopped; the pipeline is of no more use."""
        raise NotImplementedError

    def submit(self, tenant: str, pixels: Pixels, origin: Origin, now: float) -> None:
        """A frame of a tenant's came in; never waits. Of a tenant that is not there it is nobody's, and not counted."""
        raise NotImplementedError

    def refuse(self, tenant: str, error: ImageError, now: float) -> None:
        """A frame of a tenant's came in that cannot be read."""
        raise NotImplementedError

    def missed(self, tenant: str, count: int, reason: str) -> None:
        """Frames of a tenant's were sent and never reached us."""
        raise NotImplementedError

    def report(self, tenant: str, now: float) -> PipelineReport:
        """A tenant's counts and times at this moment, and what its model runs in.

        The counts are its own ledger's. Times of stages are those of batches in which a frame of its was.

        Raises:
            ConfigurationError: there is no such tenant.
        """
        raise NotImplementedError

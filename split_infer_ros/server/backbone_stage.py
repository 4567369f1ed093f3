"""A server of one model: it has one tenant without a name, and any camera may send frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.report import PipelineReport
from split_infer_ros.server.server import Server
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.transport import Transport
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.trace import TraceFile

UNNAMED = ""  # the name of the only tenant


class BackboneStage:
    """Takes frames from any thread, sends each batch's handle to the head, and keeps the ledger.

    It is a ``Server`` with one tenant. The tenant's model is loaded already, and the transport leads to its head.

    Args:
        model: the model; its backbone runs here.
        settings: the settings to begin with.
        transport: the way to the head.
        on_error: called with every exception that cost frames, and with notices. After an exception for which
            ``faults.is_sticky`` is true, the stage takes no more frames; stop it then.
        trace: the file to which each batch's times are written; None: no file.
        watch: called with each batch that a head gave back, once its timeline is complete; must not wait.
        database: keeps the machine's constants; the user's own if None.
        num_threads: threads for the backbone's operations on a CPU; 0: all.

    Raises:
        ConfigurationError: the settings do not fit the model, the model cannot run, or memory is short.

    Attributes:
        ledger: counts what became of every frame that came in.
        intake: takes frames from any thread.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: StageSettings,
        transport: Transport,
        on_error: Callable[[Exception], None],
        *,
        trace: TraceFile | None = None,
        watch: Callable[[Batch], None] | None = None,
        database: Database | None = None,
        num_threads: int = 0,
    ) -> None:
        opened = OpenedModel(model, num_threads=num_threads, transport=transport)
        self._server = Server(
            SharedSettings.of_stage(settings),
            Limits(),
            _deliver_nothing,
            lambda _, error: on_error(error),
            device=model.device,
            open_model=lambda tenant, shared: opened,
            database=database,
            trace=trace,
            watch=watch,
        )
        refused = self._server.set_tenants([Tenant(UNNAMED, model.entry.name)])
        if refused:
            self._server.close()
            raise refused[UNNAMED]
        self._served = self._server.view.model_of(UNNAMED)
        self.ledger = self._server.view.ledger(UNNAMED)
        self.intake = self._server.intake(UNNAMED)

    @property
    def settings(self) -> StageSettings:
        """The settings in force."""
        return self._served.plan.settings

    @property
    def plan(self) -> Plan:
        """The plan with which new batches are computed."""
        return self._served.plan

    @property
    def instance(self) -> ModelInstance:
        """The model with its batches in flight, and the way to its head."""
        return self._served.instance

    @property
    def is_open(self) -> bool:
        """Whether frames are taken."""
        return self._server.view.is_open

    @property
    def num_waiting(self) -> int:
        """How many frames wait for their turn."""
        return self._server.view.num_waiting

    @property
    def is_lost(self) -> bool:
        """Whether the device was lost, and all frames with it."""
        return self._server.view.is_lost

    def start(self) -> None:
        """Accepts frames until ``stop``. A stopped stage can be started again.

        Raises:
            ConfigurationError: the head cannot run its partition.
        """
        self._served.instance.prepare_head(self._served.plan)
        self._server.start()

    def configure(self, settings: StageSettings) -> None:
        """Changes settings for new batches; batches in flight keep the old ones.

        An engine that compiles partitions does so first, while batches run with the old settings. That can take
        seconds.

        Raises:
            ConfigurationError: the new settings do not fit; the old ones stay in force.
        """
        self._server.configure(SharedSettings.of_stage(settings))

    def report(self, now: float) -> PipelineReport:
        """Reports counts and times at this moment."""
        return self._server.view.report(UNNAMED, now)

    def stop(self, drain_s: float) -> None:
        """Accepts no more frames, lets those in flight finish for up to ``drain_s`` seconds, and drops the rest.

        The rest is dropped as ``shutdown``, or as ``device_lost`` if the device was lost.
        """
        self._server.stop(drain_s)

    def close(self) -> None:
        """Frees the slots. The stage cannot be used again."""
        self._server.close()


def _deliver_nothing(tenant: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
    """Stands in for a receiver of detections. It is never called, because the head is elsewhere."""

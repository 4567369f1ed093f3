"""A server of one model. It has one tenant, which has no name, and takes frames from any camera."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.improving.rivals import Rivals
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

    It is a ``Server`` with one tenant. The tenant's model is loaded already. The transport sends handles to its head.

    Args:
        model: the model. Its backbone runs in this process.
        settings: the settings at the start.
        transport: brings handles and features from the backbone to the head.
        on_error: called with every exception that cost frames, and with notices. After an exception for which
            ``faults.is_sticky`` is true, the stage takes no more frames. Then stop it.
        trace: the file for the times of each batch. None writes no file.
        watch: called with each batch that a head gave back, once the batch's timeline is complete. It must not wait.
        database: keeps the machine's constants. None means the user's own database.
        rivals: proposes engines that may run the backbone faster. They are tried while frames flow.
        say: called with a sentence about each of them.

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
        rivals: Rivals | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        opened = OpenedModel(model, transport=transport, rivals=rivals)
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
            say=lambda _, line: say(line),
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
        """The model instance of the only tenant: its model, batches in flight and connection to the head."""
        return self._served.instance

    @property
    def is_open(self) -> bool:
        """Whether the stage takes frames."""
        return self._server.view.is_open

    @property
    def cores_fault(self) -> str:
        """A sentence about cores of the backbone that the process may not use any more; empty if there are none."""
        return self._server.cores_fault

    @property
    def num_waiting(self) -> int:
        """How many frames wait for the backbone."""
        return self._server.view.num_waiting

    @property
    def is_lost(self) -> bool:
        """Whether the device was lost, and with it all frames that the stage had taken."""
        return self._server.view.is_lost

    def start(self) -> None:
        """Takes frames until ``stop``. A stopped stage can be started again.

        Raises:
            ConfigurationError: the head cannot run the head partition of the model.
        """
        self._served.instance.prepare_head(self._served.plan)
        self._server.start()

    def configure(self, settings: StageSettings) -> None:
        """Changes the settings of new batches. Batches in flight keep the old settings.

        If the engine compiles partitions, it compiles them first, which can take seconds. Meanwhile, batches run with
        the old settings.

        Raises:
            ConfigurationError: the new settings do not fit. The old settings stay in force.
        """
        self._server.configure(SharedSettings.of_stage(settings))

    def report(self, now: float) -> PipelineReport:
        """Returns counts and times.

        Args:
            now: the time of the report, in seconds of the steady clock.
        """
        return self._server.view.report(UNNAMED, now)

    def stop(self, drain_s: float) -> None:
        """Takes no more frames. Waits up to ``drain_s`` seconds for frames in flight, then drops those that are left.

        They are dropped as ``shutdown``, or as ``device_lost`` if the device was lost.
        """
        self._server.stop(drain_s)

    def close(self) -> None:
        """Frees the slots. The stage cannot be used again."""
        self._server.close()


def _deliver_nothing(tenant: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
    """Stands in for a receiver of detections. It is never called, because the head is elsewhere."""

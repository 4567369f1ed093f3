"""Many cameras and models on one processor: frames of named tenants in, each tenant's own detections out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, ImageError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.models.detections import Limits
from split_infer_ros.server.admission import Admission
from split_infer_ros.server.costs.cost_tables import CostTables
from split_infer_ros.server.dispatcher import Dispatcher
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.report import PipelineReport
from split_infer_ros.server.result_router import Deliver, ResultRouter
from split_infer_ros.server.served_model import Callbacks
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.shared_weights import make_ring_memory
from split_infer_ros.server.tenant import Tenant, check_unique_names
from split_infer_ros.server.tenant_registry import TenantRegistry
from split_infer_ros.server.tenant_state import TenantState, WaitingFrames, drop
from split_infer_ros.server.worker_pool import WorkerPool
from split_infer_ros.split.load import choose_device
from split_infer_ros.telemetry.trace import TraceFile


class SharedPipeline:
    """Serves tenants, which share models; may be used from any thread.

    Args:
        settings: the first ones.
        limits: what post-processing keeps.
        deliver: takes the tenant's name, a frame's origin, its detections and their labels. It is called on a thread
            of the model, for one tenant in the order of its frames. After ``set_tenants`` has returned, no call begins
            for a tenant that was removed or got another model. An exception costs that frame alone, as ``head_error``.
            It must not change tenants, settings or state.
        on_error: takes the tenant's or the model's name and an exception that cost frames, or a notice. After an
            exception for which ``faults.is_sticky`` is true, no frame is taken any more; stop the pipeline then.
        database: keeps costs of executions; the user's own if None.
        trace: where each batch's times are written, if anywhere.

    Attributes:
        limits: may be replaced at any time.

    Raises:
        ConfigurationError: this machine has no such device, or weights cannot be streamed to it.
    """

    def __init__(
        self,
        settings: SharedSettings,
        limits: Limits,
        deliver: Deliver,
        on_error: Callable[[str, Exception], None],
        database: Database | None = None,
        trace: TraceFile | None = None,
    ) -> None:
        self._settings = settings
        self._limits = limits
        database = database or Database()
        device = choose_device(settings.device)
        ring_memory = make_ring_memory(settings, device)
        graphs = settings.cuda_graphs and device.type == "cuda"
        self._changed = threading.Condition()  # guards all that follows, for moments
        self._workers = WorkerPool(
            changed=self._changed,
            device=device,
            graph_bytes=settings.graph_bytes if graphs else None,
            lanes=ring_memory is None,
        )
        self._tables = CostTables(
            Key.here(str(device)),
            database,
            max_batch_size=settings.largest_batch,
            graphs=graphs,
            num_lanes=self._workers.num_lanes,
        )
        self._changing = threading.RLock()  # held while models, settings or the state change; not while one is loaded
        self._tenants: dict[str, TenantState] = {}
        self._waiting = WaitingFrames(settings.max_waiting)
        self._dispatcher = Dispatcher(
            self._changed, self._waiting, self._workers, self._tables, settings.rules, self._failed
        )
        self._admission = Admission(self._changed, self._tenants, self._waiting, self._dispatcher, on_error)
        self._router = ResultRouter(
            changed=self._changed,
            tenants=self._tenants,
            models=self._dispatcher.models,
            deliver=deliver,
            on_error=on_error,
            trace=trace,
        )
        self._registry = TenantRegistry(
            changed=self._changed,
            changing=self._changing,
            tenants=self._tenants,
            waiting=self._waiting,
            dispatcher=self._dispatcher,
            tables=self._tables,
            callbacks=Callbacks(self._router.deliver, self._router.watch, self._failed),
            database=database,
            ring_memory=ring_memory,
        )
        self._running = False

    @property
    def settings(self) -> SharedSettings:
        """The settings in force."""
        return self._settings

    @property
    def limits(self) -> Limits:
        """What post-processing keeps."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        with self._changed:
            self._limits = limits
            for model in self._dispatcher.all_models:
                model.head.limits = limits

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """The tenants that run, by name, without those that could not be started."""
        with self._changed:
            return {name: state.tenant for name, state in self._tenants.items()}

    def labels(self, tenant: str) -> Sequence[str]:
        """Label names of the tenant's model, by index; raises ConfigurationError if there is no such tenant."""
        with self._changed:
            return self._dispatcher.models[self._find(tenant).model].model.entry.labels

    def set_tenants(self, tenants: Sequence[Tenant]) -> dict[str, ConfigurationError]:
        """Runs exactly these tenants: adds new ones, removes those that are not listed, and keeps the others running.

        Loading models can take seconds; the call does not wait until they are measured. If a tenant is removed or gets
        another model, its waiting frames are dropped as ``removed``. Its batches in flight are finished, not delivered,
        and dropped under the same name. A tenant that stays keeps its ledger.

        Returns:
            By name, why a tenant could not be started: its model does not load, or there is no memory for it. A tenant
            that ran before goes on as it was.

        Raises:
            ConfigurationError: a name is there twice; nothing was changed.
        """
        check_unique_names(tenants)
        refused = self._registry.set(tenants, lambda: (self._settings, self._limits))
        self._admission.report_loss(refused)
        with self._changing:
            if not self._running:
                self._dispatcher.look_round()
        return refused

    def configure(self, settings: SharedSettings) -> None:
        """Changes settings while frames flow; only those in ``shared_settings.LIVE`` may change.

        The call does not wait for models that are being loaded.

        Raises:
            ConfigurationError: another one would change, or there is no memory for it; the old ones stay in force.
        """
        with self._changing:
            self._settings.check_change(settings)
            try:
                plans = self._registry.plan_anew(settings) if settings.stage != self._settings.stage else {}
            except Exception as error:
                self._admission.report_loss({"settings": error})
                raise
            with self._changed:
                for model, plan in plans.items():
                    model.instance.use(plan)
                self._settings = settings
                self._dispatcher.rules = settings.rules
                self._tables.set_max_batch_size(settings.largest_batch)
                drop(self._waiting.set_max_waiting(settings.max_waiting), DropReason.OVERRUN)
                self._dispatcher.renew()
            for model in plans:
                model.instance.report_notes()

    def start(self) -> None:
        """Accepts frames, once unknown costs of models are measured (some seconds); may be started again."""
        with self._changing:
            if not self._running:
                self._dispatcher.start()
                self._admission.begin()
                self._running = True

    def stop(self, drain_s: float) -> None:
        """Accepts no more frames, lets those in flight finish for up to ``drain_s`` seconds, and drops the rest.

        The rest is dropped as ``shutdown``, or as ``device_lost`` where the device was lost.
        """
        with self._changing:
            if not self._running:
                return
            reason = self._admission.end(drain_s)
            self._dispatcher.stop()
            with self._changed:
                models = self._dispatcher.all_models
                for model in models:
                    for batch in list(model.in_flight):
                        model.instance.drop(batch, reason)
            for model in models:
                model.head.stop()
            self._running = False
            self._dispatcher.look_round()

    def close(self) -> None:
        """Frees models and memory, once stopped; the pipeline cannot be used any more."""
        self.set_tenants([])
        self._workers.close()

    def submit(self, tenant: str, pixels: Pixels, origin: Origin, now: float) -> None:
        """Takes a frame of a tenant; never waits. Frames for a tenant that does not exist are not counted."""
        self._admission.submit(tenant, pixels, origin, now)

    def refuse(self, tenant: str, error: ImageError, now: float) -> None:
        """Counts a frame of a tenant that cannot be read."""
        self._admission.refuse(tenant, error, now)

    def missed(self, tenant: str, count: int, reason: DropReason) -> None:
        """Counts frames of a tenant that were sent and never arrived."""
        self._admission.missed(tenant, count, reason)

    def report(self, tenant: str, now: float) -> PipelineReport:
        """Reports a tenant's counts and times at this moment, and the memory of its model.

        The counts are those of its own ledger. Times of stages are those of batches with one of its frames.

        Raises:
            ConfigurationError: there is no such tenant.
        """
        with self._changed:
            state = self._find(tenant)
            facts = self._dispatcher.models[state.model].facts()
        return state.meters.report(now, counts=state.ledger.counts(), **facts)

    def _find(self, tenant: str) -> TenantState:
        if tenant not in self._tenants:
            raise ConfigurationError(f"There is no tenant '{tenant}'; there are: {', '.join(self._tenants) or 'none'}.")
        return self._tenants[tenant]

    def _failed(self, name: str, error: Exception) -> None:
        self._admission.fail(name, error)

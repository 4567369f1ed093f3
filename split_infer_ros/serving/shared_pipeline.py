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
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.report import PipelineReport
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.serving.cost_tables import CostTables
from split_infer_ros.serving.dispatcher import Dispatcher
from split_infer_ros.serving.result_router import Deliver, ResultRouter
from split_infer_ros.serving.served_model import Callbacks, ServedModel
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.shared_weights import make_ring_memory
from split_infer_ros.serving.tenant import Tenant, check_unique_names
from split_infer_ros.serving.tenant_registry import TenantRegistry
from split_infer_ros.serving.tenant_state import TenantFrame, TenantState, WaitingFrames, drop
from split_infer_ros.serving.worker_pool import WorkerPool
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
        on_error: takes the tenant's or the model's name and an exception that cost frames. After one for which
            ``faults.is_sticky`` is true, no frame is taken any more; stop the pipeline then.
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
        self._on_error = on_error
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
            max_batch_size=settings.max_batch_size,
            graphs=graphs,
            num_lanes=self._workers.num_lanes,
        )
        self._changing = threading.RLock()  # held while models, settings or the state change; not while one is loaded
        self._tenants: dict[str, TenantState] = {}
        self._waiting = WaitingFrames(settings.max_waiting)
        self._dispatcher = Dispatcher(
            self._changed, self._waiting, self._workers, self._tables, settings.rules, self._failed
        )
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
        self._accepting = self._running = False
        self._lost = False  # the device, and all frames with it

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
            return self._model_of(self._find(tenant)).model.entry.labels

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
        for name, error in refused.items():
            if is_sticky(error):
                self._failed(name, error)
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
            except ConfigurationError as error:
                if is_sticky(error):
                    self._failed("settings", error)
                raise
            with self._changed:
                for model, plan in plans.items():
                    model.instance.use(plan)
                self._settings = settings
                self._dispatcher.rules = settings.rules
                self._tables.set_max_batch_size(settings.max_batch_size)
                drop(self._waiting.set_max_waiting(settings.max_waiting), DropReason.OVERRUN)
                self._dispatcher.renew()
            for model in plans:
                model.instance.report_notes()

    def start(self) -> None:
        """Accepts frames, once unknown costs of models are measured (some seconds); may be started again."""
        with self._changing:
            if self._running:
                return
            self._dispatcher.start()
            with self._changed:
                self._changed.wait_for(lambda: self._dispatcher.settled or self._lost)
                self._accepting, self._running = not self._lost, True

    def stop(self, drain_s: float) -> None:
        """Accepts no more frames, lets those in flight finish for up to ``drain_s`` seconds, and drops the rest.

        The rest is dropped as ``shutdown``, or as ``device_lost`` where the device was lost.
        """
        reason = DropReason.DEVICE_LOST if self._lost else DropReason.SHUTDOWN
        with self._changing:
            if not self._running:
                return
            with self._changed:
                self._accepting = False
                self._changed.wait_for(self._is_idle, drain_s)
                drop(self._waiting.clear(), reason)
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
        with self._changed:
            state = self._tenants.get(tenant)
            if state is None:
                return
            ticket = state.ledger.receive(now)
            if not self._accepting:
                ticket.drop(DropReason.DEVICE_LOST if self._lost else DropReason.INACTIVE)
            elif self._model_of(state).failed:
                ticket.drop(DropReason.BACKBONE_ERROR)
            else:
                frame = TenantFrame(pixels, origin, ticket, state)
                drop(self._waiting.add(frame, now, self._dispatcher.execution_s(state.model)), DropReason.OVERRUN)
                self._changed.notify_all()

    def refuse(self, tenant: str, error: ImageError, now: float) -> None:
        """Counts a frame of a tenant that cannot be read."""
        with self._changed:
            if tenant in self._tenants:
                self._tenants[tenant].ledger.receive(now).drop(error.reason)

    def missed(self, tenant: str, count: int, reason: DropReason) -> None:
        """Counts frames of a tenant that were sent and never arrived."""
        with self._changed:
            if tenant in self._tenants:
                self._tenants[tenant].ledger.missed(count, reason)

    def report(self, tenant: str, now: float) -> PipelineReport:
        """Reports a tenant's counts and times at this moment, and the memory of its model.

        The counts are those of its own ledger. Times of stages are those of batches with one of its frames.

        Raises:
            ConfigurationError: there is no such tenant.
        """
        with self._changed:
            state = self._find(tenant)
            facts = self._model_of(state).facts()
        return state.meters.report(now, counts=state.ledger.counts(), **facts)

    def _find(self, tenant: str) -> TenantState:
        if tenant not in self._tenants:
            raise ConfigurationError(f"There is no tenant '{tenant}'; there are: {', '.join(self._tenants) or 'none'}.")
        return self._tenants[tenant]

    def _model_of(self, state: TenantState) -> ServedModel:
        return self._dispatcher.models[state.model]

    def _is_idle(self) -> bool:
        return not self._waiting and not any(model.in_flight for model in self._dispatcher.all_models)

    def _failed(self, name: str, error: Exception) -> None:
        """Reports an exception; if the device is lost, drops all frames that wait."""
        if is_sticky(error):
            with self._changed:
                first, self._lost, self._accepting = not self._lost, True, False
                drop(self._waiting.clear(), DropReason.DEVICE_LOST)
                for model in self._dispatcher.all_models:
                    model.instance.device_lost = True
                self._changed.notify_all()
            if not first:
                return
        self._on_error(name, error)
